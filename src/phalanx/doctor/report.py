"""The findings as a page for people, and as JSON for programs."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby

from phalanx.doctor.finding import Finding, Status

_ORDER: tuple[Status, ...] = ("problem", "note", "absent", "ok")
_NARROWEST = 30


def is_ready(findings: Sequence[Finding]) -> bool:
    """Tell whether ranks can run."""
    return all(finding.status != "problem" for finding in findings)


def what_to_do(findings: Sequence[Finding]) -> list[str]:
    """Return all advice, each once: first for problems, then for notes."""
    ordered = sorted(findings, key=lambda finding: _ORDER.index(finding.status))
    return list(dict.fromkeys(finding.advice for finding in ordered if finding.advice))


def write_page(findings: Sequence[Finding], width: int, paint: Callable[[str, Status], str]) -> str:
    """Write the findings by topic, then the advice.

    Args:
        findings: What was found.
        width: Columns of the page.
        paint: Gives a mark the colour of its status; it must not change what is seen of it.
    """
    subject_width = max((len(finding.subject) for finding in findings), default=0)
    indent = 2 + 7 + 2 + subject_width + 2
    lines = list[str]()
    seen = dict[str, str]()  # for each text the subject that had it first
    for topic, group in groupby(findings, key=lambda finding: finding.topic):
        lines.append(topic)
        for finding in group:
            mark = paint(f"{finding.status:<7}", finding.status)
            first, *rest = _wrap(_once(finding, seen), width - indent)
            lines.append(f"  {mark}  {finding.subject:<{subject_width}}  {first}")
            lines += [" " * indent + line for line in rest]
        lines.append("")
    return "\n".join(lines + _last_part(findings, width))


def with_counts_only(findings: Sequence[Finding], option: str) -> list[Finding]:
    """Replace findings that list many things, such as "changes: import", by one line with how many there are.

    Args:
        findings: What was found.
        option: The option that shows the lists.
    """
    shown = list[Finding]()
    for key, group in groupby(findings, key=_counted):
        counted = list(group)
        if key is None:
            shown += counted
            continue
        numbers = ", ".join(f"{finding.subject.partition(': ')[2]} {finding.count}" for finding in counted)
        shown.append(Finding(*key, "ok", f"names of torch: {numbers}; {option} lists them"))
    return shown


def _counted(finding: Finding) -> tuple[str, str] | None:
    return None if finding.count is None else (finding.topic, finding.subject.partition(":")[0])


def write_json(findings: Sequence[Finding], version: str, seconds: float) -> str:
    """Write everything as JSON."""
    page = {
        "phalanx": version,
        "ready": is_ready(findings),
        "seconds": round(seconds, 3),
        "findings": [asdict(finding) for finding in findings],
        "what_to_do": what_to_do(findings),
    }
    return json.dumps(page, indent=1)


def _last_part(findings: Sequence[Finding], width: int) -> list[str]:
    advice = what_to_do(findings)
    if not advice and is_ready(findings):
        return ["Nothing to do: this machine is ready."]
    lines = ["What to do" if is_ready(findings) else "Ranks can't run properly here. What to do"]
    for number, sentence in enumerate(advice, 1):
        first, *rest = _wrap(sentence, width - 5)
        lines += [f"{number:3}. {first}", *(f"     {line}" for line in rest)]
    if is_ready(findings):
        lines += ["", "Ranks run here without it."]
    return lines


def _once(finding: Finding, seen: dict[str, str]) -> str:
    """Return the text, or which subject has it already: many self-tests may fail for one reason."""
    before = seen.setdefault(finding.text, finding.subject)
    return f"the same as {before}" if finding.status == "problem" and before != finding.subject else finding.text


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(_NARROWEST, width), break_on_hyphens=False) or [""]
