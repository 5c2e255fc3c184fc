"""torch's distributed_test on our classes, in a process of its own: its modules read the environment on import.

Prints one line per test: its outcome and its name.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from phalanx.testing.unittest import initialize_temp_directories, take_torchs_place
from tests.testing_unittest.inner_suites import run

os.environ |= {"BACKEND": "gloo", "WORLD_SIZE": "2", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}
take_torchs_place()
initialize_temp_directories()  # before the import: the module keeps the name
distributed_test: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")
_Tests: Any = distributed_test.DistributedTest._DistTestBase


class TestDistBackendWithSpawn(distributed_test.TestDistBackend, _Tests):  # type: ignore[misc]
    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()


if __name__ == "__main__":
    results = run(TestDistBackendWithSpawn, *sys.argv[1:], timeout_s=60)
    for outcome in ("passed", "skipped", "errors", "failures"):
        for name in getattr(results, outcome):
            print("outcome:", outcome, name)
    print("\n".join([*results.errors.values(), *results.failures.values()]))
