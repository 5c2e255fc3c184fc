"""How long a test may take."""

from __future__ import annotations

from phalanx.settings import copy_environment
from phalanx.testing.unittest.torch_case import TEST_WITH_ROCM, TEST_WITH_TSAN

TIMEOUT_DEFAULT = 500 if TEST_WITH_TSAN else int(copy_environment().get("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "300"))
TIMEOUT_OVERRIDE = {"test_ddp_uneven_inputs": 400, "test_DistributedDataParallel": 500}
if TEST_WITH_ROCM:
    TIMEOUT_OVERRIDE["test_join_kwargs"] = 200


def get_timeout(test_id: str) -> int:
    """Return the seconds for a test, given its id."""
    return TIMEOUT_OVERRIDE.get(test_id.rpartition(".")[2], TIMEOUT_DEFAULT)
