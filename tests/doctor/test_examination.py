"""Whatever a probe does, it becomes a finding, and those behind it are asked."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
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
def test_nothing_is_left_of_probes_that_hang() -> None:
    descriptors = len(leftovers.open_descriptors())
    examine([bad_topic.TOPIC])
    assert len(leftovers.open_descriptors()) == descriptors
    assert not _command_lines_with("phalanx.doctor.asking")
    assert leftovers.wait_until(lambda: not _command_lines_with("sleep\x00600"))


def _command_lines_with(words: str) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if words in (folder / "cmdline").read_text() and int(folder.name) != os.getpid():
                found.append(int(folder.name))
        except (OSError, UnicodeDecodeError):  # it ended while we looked, or is somebody else's
            continue
    return found


def test_a_problem_ends_a_chain() -> None:
    findings = examine([broken_chain.TOPIC])
    assert [(finding.subject, finding.status) for finding in findings] == [("first", "note"), ("second", "problem")]


@pytest.mark.slow
def test_topics_keep_their_order_though_they_run_side_by_side() -> None:
    topics = [broken_chain.TOPIC] * 3
    assert [finding.subject for finding in examine(topics)] == ["first", "second"] * 3


def test_a_topic_whose_process_can_not_begin_is_one_problem() -> None:
    (finding,) = examine([Topic("Lost", "tests.doctor.no_such_module", bad_topic.TOPIC.probes)])
    assert finding == Finding(
        "Lost",
        "all",
        "problem",
        "can't be looked at: its process ended with exit code 1: "
        "ModuleNotFoundError: No module named 'tests.doctor.no_such_module'",
    )


@pytest.mark.slow
def test_no_descriptor_for_a_process_is_a_problem_with_advice() -> None:
    program = (
        "import resource\n"
        "from phalanx.doctor.examination import examine\n"
        "from tests.doctor import broken_chain\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (4, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "(finding,) = examine([broken_chain.TOPIC])\n"
        "print(finding.status, finding.text, finding.advice, sep='|')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    status, text, advice = done.stdout.strip().split("|")
    assert status == "problem"
    assert "no process can be started for it (OSError: [Errno 24] Too many open files)" in text
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert advice == "Raise the limit of open files with `ulimit -n 4096`." or hard < 4096
