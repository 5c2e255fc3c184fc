from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.views import JobView
from phalanx.jobs import kept_output
from phalanx.jobs.kept_output import KeptOutput
from tests.diagnosis.observations import observation


def _seen(unix_s: float = 1000.0) -> Observation:
    return observation(job=JobView(name="train", pid=7), unix_s=unix_s)


def test_only_this_user_can_read_it_and_nothing_is_made_before_it_is_needed(records: Path) -> None:
    kept = KeptOutput()
    kept.seen = _seen()
    assert kept.folder is None
    assert not records.exists()
    assert kept.write(3, b"one\n")
    assert kept.write(3, b"two\n")
    kept.close()
    assert kept.folder is not None
    assert kept.folder.parent == records
    assert kept.folder.name.startswith("train-19700101-")
    assert [path.name for path in kept.folder.iterdir()] == ["rank-3.err"]
    assert (kept.folder / "rank-3.err").read_bytes() == b"one\ntwo\n"
    modes = [path.stat().st_mode & 0o777 for path in (records, kept.folder, kept.folder / "rank-3.err")]
    assert modes == [0o700, 0o700, 0o600]


def test_only_the_folders_of_the_newest_jobs_stay(records: Path) -> None:
    for number in range(22):
        kept = KeptOutput()
        kept.seen = _seen(1000.0 + number)
        assert kept.write(0, b"x")
        kept.close()
    assert len(list(records.iterdir())) == 20
    assert kept.folder is not None
    assert kept.folder.exists()


def test_what_takes_too_much_room_is_refused(records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_output, "_MOST_BYTES", 10)
    kept = KeptOutput()
    assert not kept.write(0, b"before the failure")
    kept.seen = _seen()
    assert kept.write(0, b"12345678")
    assert not kept.write(1, b"123")
    assert kept.write(1, b"12")
    kept.close()


def test_a_folder_that_can_t_be_made_is_a_refusal_and_no_error(records: Path) -> None:
    records.write_text("a file is in the way")
    kept = KeptOutput()
    kept.seen = _seen()
    assert not kept.write(0, b"x")
