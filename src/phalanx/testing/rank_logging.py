"""The log records of a rank: for its report, and for the fixture caplog."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key


class RankLog:
    """The records of one rank."""

    def __init__(self, handler: LogCaptureHandler) -> None:
        self._handler = handler

    def text(self) -> str:
        """Return the formatted log."""
        return self._handler.stream.getvalue().strip()

    def caplog(self, item: Any) -> pytest.LogCaptureFixture:
        """Return pytest's fixture with this rank's records only."""
        return pytest.LogCaptureFixture(_OwnStash(item, self._handler), _ispytest=True)  # type: ignore[arg-type]


class _OwnStash:
    """A test as LogCaptureFixture sees it, with a handler of its own."""

    def __init__(self, item: Any, handler: LogCaptureHandler) -> None:
        self.config = item.config
        self.stash = pytest.Stash()
        self.stash[caplog_handler_key] = handler
        self.stash[caplog_records_key] = {"call": handler.records}


@contextlib.contextmanager
def rank_logging(item: Any, *, is_thread: bool) -> Iterator[RankLog]:
    """Collect what this rank logs."""
    plugin = item.config.pluginmanager.getplugin("logging-plugin")
    handler = LogCaptureHandler()
    if plugin is not None:
        handler.setFormatter(plugin.formatter)
    if is_thread:
        own = threading.get_ident()
        handler.addFilter(lambda record: record.thread == own)
    root = logging.getLogger()
    level = root.level
    if plugin is not None and plugin.log_level is not None:
        root.setLevel(min(level, plugin.log_level))
    root.addHandler(handler)
    try:
        yield RankLog(handler)
    finally:
        root.removeHandler(handler)
        if not is_thread:
            root.setLevel(level)
