from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from phalanx.testing.unittest import (
    captured_output,
    cleanup_temp_dir,
    initialize_temp_directories,
    with_dist_debug_levels,
    with_nccl_blocking_wait,
)
from phalanx.torch_backend.untyped import dist

_BLOCKING, _ASYNC = "TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING"


@pytest.mark.ranks(2, kind="process")
@pytest.mark.parametrize("before", [None, "INFO"])
def test_debug_levels_are_tried_in_turn_and_put_back(process_group: object, before: str | None) -> None:
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    if before is not None:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = before
    dist.set_debug_level_from_env()
    level_before, seen = dist.get_debug_level(), []

    @with_dist_debug_levels(levels=["OFF", "INFO", "DETAIL"])
    def test() -> str:
        seen.append((os.environ["TORCH_DISTRIBUTED_DEBUG"], dist.get_debug_level().name))
        return "result"

    assert test() == "result"
    assert seen == [("OFF", "OFF"), ("INFO", "INFO"), ("DETAIL", "DETAIL")]
    assert os.environ.get("TORCH_DISTRIBUTED_DEBUG") == before
    assert dist.get_debug_level() == level_before


@pytest.mark.parametrize("before", [None, "0"])
def test_nccl_flags_are_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    for name in (_BLOCKING, _ASYNC):
        monkeypatch.delenv(name, raising=False)
        if before is not None:
            monkeypatch.setenv(name, before)

    @with_nccl_blocking_wait
    def test() -> None:
        assert os.environ[_BLOCKING] == "1"
        assert _ASYNC not in os.environ
        os.environ["PHALANX_TEST_NOTE"] = "stays"
        raise ValueError

    with pytest.raises(ValueError):
        test()
    assert (os.environ.get(_BLOCKING), os.environ.get(_ASYNC)) == (before, before)
    assert os.environ.pop("PHALANX_TEST_NOTE") == "stays"


def test_output_is_captured() -> None:
    with captured_output() as (out, err):
        print("to out")
        print("to err", file=sys.stderr)
    assert (out.getvalue(), err.getvalue()) == ("to out\n", "to err\n")


def test_the_folder_of_tests_keeps_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked: a name that a module has read on import must stay true."""
    monkeypatch.setenv("TEMP_DIR", "")
    monkeypatch.setenv("INIT_METHOD", "")
    initialize_temp_directories()
    folder, method = Path(os.environ["TEMP_DIR"]), os.environ["INIT_METHOD"]
    assert sorted(path.name for path in folder.iterdir()) == ["barrier", "init_dir", "test_dir"]
    (folder / "barrier" / "old").touch()
    initialize_temp_directories()
    assert os.environ["TEMP_DIR"] == str(folder)
    assert os.environ["INIT_METHOD"] == method
    assert not list((folder / "barrier").iterdir())
    initialize_temp_directories("tcp://somewhere")
    assert os.environ["INIT_METHOD"] == "tcp://somewhere"
    cleanup_temp_dir()
    assert not folder.exists()
