"""SECURITY.md: folders and files of the user in places that others can reach."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.diagnosis.record_folder import write_record, write_whole
from phalanx.launch import private_folders
from phalanx.launch.private_folders import NoFolderError, open_private
from tests.diagnosis.observations import group, observation, row
from tests.security.other_user import UID, another_user, run_as_another_user


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
    for each in (tmp_path, *list(tmp_path.parents)[:2]):
        if os.geteuid() == 0:
            each.chmod(0o755)
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
