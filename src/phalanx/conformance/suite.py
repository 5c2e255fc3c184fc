"""torch's distributed_test, loaded for one mode and one world size. It reads both from the environment, at import.

Modes: "plain" admits phalanx under its own name to the tests that any backend may run; "gloo" has it stand in for Gloo,
so that tests which name Gloo run too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError
from phalanx.settings import set_environment

MODES = ("plain", "gloo")
_BACKENDS = {"plain": "phalanx", "gloo": "gloo"}
_FEATURES = ("ddp", "subgroup", "plugin")


@dataclass(frozen=True)
class Suite:
    """The loaded suite.

    Attributes:
        module: torch.testing._internal.distributed.distributed_test.
        case: Its test class, complete.
        skip_codes: What exit codes of a rank mean, where they mean that it skipped.
        world_size: Ranks of each test.
    """

    module: Any
    case: Any
    skip_codes: dict[int, str]
    world_size: int

    def names(self) -> list[str]:
        """Return the names of all tests."""
        return sorted(name for name in dir(self.case) if name.startswith("test_"))

    def reason_to_skip(self, name: str) -> str | None:
        """Return why upstream has switched a test off, or None."""
        function = getattr(self.case, name)
        if getattr(function, "__unittest_skip__", False):
            return str(getattr(function, "__unittest_skip_why__", "switched off upstream"))
        return None


def load_suite(mode: str, world_size: int, folder: Path) -> Suite:
    """Import the suite. Once per process: what it read can't be changed any more.

    Raises:
        UsageError: There is no such mode, or torch's tests can't be imported here.
    """
    if mode not in MODES:
        raise UsageError(f'there is no mode "{mode}"; give one of {", ".join(MODES)}')
    set_environment(
        BACKEND=_BACKENDS[mode],
        WORLD_SIZE=str(world_size),
        TEMP_DIR=str(folder),
        INIT_METHOD=f"file://{folder}/init_dir/shared",
        MASTER_ADDR="127.0.0.1",
        # Libraries that would start threads when loaded: a process with threads can't be forked.
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        MKL_NUM_THREADS="1",
    )
    import torch

    from phalanx.torch_backend.autoload import register
    from phalanx.torch_backend.dynamo import skip_own_code

    torch.set_num_threads(1)  # a process that has run a parallel operation can't be forked
    register()
    if mode == "gloo":
        from phalanx.conformance.gloo_stand_in import install

        install()
    try:
        from torch.testing._internal import common_distributed
    except ImportError as error:
        raise UsageError(f"torch's own tests need another package here: {error}; pip install expecttest") from error
    if mode == "plain":
        for feature in _FEATURES:
            common_distributed.DistTestCases.backend_feature[feature].add("phalanx")
    from torch.testing._internal.distributed import distributed_test

    skip_own_code()
    case = type(
        "TestDistBackend", (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase), {}
    )
    codes = {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
    return Suite(distributed_test, case, codes, world_size)
