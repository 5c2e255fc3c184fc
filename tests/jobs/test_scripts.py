"""A program on a rank can't tell that Python itself did not start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.jobs.program import Program
from phalanx.launch.zygote_client import ZygoteClient
from tests.jobs.launching import lines_of, phalanx_run, run_one_rank, write_script

pytestmark = pytest.mark.slow

_LOOK_AROUND = """
import json, os, pickle, sys

class Thing:
    pass

main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "path0": sys.path[0],
    "name": __name__,
    "file": __file__,
    "package": __package__,
    "spec": None if __spec__ is None else __spec__.name,
    "loader": type(__loader__).__name__,
    "doc": __doc__,
    "cached": __cached__,
    "builtins": __builtins__ is __import__("builtins"),
    "is_main": main.__dict__ is globals(),
    "names": sorted(name for name in globals() if name.startswith("__")),
    "thing": Thing.__module__,
    "pickled": type(pickle.loads(pickle.dumps(Thing()))) is Thing,
    "orig_argv": sys.orig_argv[1:],
    "folder": os.getcwd(),
    "stdin": sys.stdin.read(),
}))
"""


def _compare(folder: Path, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    options: dict[str, Any] = {"cwd": folder, "env": environment, "input": "some\ninput", "stdin": None}
    alone = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=True, **{**options, "stdin": None}
    )
    ranked = phalanx_run("-n", "1", *arguments, **options)
    assert ranked.returncode == 0, ranked.stderr
    seen: dict[str, Any] = json.loads(lines_of(ranked.stdout, 0)[0])
    expected = json.loads(alone.stdout)
    assert seen == expected
    return seen


def test_a_script_sees_what_it_sees_under_python(tmp_path: Path) -> None:
    write_script(tmp_path, '"""Docs."""\n' + _LOOK_AROUND, "folder/program.py")
    seen = _compare(tmp_path, "folder/program.py", "--rate", "3", "--", "-x")
    assert seen["path0"] == str(tmp_path / "folder")
    assert seen["argv"] == ["folder/program.py", "--rate", "3", "--", "-x"]


def test_a_module_a_folder_and_an_archive_too(tmp_path: Path) -> None:
    write_script(tmp_path, _LOOK_AROUND, "package/tool.py")
    write_script(tmp_path, "", "package/__init__.py")
    write_script(tmp_path, _LOOK_AROUND, "package/__main__.py")
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.write(tmp_path / "package" / "tool.py", "__main__.py")
    assert _compare(tmp_path, "-m", "package.tool", "a")["path0"] == str(tmp_path)
    assert _compare(tmp_path, "-m", "package", "a")["spec"] == "package.__main__"
    _compare(tmp_path, "package", "a")
    _compare(tmp_path, "archive.zip", "a")


_ENDS = {
    "raises": """
        def inner():
            raise ValueError("two\\nlines")
        try:
            1 / 0
        except ZeroDivisionError:
            inner()
    """,
    "syntax": "x = (\n",
    "deep": """
        import json
        json.loads("{")
    """,
    "exits": "import sys; sys.exit(3)",
    "exits big": "import sys; sys.exit(256 + 7)",
    "exits negative": "import sys; sys.exit(-1)",
    "exits with text": "import sys; sys.exit('no data')",
    "exits with nothing": "import sys; print('fine'); sys.exit()",
    "quits at once": "import os; os._exit(9)",
    "killed": "import os; os.kill(os.getpid(), 9)",
    "interrupted": "raise KeyboardInterrupt",
    "own hook": """
        import sys
        sys.excepthook = lambda kind, error, trace: print("hooked", kind.__name__, trace.tb_lineno, file=sys.stderr)
        raise LookupError
    """,
    "at exit": """
        import atexit, threading, sys, time
        atexit.register(print, "atexit")
        def late():
            time.sleep(0.2)
            print("thread")
        threading.Thread(target=late).start()
        open(sys.argv[1], "w").write("text that nobody flushed")
        kept = open(sys.argv[1] + "2", "w")
        kept.write("more of it")
        sys.stdout.write("no newline")
    """,
    "forks": """
        import os
        if os.fork() == 0:
            raise RuntimeError("of the child")
        print("child ended with", os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "closes stdout": "import sys; sys.stdout.close()",
    "warns": "import warnings; warnings.warn('careful')",
}


@pytest.fixture(scope="module")
def zygote() -> Iterator[ZygoteClient]:
    """One process to fork all ranks from: importing torch takes longer than the tests."""
    program = "import sys; from phalanx.jobs.script import be_zygote; be_zygote(int(sys.argv[1]))"
    client = ZygoteClient(program, is_apart=True)
    yield client
    client.close()


@pytest.mark.parametrize("how", _ENDS)
def test_a_script_ends_as_under_python(how: str, tmp_path: Path, zygote: ZygoteClient) -> None:
    script = write_script(tmp_path, _ENDS[how])
    files = [tmp_path / name for name in ("ours", "ours2", "theirs", "theirs2")]
    out, err, status = run_one_rank(zygote, Program("script", str(script), (str(files[0]),)))
    alone = subprocess.run([sys.executable, script, files[2]], capture_output=True, text=True, check=False)
    assert status == (alone.returncode if alone.returncode >= 0 else 256 - alone.returncode)
    assert out == alone.stdout
    assert err == alone.stderr
    assert [file.read_text() for file in files[:2] if file.exists()] == [
        file.read_text() for file in files[2:] if file.exists()
    ]


def test_other_processes_of_a_program_find_its_classes(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch
        import torch.multiprocessing as multiprocessing
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return torch.tensor(index)

        def work(queue, data):
            queue.put(sum(int(value) for value in data))

        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
                print(method, [batch.tolist() for batch in loader])
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            process = context.Process(target=work, args=(queue, Numbers()[3].reshape(1)))
            process.start()
            print("spawned", queue.get(timeout=30))
            process.join()
        """,
    )
    result = phalanx_run("-n", "1", script)
    assert result.returncode == 0, result.stderr
    batches = "[[0, 1, 2, 3], [4, 5, 6, 7]]"
    assert lines_of(result.stdout, 0) == [f"fork {batches}", f"spawn {batches}", "spawned 3"]
    assert result.stderr == ""


def test_a_script_in_a_long_folder_of_any_letters(tmp_path: Path) -> None:
    folder = tmp_path / ("漢字" * 30)
    folder.mkdir()
    script = folder / ("é" * 61 + ".py")
    script.write_text(
        "import torch, phalanx\n"
        "group = phalanx.connect(timeout_s=30)\n"
        "group.all_reduce(torch.ones(3))\n"
        "if group.rank == 0:\n"
        "    print(group.entry(0, 1).location)\n"
        "    group.barrier()\n"
        "group.barrier()\n"
    )
    run = phalanx_run("-n", 2, script)
    assert run.returncode == 1
    assert "é.py:3" in run.stdout
    assert "UnicodeDecodeError" not in run.stderr
    assert "rank 1 of 2 has reached the end of its program while rank 0 still waited for it" in run.stderr
