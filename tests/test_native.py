"""The tests of the C++ core, built and run as ./native/tests/run does it. The build stays in build/native-plain."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_RUN = Path(__file__).parent.parent / "native" / "tests" / "run"
_WITHOUT = [tool for tool in ("cmake", "ctest", "make", "c++") if shutil.which(tool) is None]
_LIMIT_S = 1800  # minutes if other tests run at the same time; the first time it compiles all


@pytest.mark.slow
@pytest.mark.skipif(bool(_WITHOUT), reason=f"the tests of the C++ core can't be built without {' '.join(_WITHOUT)}")
def test_the_tests_of_the_native_core_pass() -> None:
    ended = subprocess.run([_RUN], capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ", 0 failed" in ended.stdout
