"""SECURITY.md: folders and files of the user in places that others can reach."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.diagnosis import record_folder
from phalanx.diagnosis.record_folder import write_record, write_whole
from phalanx.jobs.kept_output import KeptOutput
from phalanx.launch import private_folders
from phalanx.launch.private_folders import NoFolderError, open_private
from phalanx.launch.user_identity import is_group_of_one
from tests.diagnosis.observations import group, observation, row
from tests.security.other_user import UID, another_user, let_others_in, run_as_another_user, user_namespaces


@pytest.fixture
def no_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.mark.usefixtures("no_umask")
def test_flight_records_are_the_users_alone(tmp_path: Path) -> None:
    path = write_record(observation(group(row(0))), tmp_path / "records")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.usefixtures("no_umask")
def test_tracebacks_that_are_kept_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_RECORD_DIR", str(tmp_path / "records"))
    kept = KeptOutput()
    kept.seen = observation(group(row(0)))
    assert kept.write(0, b"secret\n")
    kept.close()
    assert kept.folder is not None
    paths = [kept.folder.parent, kept.folder, kept.folder / "rank-0.err"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("change", ["a link", "for everybody"])
def test_no_traceback_is_put_into_a_folder_that_came_in_the_place_of_the_users(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_and_lose(seen: object, folder: Path) -> Path:
        made, other = folder / "made", tmp_path / "other"
        other.mkdir()
        if change == "a link":
            made.symlink_to(other)
        else:
            made.mkdir()
            made.chmod(0o777)
        return made

    (tmp_path / "records").mkdir()
    monkeypatch.setenv("PHALANX_RECORD_DIR", str(tmp_path / "records"))
    monkeypatch.setattr(record_folder, "make_output_folder", make_and_lose)
    kept = KeptOutput()
    kept.seen = observation(group(row(0)))
    assert not kept.write(0, b"secret\n")
    kept.close()
    assert not [*(tmp_path / "records" / "made").iterdir()]


def test_a_file_is_put_in_the_place_of_a_link_and_not_where_it_leads(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep me")
    link = tmp_path / "record.json"
    link.symlink_to(precious)
    write_whole({link: b"new"})
    assert precious.read_text() == "keep me"
    assert link.read_bytes() == b"new"
    assert not link.is_symlink()


@pytest.fixture
def shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files in which everybody may make things; the user's own can't be written to."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    if os.geteuid() == 0:
        let_others_in(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(private_folders, "cached", lambda kind: None)
    return folder


def test_a_folder_below_a_shared_one_is_made_for_the_user_alone(shared_folder: Path) -> None:
    made = open_private("things")
    assert made.parent.parent == shared_folder
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


@another_user
@pytest.mark.slow
@pytest.mark.parametrize("trick", ["folder", "link", "link to a folder of its own"])
def test_what_another_user_has_put_there_first_is_not_used(shared_folder: Path, tmp_path: Path, trick: str) -> None:
    target = tmp_path / "target"
    target.mkdir()
    place = shared_folder / f"phalanx-{os.geteuid()}"
    program = {
        "folder": "os.mkdir(sys.argv[1])",
        "link": "os.symlink(sys.argv[2], sys.argv[1])",
        "link to a folder of its own": "os.mkdir(sys.argv[1] + 'x'); os.symlink(sys.argv[1] + 'x', sys.argv[1])",
    }[trick]
    run_as_another_user(program, str(place), str(target))
    assert place.lstat().st_uid == UID
    with pytest.raises(NoFolderError, match=r"is a link|belongs to another user"):
        open_private("things")
    assert list(target.iterdir()) == []


def test_a_cache_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "things"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    monkeypatch.setattr(private_folders, "cached", lambda kind: cache)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert open_private("things").parent.name == f"phalanx-{os.geteuid()}"
    cache.chmod(0o755)
    assert open_private("things") == cache


@pytest.mark.parametrize("mode", [0o777, pytest.param(0o775, marks=another_user)])
def test_a_cache_whose_place_others_can_take_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    shared = tmp_path / "shared"
    (shared / "phalanx" / "things").mkdir(parents=True, mode=0o700)
    shared.chmod(mode)
    if mode == 0o775:
        os.chown(shared, -1, UID)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert open_private("things").parent.name == f"phalanx-{os.geteuid()}"
    shared.chmod(mode | stat.S_ISVTX)  # in such a folder nobody can take away what is ours
    assert open_private("things") == shared / "phalanx" / "things"


@pytest.mark.skipif(not is_group_of_one(os.getegid()), reason="the group of this user has other members")
def test_a_cache_that_only_the_users_own_group_can_write_to_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A umask of 002, the default of some systems, makes such folders."""
    cache = tmp_path / "cache"
    (cache / "phalanx" / "things").mkdir(parents=True)
    for folder in (cache, cache / "phalanx", cache / "phalanx" / "things"):
        folder.chmod(0o775)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    assert open_private("things") == cache / "phalanx" / "things"


@another_user
@pytest.mark.slow
def test_a_cache_below_a_folder_of_another_user_is_not_used(
    shared_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    run_as_another_user("os.mkdir(sys.argv[1])", str(shared_folder / "phalanx"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_folder))
    monkeypatch.setattr(tempfile, "tempdir", str(shared_folder))
    assert open_private("things") == shared_folder / f"phalanx-{os.geteuid()}" / "things"


@pytest.mark.usefixtures("no_umask")
def test_all_folders_made_for_a_cache_are_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    made = open_private("things")
    assert made == tmp_path / "new" / "phalanx" / "things"
    assert {stat.S_IMODE(each.stat().st_mode) for each in (made, made.parent, made.parent.parent)} == {0o700}


def test_a_cache_is_where_a_link_led_when_it_was_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "link"))
    assert open_private("things") == tmp_path / "real" / "phalanx" / "things"


@pytest.mark.slow
@user_namespaces
def test_where_all_users_have_one_number_no_folder_is_trusted(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from phalanx.launch.private_folders import why_not_trusted
print(why_not_trusted(Path({str(tmp_path)!r})))
"""
    command = ["unshare", "--user", sys.executable, "-c", program]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.stdout == f"the owner of {tmp_path} is unknown: this user has no number of its own in this container\n"
