from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for flight records: not the user's own."""
    folder = tmp_path / "records"
    monkeypatch.setenv("PHALANX_RECORD_DIR", str(folder))
    return folder
