"""A second pytest that has collected the same tests and does nothing but have ranks forked from it.

For sessions whose own process can't be forked for ranks any more, because it has initialised CUDA: a copy of it could
never use a GPU. The shadow has the test modules, with their assertions rewritten; fixtures are sent.
"""

from __future__ import annotations

import atexit
import base64
import functools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phalanx.devices.real_gpus import has_opened_cuda
from phalanx.launch import zygote
from phalanx.launch.rank_process import die_with_parent
from phalanx.launch.rendezvous import Rendezvous
from phalanx.launch.zygote_client import ZygoteClient
from phalanx.testing.crew import Crew
from phalanx.testing.line import Line
from phalanx.testing.member import Member
from phalanx.testing.rank_listener import Call, RankListener
from phalanx.testing.rank_report import RankReport
from phalanx.testing.terminal import Terminal
from phalanx.testing.warm_ranks import serve
from phalanx.testing.warm_task import adopt

_PROGRAM = "import sys; from phalanx.testing.shadow import main; main(sys.argv[1], sys.argv[2:])"
_items: dict[str, Any] = {}  # in the shadow and its ranks: all tests, by their ids


def start_shadow(config: pytest.Config) -> ZygoteClient:
    """Start the shadow of this session; it ends with it."""
    return ZygoteClient(_PROGRAM, _arguments(config))


def start_separate_ranks(config: pytest.Config, num_ranks: int, *, redirect: bool, terminal: Terminal) -> Crew:
    """Start ranks that each collect the session for themselves.

    For tests that initialise CUDA when they are imported: no process that has imported them can be forked. It takes as
    long as importing torch and the tests does.

    Raises:
        InternalError: They did not start.
    """
    with RankListener(num_ranks, redirect=redirect) as listener:
        processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    _PROGRAM,
                    f"call:{base64.b64encode(pickle.dumps(call)).decode()}",
                    *_arguments(config),
                ],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
            )
            for call in listener.calls
        ]
        try:
            lines = listener.accept()
        except BaseException:
            for process in processes:
                process.kill()
            raise
    members = [
        Member(rank, process.pid, os.pidfd_open(process.pid), lines[rank], listener.files[rank])
        for rank, process in enumerate(processes)
    ]
    for process in processes:
        process.returncode = 0  # the crew reaps it
    return Crew(members, terminal)


def _arguments(config: pytest.Config) -> list[str]:
    is_xdist_worker = hasattr(config, "workerinput")
    arguments = list(config.args) if is_xdist_worker else [str(each) for each in config.invocation_params.args]
    return [*arguments, "-n0"] if config.pluginmanager.hasplugin("xdist") else arguments


def main(place: str, arguments: Sequence[str]) -> None:
    """Be the shadow, with a control socket for its place, or a rank by itself, with a call to make."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    serve_tests: Callable[[], None]
    if place.startswith("call:"):
        call: Call = pickle.loads(base64.b64decode(place.removeprefix("call:")))
        serve_tests = functools.partial(_serve_by_itself, call, os.getppid())
    else:
        serve_tests = functools.partial(zygote.main, int(place), is_forkable=lambda: not has_opened_cuda())
    sys.exit(pytest.main(list(arguments), plugins=[_Shadow(serve_tests)]))


class _Shadow:
    """Keeps pytest from running tests once it has collected them."""

    def __init__(self, serve_tests: Callable[[], None]) -> None:
        self._serve_tests = serve_tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve instead."""
        _items.update({item.nodeid: item for item in session.items})
        self._serve_tests()
        return True


def _serve_by_itself(call: Call, owner: int) -> None:
    die_with_parent(owner)
    atexit._clear()
    serve_session(call.rank, call.answer())
    os._exit(0)


def serve_session(rank: int, line: Line) -> None:
    """Be a rank of the shadow."""
    serve(rank, line, _prepare)


def _prepare(task: bytes, line: Line) -> tuple[Callable[[], RankReport], str, Rendezvous]:
    sent = pickle.loads(task)
    return adopt(sent, _items).run, sent.meeting, sent.rendezvous
