"""Run a test in a process of its own: whatever sets up virtual devices changes its process for good.

    import phalanx
    from tests.virtual_gpus.in_child import in_child, on_virtual_devices, run_script

    @in_child                                    # a fresh child; the test sets up what it wants
    def test_a_device_has_an_index() -> None:
        phalanx.virtual_devices(2)
        assert torch.ones(1, device="virtual:1").device.index == 1

    @on_virtual_devices(4, face="cuda")          # the same, set up before the test begins
    def test_four_gpus_are_counted() -> None:
        assert torch.cuda.device_count() == 4

    def test_the_process_ends_well() -> None:    # a whole interpreter, for what happens at import and at exit (seconds)
        ended = run_script("import torch; print(torch.cuda.device_count())", PHALANX_VIRTUAL_GPUS="2")
        assert (ended.returncode, ended.stdout) == (0, "2\\n"), ended.stderr

`in_child` is the marker of one rank: pytest forks the child, with torch and the test module imported, in about 0.1 s.
Fixtures (tmp_path, monkeypatch, capfd), parameters, assertions and tracebacks are as in any other test. A test module
may import torch, but nothing in it may touch a virtual device on import.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import pytest

import phalanx
from phalanx.settings import copy_environment

_Test = TypeVar("_Test", bound=Callable[..., Any])

_LONGEST_SCRIPT_S = 600

in_child = pytest.mark.ranks(1)


def on_virtual_devices(
    num_devices: int,
    *,
    face: Literal["virtual", "cuda"] = "virtual",
    gpu: str | None = None,
    memory: str | int | None = "16GiB",
    races: Literal["off", "warn", "raise"] = "off",
) -> Callable[[_Test], _Test]:
    """Run the test in a child that has set up virtual devices."""

    def decorate(test: _Test) -> _Test:
        @functools.wraps(test)
        def on_devices(*args: Any, **kwargs: Any) -> Any:
            phalanx.virtual_devices(num_devices, face=face, gpu=gpu, memory=memory, races=races)
            return test(*args, **kwargs)

        marked: _Test = in_child(on_devices)
        return marked

    return decorate


def run_script(text: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new interpreter, with these variables more, and return how it ended and what it wrote."""
    command = [sys.executable, "-c", text]
    environment = copy_environment(**{"OMP_NUM_THREADS": "1", **variables})
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_LONGEST_SCRIPT_S, check=False
    )
