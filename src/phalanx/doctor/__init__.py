"""Find out what this machine offers to ranks: `phalanx doctor`.

Probes run in processes of their own, one for each topic, because any of them may hang, crash or find torch broken. The
doctor itself imports neither torch nor the engine: probes import these inside their functions, where a failure becomes
a finding.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.doctor import kernel, limits, machine, mpi, self_tests, system_calls, torch_facts, virtual_gpus
from phalanx.doctor.examination import examine
from phalanx.doctor.finding import Finding

__all__ = ["Finding", "examine_machine"]

_TOPICS = (
    machine.TOPIC,
    limits.TOPIC,
    kernel.TOPIC,
    system_calls.TOPIC,
    torch_facts.TOPIC,
    virtual_gpus.TOPIC,
    mpi.TOPIC,
)
_NEEDED_BY_SELF_TESTS = ("torch", "engine")


def examine_machine(*, with_self_tests: bool, watch: Callable[[str], None] = lambda _: None) -> list[Finding]:
    """Look at this machine, and run ranks of every kind.

    Args:
        with_self_tests: Whether to run ranks.
        watch: Told what is being looked at.
    """
    slowest_first = sorted(_TOPICS, key=lambda topic: topic is not torch_facts.TOPIC)
    found = examine(slowest_first, watch)
    titles = [topic.title for topic in _TOPICS]
    findings = sorted(found, key=lambda finding: titles.index(finding.topic))
    if not with_self_tests:
        return findings
    broken = [finding.subject for finding in findings if finding.status == "problem"]
    missing = [name for name in _NEEDED_BY_SELF_TESTS if name in broken]
    if missing:
        text = f"not run: no rank can start without {' and '.join(missing)}"
        return [*findings, Finding(self_tests.TITLE, "all", "absent", text)]
    return [*findings, *examine([self_tests.make_topic()], watch)]
