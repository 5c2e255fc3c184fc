"""Change the environment of a test and restore it afterwards: variables, debug levels, standard streams, folders."""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from phalanx.settings import copy_environment, replace_environment, set_environment
from phalanx.testing.unittest.torch_case import FILE_SCHEMA
from phalanx.torch_backend.untyped import dist

_DEBUG = "TORCH_DISTRIBUTED_DEBUG"
_BLOCKING = "TORCH_NCCL_BLOCKING_WAIT"
_ASYNC_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"

tmp_dir: tempfile.TemporaryDirectory[str] | None = None


@contextlib.contextmanager
def _variables(**changes: str | None) -> Iterator[None]:
    """Set variables, or remove those with None, and restore the old values afterwards."""
    before = copy_environment()
    _change(changes)
    try:
        yield
    finally:
        _change({name: before.get(name) for name in changes})


def _change(changes: dict[str, str | None]) -> None:
    kept = {name: value for name, value in copy_environment().items() if name not in changes}
    replace_environment(kept | {name: value for name, value in changes.items() if value is not None})


def with_dist_debug_levels(levels: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test once per debug level of torch.distributed, and restore the old level."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = None
            level_before = dist.get_debug_level()
            try:
                for level in levels:
                    with _variables(**{_DEBUG: level}):
                        dist.set_debug_level_from_env()
                        result = func(*args, **kwargs)
                    dist.barrier()
            finally:
                dist.set_debug_level(level_before)
            return result

        return wrapper

    return decorate


def with_nccl_blocking_wait(func: Callable[..., Any]) -> Callable[..., Any]:
    """Run a test with NCCL's blocking wait on and its asynchronous errors unset."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _variables(**{_BLOCKING: "1", _ASYNC_ERRORS: None}):
            return func(*args, **kwargs)

    return wrapper


@contextlib.contextmanager
def captured_output() -> Iterator[tuple[io.StringIO, io.StringIO]]:
    """Capture what is printed to standard output and standard error inside the block."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


def initialize_temp_directories(init_method: str | None = None) -> None:
    """Make a folder for a test, and set TEMP_DIR and INIT_METHOD to it."""
    global tmp_dir  # noqa: PLW0603
    if tmp_dir is None:
        tmp_dir = tempfile.TemporaryDirectory()
    else:
        # Empty the folder and use it again: modules may have read its name at import time, and ranks are forked.
        tmp_dir.cleanup()
        Path(tmp_dir.name).mkdir()
    folder = Path(tmp_dir.name)
    for name in ("barrier", "test_dir", "init_dir"):
        (folder / name).mkdir()
    method = init_method or f"{FILE_SCHEMA}{folder / 'init_dir' / 'shared_init_file'}"
    set_environment(TEMP_DIR=str(folder), INIT_METHOD=method)


def cleanup_temp_dir() -> None:
    """Remove the folder, if there is one."""
    if tmp_dir is not None:
        tmp_dir.cleanup()
