"""Virtual devices are built before the first test needs them: a rank has a minute, a build may take longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.virtual_gpus.building import cache, recipe

_HERE = Path(__file__).parent
_FOLDERS = {_HERE, _HERE.with_name("devices")}
_LONGEST_BUILD_S = 600


def pytest_collection_finish(session: pytest.Session) -> None:
    folder = cache.cached_builds()
    is_needed = any(_FOLDERS & {*item.path.parents} for item in session.items) and not session.config.option.collectonly
    if is_needed and not (folder is not None and (folder / recipe.make_recipe().name / cache.LIBRARY).exists()):
        # In another process: what loads the library is changed by it.
        subprocess.run([sys.executable, "-m", "phalanx.cli", "devices", "build"], check=True, timeout=_LONGEST_BUILD_S)
