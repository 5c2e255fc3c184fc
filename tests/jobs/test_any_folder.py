"""A program runs from a folder of any name, in any surroundings, through all doors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.launching import phalanx_run, write_script

_FOLDERS = {
    "the project's": "phalanx",
    "spaces and other letters": " ünïcode  漢字 ",
    "signs of the shell": 'it\'s "$HOME" & `x`; #%{}',
    "long": "long-" * 40,
    "a newline": "two\nlines",
    "bytes that are no text": os.fsdecode(b"a\xff\xe6\xbc"),
}
_GROUP_AND_TORCH = """
    import os, torch, phalanx
    import torch.distributed as dist
    total = torch.ones(3)
    phalanx.connect().all_reduce(total)
    dist.init_process_group("phalanx")
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        os.write(1, f"{total.tolist()} {ascii(__file__)}\\n".encode())
    dist.destroy_process_group()
"""
_SPAWN = """
    import phalanx

    def add():
        import torch
        total = torch.ones(3)
        phalanx.connect().all_reduce(total)
        return total.tolist()

    if __name__ == "__main__":
        print(phalanx.spawn(add, ranks=2), ascii(__file__))
"""
_THEN_FAILS = """
    group = phalanx.connect()
    if group.rank == 1:
        raise ValueError("enough")
    group.all_reduce(total)
"""


def _surroundings(folder: Path) -> dict[str, str]:
    """No home, temporary files in a folder of that name, and a locale that knows ASCII alone.

    Python itself does not start in such a locale from an environment below a folder with other letters.
    """
    kept = {name: value for name, value in os.environ.items() if name != "HOME" and not name.startswith("LC_")}
    locale = "C" if sys.prefix.isascii() and __file__.isascii() else "C.UTF-8"
    return {**kept, "TMPDIR": str(folder), "LC_ALL": locale, "LANG": locale}


@pytest.fixture(scope="module", params=list(_FOLDERS.values()), ids=list(_FOLDERS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("any") / str(request.param)
    made.mkdir()
    return made


@pytest.fixture(scope="module")
def ended(folder: Path) -> subprocess.CompletedProcess[str]:
    """A job from that folder that goes well until one rank fails."""
    script = write_script(folder, _GROUP_AND_TORCH + _THEN_FAILS)
    surroundings = {**_surroundings(folder), "PHALANX_RECORD_DIR": str(folder / "records")}
    return phalanx_run("-n", 2, script, env=surroundings, cwd=folder, errors="replace")


@pytest.mark.slow
def test_a_program_runs_from_any_folder(folder: Path, ended: subprocess.CompletedProcess[str]) -> None:
    assert f"[4.0, 4.0, 4.0] {str(folder / 'program.py')!a}" in ended.stdout, ended.stderr


@pytest.mark.slow
def test_a_failure_is_told_from_any_folder(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 1
    assert "ValueError: enough" in ended.stderr
    assert "program.py" in ended.stderr
    assert "Unicode" not in ended.stderr


@pytest.mark.slow
def test_a_program_spawns_ranks_from_any_folder(folder: Path) -> None:
    script = write_script(folder, _SPAWN, "spawning.py")
    ended = subprocess.run(
        [sys.executable, script],
        env=_surroundings(folder),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]] {str(script)!a}\n"


@pytest.mark.slow
def test_a_program_runs_below_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    script = write_script(tmp_path / "link", _GROUP_AND_TORCH)
    ended = phalanx_run("-n", 2, script, cwd=tmp_path / "link")
    assert ended.returncode == 0, ended.stderr
    assert str(script) in ended.stdout
