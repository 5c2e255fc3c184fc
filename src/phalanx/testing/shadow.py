"""A second pytest that has collected the same tests and does nothing but have ranks forked from it.

For sessions whose own process can't be forked for ranks any more, because it has initialised CUDA: a copy of it could
never use a GPU. The shadow has the test modules, with their assertions rewritten; fixtures are sent.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from phalanx.launch import zygote
from phalanx.launch.nursery import ZygoteClient
from phalanx.testing.line import Line
from phalanx.testing.rank_report import RankReport
from phalanx.testing.warm_ranks import serve
from phalanx.testing.warm_task import adopt

_PROGRAM = "import sys; from phalanx.testing.shadow import main; main(int(sys.argv[1]), sys.argv[2:])"
_items: dict[str, Any] = {}  # in the shadow and its ranks: all tests, by their ids


def start_shadow(config: pytest.Config) -> ZygoteClient:
    """Start the shadow of this session; it ends with it."""
    is_xdist_worker = hasattr(config, "workerinput")
    arguments = list(config.args) if is_xdist_worker else [str(each) for each in config.invocation_params.args]
    return ZygoteClient(_PROGRAM, [*arguments, "-p", "no:cacheprovider"])


def main(descriptor: int, arguments: Sequence[str]) -> None:
    """Be the shadow."""
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    sys.exit(pytest.main(list(arguments), plugins=[_Shadow(descriptor)]))


class _Shadow:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Fork ranks instead of running tests."""
        _items.update({item.nodeid: item for item in session.items})
        zygote.main(self._descriptor)
        return True


def serve_session(rank: int, line: Line) -> None:
    """Be a rank of the shadow."""
    serve(rank, line, _prepare)


def _prepare(task: bytes, line: Line) -> tuple[Callable[[], RankReport], str, int]:
    sent = pickle.loads(task)
    return adopt(sent, _items).run, sent.meeting, sent.port
