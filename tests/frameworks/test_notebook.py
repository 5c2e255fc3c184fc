"""The cells of docs/notebooks.md do in a kernel of Jupyter what the page says."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import leftovers
from tests.documents.blocks import ROOT, blocks_of

pytest.importorskip("jupyter_client", reason="Jupyter is not installed: make frameworks")
pytest.importorskip("ipykernel", reason="Jupyter is not installed: make frameworks")
_TIME_LIMIT_S = 120
_ERRORS = {"def fail": "ValueError: no loss", "def hang": "OperationTimeoutError: spawn: timed out after 3 s"}


class _Notebook:
    """A kernel that runs cells."""

    def __init__(self, manager: Any, client: Any) -> None:
        self._manager = manager
        self._client = client

    def run(self, code: str, interrupt_after: str | None = None) -> str:
        """Return what a cell prints, its value and its error. Interrupt it once it has printed these words."""
        pieces: list[str] = []

        def take(message: Any) -> None:
            content = message["content"]
            if interrupt_after is not None and interrupt_after in content.get("text", ""):
                self._manager.interrupt_kernel()
            pieces.append(_text_of(content))

        self._client.execute_interactive(code, timeout=_TIME_LIMIT_S, output_hook=take)
        return "\n".join(pieces)


def _text_of(content: Any) -> str:
    if "evalue" in content:
        trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(content["traceback"]))
        return f"{trace}\n{content['ename']}: {content['evalue']}"
    return str(content.get("text") or content.get("data", {}).get("text/plain", ""))


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left_behind() -> Iterator[None]:
    """After the module: no rank. Descriptors are not counted, because Jupyter keeps an event loop until pytest ends."""
    yield
    assert leftovers.wait_until(lambda: not leftovers.rank_processes()), leftovers.rank_processes()


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[_Notebook]:
    from jupyter_client.manager import start_new_kernel

    # A kernel that finds the variable of pytest does not show what child processes print.
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    manager, client = start_new_kernel(cwd=str(tmp_path), env=variables, startup_timeout=_TIME_LIMIT_S)
    try:
        yield _Notebook(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.slow
def test_cells_of_the_page_do_what_it_says(notebook: _Notebook) -> None:
    cells = [block for block in blocks_of(ROOT / "docs/notebooks.md") if block.language == "python"]
    assert len(cells) > 4
    for cell in cells:
        output = notebook.run(cell.text)
        wanted = [error for words, error in _ERRORS.items() if words in cell.text]
        assert ("Error:" in output) == bool(wanted), f"{cell}: {output}"
        assert all(error in output for error in wanted), f"{cell}: {output}"
        assert all(value in output for value in re.findall(r"# (\[.*\])$", cell.text, re.MULTILINE)), (
            f"{cell}: {output}"
        )


_WAITING = """
import phalanx

def wait():
    group = phalanx.connect()
    if group.rank == 0:
        print("the ranks wait", flush=True)
    while True:
        group.barrier()

phalanx.spawn(wait, ranks=2, kind="{kind}")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "thread"])
def test_a_cell_that_is_interrupted_ends_and_the_next_one_runs(notebook: _Notebook, kind: str) -> None:
    assert "KeyboardInterrupt" in notebook.run(_WAITING.format(kind=kind), interrupt_after="the ranks wait")
    assert notebook.run("phalanx.spawn(lambda: phalanx.connect().size, ranks=2)").strip() == "[2, 2]"


@pytest.mark.slow
def test_the_kernel_survives_the_crash_of_a_rank(notebook: _Notebook) -> None:
    crash = "import os, phalanx\nphalanx.spawn(lambda: phalanx.connect().rank or os.abort(), ranks=2)"
    assert "RankFailedError: rank 0 of 2 was killed by SIGABRT" in notebook.run(crash)
    assert notebook.run("1 + 1").strip() == "2"
