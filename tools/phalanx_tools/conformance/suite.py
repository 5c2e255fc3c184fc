"""torch's distributed_test, loaded for one mode and one world size. It reads both from the environment, at import."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.errors import UsageError
from phalanx.settings import set_environment
from phalanx_tools.conformance import marks
from phalanx_tools.conformance.compiled import CompileWatch
from phalanx_tools.conformance.modes import Mode, enter_mode
from phalanx_tools.conformance.torchvision_models import make_importable
from phalanx_tools.conformance.upstream_flaws import cure_decorators, cure_suite

_FEATURES = ("ddp", "subgroup", "plugin")


@dataclass(frozen=True)
class Suite:
    """The loaded suite.

    Attributes:
        mode: How it was loaded.
        module: torch.testing._internal.distributed.distributed_test.
        case: Its test class, complete.
        skip_codes: What exit codes of a rank mean, where they mean that it skipped.
        world_size: Ranks of each test.
        compile_watch: Knows whether a rank has compiled.
        models: What keeps torchvision's models alive.
    """

    mode: Mode
    module: Any
    case: Any
    skip_codes: dict[int, str]
    world_size: int
    compile_watch: CompileWatch
    models: object

    def names(self) -> list[str]:
        """Return the names of all tests."""
        return sorted(name for name in dir(self.case) if name.startswith("test_"))

    def reason_to_skip(self, name: str) -> str | None:
        """Return why upstream skips a test, or None."""
        return marks.reason_to_skip(getattr(self.case, name))

    def switch_on(self) -> list[str]:
        """Remove the marks of tests that upstream has switched off everywhere, and return their names."""
        names = [name for name in self.names() if marks.is_switched_off(getattr(self.case, name))]
        for name in names:
            setattr(self.case, name, marks.without_marks(getattr(self.case, name)))
        return names


def load_suite(mode: Mode, world_size: int, folder: Path) -> Suite:
    """Import the suite. Once per process: what it read can't be changed any more.

    Raises:
        UsageError: torch's tests can't be imported here, or the mode is not possible.
    """
    set_environment(
        BACKEND=mode.backend,
        WORLD_SIZE=str(world_size),
        TEMP_DIR=str(folder),
        INIT_METHOD=f"file://{folder}/init_dir/shared",
        MASTER_ADDR="127.0.0.1",
    )
    enter_mode(mode, world_size)
    from phalanx.torch_backend.torch_functions import skip_own_code

    common = import_common_distributed()
    if mode.name == "plain":
        for feature in _FEATURES:
            common.DistTestCases.backend_feature[feature].add("phalanx")
    cure_decorators(common, mode.backend, world_size)
    models = make_importable()
    distributed_test: Any = importlib.import_module("torch.testing._internal.distributed.distributed_test")
    skip_own_code()
    cure_suite(distributed_test)
    # Tests ask for it again, to add a ResNet-50 that takes minutes on a CPU. The one that needs it is admitted by now.
    distributed_test.HAS_TORCHVISION = False
    case = type(
        "TestDistBackend", (distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase), {}
    )
    watch = CompileWatch()
    watch.install()
    return Suite(mode, distributed_test, case, skip_codes(common), world_size, watch, models)


def import_common_distributed() -> Any:
    """Return the module that all of torch's distributed tests use.

    Raises:
        UsageError: It needs a package that is not here.
    """
    try:
        from torch.testing._internal import common_distributed
    except ImportError as error:
        raise UsageError(f"torch's own tests need another package here: {error}; pip install expecttest") from error
    return common_distributed


def skip_codes(common_distributed: ModuleType | Any) -> dict[int, str]:
    """Return what exit codes of a rank mean, where they mean that it skipped."""
    return {skip.exit_code: skip.message for skip in common_distributed.TEST_SKIPS.values()}
