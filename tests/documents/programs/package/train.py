"""The module that the pages call package.train."""

from __future__ import annotations

import runpy

runpy.run_path("train.py", run_name="__main__")
