from __future__ import annotations

import base64
import json
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.timeline import timeline as timeline_command
from phalanx.errors import PhalanxError, UsageError
from phalanx.timeline import page, write_timeline
from tests.timeline.made_up_runs import write_training
from tests.timeline.raw_files import RawRank


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_trace_and_page_appear_beside_the_raw_files(tmp_path: Path) -> None:
    write_training(tmp_path, num_ranks=2, num_spans=50)
    written = write_timeline(tmp_path)
    assert _names(tmp_path) == ["rank-0-1000.raw", "rank-1-1001.raw", "timeline.html", "trace.json"]
    assert (written.page, written.trace) == (tmp_path / "timeline.html", tmp_path / "trace.json")
    assert written.warnings == ()
    assert written.num_spans == sum(
        event["ph"] == "X" for event in json.loads(written.trace.read_text())["traceEvents"]
    )


def test_raw_files_go_when_they_are_not_wanted(tmp_path: Path) -> None:
    write_training(tmp_path, num_ranks=2, num_spans=50)
    write_timeline(tmp_path, keep_raw=False)
    assert _names(tmp_path) == ["timeline.html", "trace.json"]


def test_ranks_that_called_nothing_have_a_page_too(tmp_path: Path) -> None:
    RawRank(0).write(tmp_path)
    (tmp_path / "rank-1-5.raw").write_bytes(b"")
    written = write_timeline(tmp_path)
    assert written.num_spans == 0
    assert written.warnings == (
        "There is no call in this recording. No rank that recorded had a group.",
        "Rank 1 (pid 5) recorded nothing: it ended before its first call.",
    )


def test_groups_without_a_call_are_told_from_no_groups(tmp_path: Path) -> None:
    RawRank(0).group(num_ranks=1).write(tmp_path)
    (warning,) = write_timeline(tmp_path).warnings
    assert warning == "There is no call in this recording. The ranks made groups, but called no operation."


def test_a_damaged_file_leaves_earlier_results_alone(tmp_path: Path) -> None:
    RawRank(0).write(tmp_path)
    before = write_timeline(tmp_path).page.read_text()
    (tmp_path / "rank-1-5.raw").write_bytes(b"x" * 500)
    with pytest.raises(UsageError, match=r"rank-1-5\.raw is damaged"):
        write_timeline(tmp_path)
    assert (tmp_path / "timeline.html").read_text() == before


@contextmanager
def _no_room_beyond(size_bytes: int) -> Iterator[None]:
    """Let every file end there, as on a full disk: a write beyond fails."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_action = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, old_action)


def test_without_room_the_raw_files_are_kept_and_nothing_half_is_left(tmp_path: Path) -> None:
    write_training(tmp_path, num_ranks=2, num_spans=50)
    raw = _names(tmp_path)
    with _no_room_beyond(2000), pytest.raises(PhalanxError) as caught:
        write_timeline(tmp_path, keep_raw=False)
    assert str(caught.value).startswith(
        f"{tmp_path / 'trace.json'} can't be written: File too large. The raw files in "
    )
    assert f"phalanx timeline {tmp_path}" in str(caught.value)
    assert _names(tmp_path) == raw


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    RawRank(0).write(tmp_path)
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(PhalanxError, match="can't be written: Permission denied"):
            write_timeline(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_result_that_is_in_the_way_is_named(tmp_path: Path) -> None:
    RawRank(0).write(tmp_path)
    (tmp_path / "timeline.html").mkdir()
    with pytest.raises(PhalanxError, match=r"timeline\.html can't be written: Is a directory"):
        write_timeline(tmp_path)
    assert _names(tmp_path) == ["rank-0-1000.raw", "timeline.html", "trace.json"]


def test_names_from_programs_are_harmless(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    rank = RawRank(0, host=evil).group(0, evil + "{{script}}", num_ranks=2)
    rank.call("barrier", 1, 1, 0, place=f"</script>{evil}&amp;.py:1").write(tmp_path)
    html = write_timeline(tmp_path).page.read_text()
    assert evil not in html
    assert html.count("<script") == 3
    assert html.count("</script") == 3
    about = re.search(r'<script type="application/json" id="about">(.*?)</script>', html)
    assert about is not None
    assert json.loads(about[1])["rows"] == [[0, evil + "{{script}}", 1]]


def test_the_page_asks_for_nothing_and_may_run_only_its_own_script(tmp_path: Path) -> None:
    RawRank(0).write(tmp_path)
    html = write_timeline(tmp_path).page.read_text()
    assert "{{" not in html.replace("${{", "")
    assert not re.search(r"""(src|href)=["'](?!data:,)|https?:|@import|url\(""", html)
    assert "default-src 'none'" in html
    match = re.search(r"script-src 'sha256-([^']+)'", html)
    assert match is not None
    assert len(base64.b64decode(match[1])) == 32


def test_every_part_of_the_page_lies_in_the_package() -> None:
    folder = files("phalanx.timeline")
    assert all((folder / name).is_file() for name in ("page.html", "page.css", *page._SCRIPTS))


def test_the_command_says_what_it_made(tmp_path: Path) -> None:
    RawRank(0, is_truncated=True).group(num_ranks=1).call("barrier", 1, 1, 2).write(tmp_path)
    result = CliRunner().invoke(timeline_command, [str(tmp_path)])
    assert result.exit_code == 0
    assert "the disk was full" in result.stderr
    assert result.stdout.startswith(f"1 call: {tmp_path / 'timeline.html'}")


def test_the_command_fails_with_the_reason(tmp_path: Path) -> None:
    result = CliRunner().invoke(timeline_command, [str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no recording" in result.stderr
