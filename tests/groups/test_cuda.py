"""What the engine is told of CUDA's parts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx import engine
from phalanx.groups import cuda


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, ...]]:
    """What the engine has been told, by a process that has not done so before."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("PHALANX_CUDA_DRIVER", raising=False)
    monkeypatch.delenv("PHALANX_NVRTC", raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(engine, "use_cuda", lambda *args: calls.append(args))
    monkeypatch.setattr(cuda, "_tell_engine", cuda._tell_engine.__wrapped__)
    return calls


def test_a_torch_without_cuda_tells_nothing(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    cuda.prepare_engine()
    assert not told


def test_the_engine_learns_where_things_are(told: list[Any], tmp_path: Path) -> None:
    cuda.prepare_engine()
    ((driver, compilers, folder, _),) = told
    assert driver == "libcuda.so.1"
    assert compilers[-2:] == ["libnvrtc.so.13", "libnvrtc.so"]
    assert folder == str(tmp_path / "phalanx" / "kernels")
    assert Path(folder).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("place", ["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"])
def test_torchs_own_compiler_is_taken_first(
    told: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    compiler = tmp_path / place
    compiler.parent.mkdir(parents=True)
    for name in (compiler.name, "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13"):
        (compiler.parent / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    cuda.prepare_engine()
    compilers = told[0][1]
    assert compilers[0] == str(compiler)
    assert not [one for one in compilers if "builtins" in one or ".alt." in one]


def test_the_environment_names_others(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setenv("PHALANX_CUDA_DRIVER", "/some/driver.so")
    monkeypatch.setenv("PHALANX_NVRTC", "/some/compiler.so")
    cuda.prepare_engine()
    driver, compilers, folder, _ = told[0]
    assert (driver, compilers) == ("/some/driver.so", ["/some/compiler.so"])
    assert Path(folder).name.startswith("kernels-by-")  # no real GPU could run what lies there


def test_a_warning_is_given_once(told: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    cuda.prepare_engine()
    warn = told[0][3]
    with caplog.at_level(logging.WARNING, "phalanx"):
        for text in ("this is slow", "this is slow", "and so is that"):
            warn(text)
    assert caplog.messages == ["this is slow", "and so is that"]
