"""Whatever a probe does, it becomes a finding, and those behind it are asked."""

from __future__ import annotations

import resource
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from phalanx.doctor.examination import examine
from phalanx.doctor.finding import Finding, Topic
from tests import leftovers
from tests.doctor import bad_topic, broken_chain


@pytest.fixture(autouse=True)
def _processes_of_topics_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.slow
def test_every_way_to_fail_becomes_a_finding() -> None:
    watched: list[str] = []
    findings = examine([bad_topic.TOPIC], watched.append)
    assert [(finding.subject, finding.status, finding.text) for finding in findings] == [
        ("first", "ok", "fine"),
        ("raising", "problem", "LookupError: not there"),
        ("leaving", "note", "SystemExit: left"),
        ("hanging", "problem", f"no answer within {bad_topic.HANG_S} s"),
        ("crashing", "problem", "killed by SIGABRT: free(): invalid pointer"),
        ("forbidden", "note", "killed by SIGSYS: a seccomp filter forbids the call"),
        ("ending", "problem", "its process ended with exit code 3"),
        ("last", "ok", "fine"),
    ]
    assert findings[1].advice == "Bring it."
    assert watched == [f"Bad: {probe.subject}" for probe in bad_topic.TOPIC.probes]


@pytest.mark.slow
def test_nothing_is_left_of_probes_that_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"STARTED_BY={uuid.uuid4()}"  # tells our processes from those of another test that examines the machine
    monkeypatch.setenv(*mark.split("="))
    descriptors = len(leftovers.open_descriptors())
    seen = set[int]()
    examine([bad_topic.TOPIC], lambda _: seen.update(_processes_with(mark)))
    assert seen  # so the mark does find them
    assert len(leftovers.open_descriptors()) == descriptors
    assert leftovers.wait_until(lambda: not _processes_with(mark))


def _processes_with(variable: str) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:  # it ended while we looked, or is somebody else's
            continue
    return found


def test_a_problem_ends_a_chain() -> None:
    findings = examine([broken_chain.TOPIC])
    assert [(finding.subject, finding.status) for finding in findings] == [("first", "note"), ("second", "problem")]


@pytest.mark.slow
def test_topics_keep_their_order_though_they_run_side_by_side() -> None:
    topics = [broken_chain.TOPIC] * 3
    assert [finding.subject for finding in examine(topics)] == ["first", "second"] * 3


def test_a_topic_whose_process_can_not_begin_is_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")  # it does not find the module of the probes
    monkeypatch.chdir("/")
    (finding,) = examine([Topic("Lost", bad_topic.TOPIC.probes)])
    assert finding == Finding(
        "Lost",
        "all",
        "problem",
        "can't be examined: its process ended with exit code 1: ModuleNotFoundError: No module named 'tests'",
    )


@pytest.mark.slow
def test_no_descriptor_for_a_process_is_a_problem_with_advice() -> None:
    program = (
        "import resource\n"
        "from phalanx.doctor.examination import examine\n"
        "from tests.doctor import broken_chain\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "(finding,) = examine([broken_chain.TOPIC])\n"
        "print(finding.status, finding.text, finding.advice, sep='|')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    status, text, advice = done.stdout.strip().split("|")
    assert status == "problem"
    assert "no process can be started for it (OSError: [Errno 24] Too many open files)" in text
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert advice == "Raise the limit of open files with `ulimit -n 4096`." or hard < 4096
