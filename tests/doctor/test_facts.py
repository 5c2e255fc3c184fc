"""Probes on the machine that runs the tests: it can run ranks, or there would be no tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from phalanx.doctor import gpus, kernel, limits, machine, mpi, self_tests, system_calls, torch_facts
from phalanx.doctor.examination import examine
from phalanx.doctor.finding import Finding, Topic


def _by_subject(topic: Topic) -> dict[str, Finding]:
    findings = {finding.subject: finding for finding in examine([topic])}
    assert list(findings) == [probe.subject for probe in topic.probes]
    return findings


@pytest.mark.slow
@pytest.mark.parametrize(
    "topic", [machine.TOPIC, limits.TOPIC, kernel.TOPIC, system_calls.TOPIC], ids=lambda t: t.title
)
def test_a_machine_that_runs_ranks_has_no_problem(topic: Topic) -> None:
    assert [finding for finding in _by_subject(topic).values() if finding.status == "problem"] == []


@pytest.mark.slow
def test_what_ranks_need_of_the_kernel_is_really_used() -> None:
    found = _by_subject(system_calls.TOPIC)
    assert [found[name].status for name in ("futex", "memfd_create", "Unix sockets", "pidfd_open")] == ["ok"] * 4


@pytest.mark.slow
def test_torch_is_named_with_its_version_and_backends() -> None:
    found = _by_subject(torch_facts.TOPIC)
    assert re.match(r"\d+\.\d+\.\d+", found["torch"].text)
    assert found["backends"].text.startswith("phalanx, ")


def test_the_supported_versions_of_torch_are_those_of_the_package() -> None:
    lowest, above = torch_facts.supported_range()
    assert (2, 11) <= lowest < above


@pytest.mark.slow
def test_mpi_is_no_condition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _by_subject(mpi.TOPIC)["mpiexec"].status == "absent"


@pytest.mark.slow
def test_a_launcher_of_another_mpi_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py", reason="compares with mpi4py's library")
    if "MPICH" not in _by_subject(mpi.TOPIC)["mpi4py"].text:
        pytest.skip("mpi4py does not use MPICH here")
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.6'\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = _by_subject(mpi.TOPIC)["mpiexec"]
    assert (found.status, found.text) == ("note", f"Open MPI 5.0.6, {launcher}, but mpi4py uses MPICH")
    assert "each rank is alone" in found.advice


@pytest.mark.skipif(torch.version.cuda is not None, reason="for a torch without CUDA")
def test_gpus_that_this_torch_can_not_use_are_noted(tmp_path: Path) -> None:
    assert gpus.cuda_devices(tmp_path).status == "absent"
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    answer = gpus.cuda_devices(tmp_path)
    assert (answer.status, answer.text) == ("note", "2 there, but this torch is built without CUDA")
    assert answer.advice == "Install a CUDA build of torch to use them."


def test_a_container_is_named(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/uid_map").write_text("         0       1000          1\n")
    (tmp_path / ".dockerenv").touch()
    text = kernel.container(tmp_path).text
    assert text == "Docker; ranks must share it; users are mapped (a user namespace), which does not matter"


def test_yama_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ptrace_scope"
    assert system_calls.yama_scope(file) == 0
    file.write_text("1\n")
    assert system_calls.yama_scope(file) == 1


@pytest.mark.slow
def test_more_ranks_than_two_pass_the_self_test() -> None:
    answer = self_tests.processes(4)
    assert answer.status == "ok"
    assert answer.text.startswith("all_reduce is right on 4 ranks")
    assert answer.seconds is not None
