"""The page and the JSON, from literal findings."""

from __future__ import annotations

import json

from phalanx.doctor.finding import Finding, Status
from phalanx.doctor.report import is_ready, what_to_do, with_counts_only, write_json, write_page

_FINDINGS = [
    Finding("Machine", "cores", "ok", "2 usable of 2"),
    Finding("Machine", "/dev/shm", "note", "64.0 MiB free of 64.0 MiB; phalanx does without it", "Take a larger one."),
    Finding("torch", "CUDA devices", "absent", "none"),
    Finding("torch", "torch", "problem", "can't be imported", "Install torch."),
    Finding("torch", "again", "problem", "can't be imported", "Install torch."),
]


def _plain(mark: str, _: Status) -> str:
    return mark


def test_the_page_is_aligned_and_ends_with_numbered_advice() -> None:
    assert write_page(_FINDINGS, 60, _plain) == (
        "Machine\n"
        "  ok       cores         2 usable of 2\n"
        "  note     /dev/shm      64.0 MiB free of 64.0 MiB; phalanx\n"
        "                         does without it\n"
        "\n"
        "torch\n"
        "  absent   CUDA devices  none\n"
        "  problem  torch         can't be imported\n"
        "  problem  again         the same as torch\n"
        "\n"
        "Ranks can't run properly here. What to do\n"
        "  1. Install torch.\n"
        "  2. Take a larger one."
    )


def test_notes_leave_the_machine_ready() -> None:
    page = write_page(_FINDINGS[:3], 80, _plain)
    assert page.endswith("What to do\n  1. Take a larger one.\n\nRanks run here without it.")
    assert is_ready(_FINDINGS[:3])
    assert not is_ready(_FINDINGS)


def test_nothing_to_do() -> None:
    assert write_page(_FINDINGS[:1], 80, _plain).endswith("\n\nNothing to do: this machine is ready.")


def test_paint_gets_the_whole_mark() -> None:
    page = write_page(_FINDINGS[:1], 80, lambda mark, status: f"<{mark}|{status}>")
    assert "  <ok     |ok>  cores  2 usable of 2" in page


def test_advice_comes_once_and_problems_first() -> None:
    assert what_to_do(_FINDINGS) == ["Install torch.", "Take a larger one."]


def test_json_has_everything() -> None:
    page = json.loads(write_json(_FINDINGS, "1.2", 3.45678))
    assert page["phalanx"] == "1.2"
    assert page["ready"] is False
    assert page["seconds"] == 3.457
    assert page["findings"][1] == {
        "topic": "Machine",
        "subject": "/dev/shm",
        "status": "note",
        "text": "64.0 MiB free of 64.0 MiB; phalanx does without it",
        "advice": "Take a larger one.",
        "seconds": None,
        "count": None,
    }
    assert page["what_to_do"] == what_to_do(_FINDINGS)


def test_lists_are_counted_in_one_line_but_what_is_not_ok_keeps_its_own() -> None:
    before, lost = Finding("torch", "torch", "ok", "2.13"), Finding("torch", "changes: GPUs", "absent", "not built")
    lists = [
        Finding("torch", "changes: import", "ok", "torch.a, torch.b", count=2),
        Finding("torch", "changes: groups", "ok", "torch.c", count=1),
    ]
    summed_up = Finding("torch", "changes", "ok", "names of torch: import 2, groups 1; --all lists them")
    assert with_counts_only([before, *lists, lost], "--all") == [before, summed_up, lost]
