"""Whether virtual GPUs can be built here; what is missing keeps no rank from running."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.doctor import virtual_gpus
from phalanx.doctor.examination import examine
from phalanx.doctor.finding import Finding
from phalanx.doctor.report import is_ready, what_to_do


def _examine() -> dict[str, Finding]:
    return {finding.subject: finding for finding in examine([virtual_gpus.TOPIC])}


@pytest.fixture
def _has_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # where nothing is built


@pytest.mark.slow
@pytest.mark.usefixtures("_has_no_compiler")
def test_without_a_compiler_it_says_what_does_not_work_and_what_to_install() -> None:
    found = _examine()
    assert found["compiler"].status == found["library"].status == "note"
    assert "torch.compile" in found["compiler"].text
    assert found["library"].text.startswith(
        "not built, and without the compiler it can't be: phalanx run --virtual-gpus"
    )
    assert any("apt install g++" in advice for advice in what_to_do(list(found.values())))
    assert is_ready(list(found.values()))


@pytest.mark.slow
def test_a_compiler_that_can_not_compile_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\ncat >/dev/null\necho 'cc1plus: error: unrecognized option -std=c++20' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    answer = virtual_gpus.compiler()
    assert answer.status == "note"
    assert answer.text.endswith("can't compile C++20: cc1plus: error: unrecognized option -std=c++20")
    assert "that works" in answer.advice


@pytest.mark.slow
def test_the_library_of_this_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = virtual_gpus.library()
    assert found.status in ("ok", "absent")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if virtual_gpus.compiler().status == "ok":
        assert virtual_gpus.library().text.startswith("not built yet; the first use builds it")


def test_without_headers_of_python_only_torch_compile_is_lost(tmp_path: Path) -> None:
    lost = virtual_gpus.python_headers(tmp_path)
    assert (lost.status, "torch.compile does not work" in lost.text, "python3-dev" in lost.advice) == (
        "note",
        True,
        True,
    )
    tmp_path.joinpath("Python.h").touch()
    assert virtual_gpus.python_headers(tmp_path).status == "ok"
