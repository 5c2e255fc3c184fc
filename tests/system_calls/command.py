"""A command of phalanx whose own calls may fail, but not those that import its modules.

python -m tests.system_calls.command run -n 2 script.py
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import phalanx.diagnosis
import phalanx.jobs
from phalanx.cli.main import main
from tests.system_calls.page import LAUNCHER, become


def _import_all() -> None:
    for package in (phalanx.diagnosis, phalanx.jobs):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if module.name != "phalanx.jobs.script":  # a rank's: it needs torch
                importlib.import_module(module.name)


if __name__ == "__main__":
    _import_all()
    vars(subprocess)["_USE_VFORK"] = False  # the library can't come between a program and vfork()
    become(LAUNCHER)
    main(sys.argv[1:])
