"""A second pytest that has collected the same tests, and only serves to fork ranks from it.

It is for sessions whose own process has initialised CUDA, because forks of it could not use a GPU. The shadow has the
test modules, with rewritten assertions; the values of fixtures are sent to it.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phalanx.launch import zygote
from phalanx.launch.connection import Connection
from phalanx.launch.rank_process import die_with_parent
from phalanx.launch.zygote_client import ZygoteClient
from phalanx.real_gpus.discovery import has_opened_cuda
from phalanx.testing.crew import Crew
from phalanx.testing.crew_starts import be_program, start_programs
from phalanx.testing.task_watch import Terminal
from phalanx.testing.warm_ranks import serve
from phalanx.testing.warm_task import adopt

_PROGRAM = "import sys; from phalanx.testing.shadow import main; main(sys.argv[1], sys.argv[2:])"
_items: dict[str, Any] = {}  # in the shadow and its ranks: all tests, by their ids


def start_shadow(config: pytest.Config) -> ZygoteClient:
    """Start the shadow of this session, which ends with the session."""
    return ZygoteClient(_PROGRAM, _arguments(config))


def start_separate_ranks(config: pytest.Config, num_ranks: int, *, redirect: bool, terminal: Terminal) -> Crew:
    """Start ranks that each collect the session for themselves.

    This is for tests that initialise CUDA when they are imported: no process that has imported them can be forked. It
    takes as long as importing torch and the tests.

    Raises:
        InternalError: They did not start.
    """

    def command(descriptors: str) -> list[str]:
        return [sys.executable, "-c", _PROGRAM, f"rank:{int(redirect)}:{descriptors}", *_arguments(config)]

    return start_programs(command, num_ranks, terminal)


def _arguments(config: pytest.Config) -> list[str]:
    is_xdist_worker = hasattr(config, "workerinput")
    arguments = list(config.args) if is_xdist_worker else [str(each) for each in config.invocation_params.args]
    return [*arguments, "-n0"] if config.pluginmanager.hasplugin("xdist") else arguments


def main(role: str, arguments: Sequence[str]) -> None:
    """Run the shadow, with the number of a control socket, or a separate rank, with its descriptors."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    serve_tests: Callable[[], None]
    if role.startswith("rank:"):
        _, redirect, descriptors = role.split(":")
        serve_tests = functools.partial(_serve_by_itself, descriptors, redirect == "1", os.getppid())
    else:
        serve_tests = functools.partial(zygote.main, int(role), is_forkable=lambda: not has_opened_cuda())
    sys.exit(pytest.main(list(arguments), plugins=[_Shadow(serve_tests)]))


class _Shadow:
    """Keeps pytest from running tests once it has collected them."""

    def __init__(self, serve_tests: Callable[[], None]) -> None:
        self._serve_tests = serve_tests

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Serve requests instead of running tests."""
        _items.update({item.nodeid: item for item in session.items})
        self._serve_tests()
        return True


def _serve_by_itself(descriptors: str, redirect: bool, owner: int) -> None:
    die_with_parent(owner)
    atexit._clear()
    be_program(descriptors, serve_session, redirect=redirect)
    os._exit(0)


def serve_session(connection: Connection) -> None:
    """Run a rank of the shadow."""
    serve(connection, lambda task, _: adopt(pickle.loads(task), _items).run)
