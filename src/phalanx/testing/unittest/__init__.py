"""torch's private classes for tests on several ranks, under their names, on phalanx's ranks.

    from phalanx.testing.unittest import MultiProcessTestCase, skip_if_lt_x_gpu

A suite only has to import from here instead of from torch.testing._internal.common_distributed.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from phalanx.testing.unittest import environment
from phalanx.testing.unittest.completion_queue import retrieve_result_from_completion_queue
from phalanx.testing.unittest.continuous import MultiProcContinuousTest
from phalanx.testing.unittest.ddp_log import verify_ddp_error_logged
from phalanx.testing.unittest.dist_cases import DistTestCases
from phalanx.testing.unittest.distributed_base import DistributedTestBase
from phalanx.testing.unittest.environment import (
    captured_output,
    cleanup_temp_dir,
    initialize_temp_directories,
    with_dist_debug_levels,
    with_nccl_blocking_wait,
)
from phalanx.testing.unittest.hardware import (
    ACCELERATOR_DIST_BACKENDS,
    DDP_RANK_DEVICES,
    HAS_ACCELERATOR,
    PLATFORM_SUPPORTS_SYMM_MEM,
    at_least_x_gpu,
    evaluate_platform_supports_symm_mem,
    has_efa,
    init_multigpu_helper,
    requires_ddp_rank,
    sm_is_or_higher_than,
    tp_transports,
)
from phalanx.testing.unittest.multi_process import MultiProcessTestCase
from phalanx.testing.unittest.multi_thread import MultiThreadedTestCase
from phalanx.testing.unittest.requirements import (
    requires_accelerator_dist_backend,
    requires_gloo,
    requires_mpi,
    requires_multicast_support,
    requires_nccl,
    requires_nccl_shrink,
    requires_nccl_version,
    requires_ucc,
    skip_if_rocm_arch_multiprocess,
    skip_if_rocm_multiprocess,
    skip_if_rocm_ver_lessthan_multiprocess,
    skip_if_win32,
)
from phalanx.testing.unittest.saved_inputs import SaveForwardInputsModel, SaveForwardInputsModule
from phalanx.testing.unittest.skip_codes import TEST_SKIPS, TestSkip
from phalanx.testing.unittest.skips import (
    _maybe_handle_skip_if_lt_x_gpu,
    import_transformers_or_skip,
    nccl_skip_if_lt_x_gpu,
    require_n_gpus_for_nccl_backend,
    skip_if_lt_x_gpu,
    skip_if_no_gpu,
    skip_if_odd_worldsize,
    skip_if_small_worldsize,
)
from phalanx.testing.unittest.sparse_cases import simple_sparse_reduce_tests
from phalanx.testing.unittest.stores import create_device, create_tcp_store
from phalanx.testing.unittest.subtests import run_subtests
from phalanx.testing.unittest.thread_team import spawn_threads_and_init_comms
from phalanx.testing.unittest.timeouts import TIMEOUT_DEFAULT, TIMEOUT_OVERRIDE, get_timeout
from phalanx.testing.unittest.torch_place import REPLACED, take_torchs_place
from phalanx.testing.unittest.world_sizes import DEFAULT_WORLD_SIZE, get_required_world_size, requires_world_size

if TYPE_CHECKING:
    from phalanx.testing.unittest.dynamo import (
        DynamoDistributedMultiProcTestCase,
        DynamoDistributedSingleProcTestCase,
        _dynamo_dist_per_rank_init,
    )

_COMPILER_NAMES = (
    "DynamoDistributedMultiProcTestCase",
    "DynamoDistributedSingleProcTestCase",
    "_dynamo_dist_per_rank_init",
)

__all__ = [
    "ACCELERATOR_DIST_BACKENDS",
    "DDP_RANK_DEVICES",
    "DEFAULT_WORLD_SIZE",
    "HAS_ACCELERATOR",
    "PLATFORM_SUPPORTS_SYMM_MEM",
    "TEST_SKIPS",
    "TIMEOUT_DEFAULT",
    "TIMEOUT_OVERRIDE",
    "DistTestCases",
    "DistributedTestBase",
    "DynamoDistributedMultiProcTestCase",
    "DynamoDistributedSingleProcTestCase",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "SaveForwardInputsModel",
    "SaveForwardInputsModule",
    "TestSkip",
    "_dynamo_dist_per_rank_init",
    "_maybe_handle_skip_if_lt_x_gpu",
    "at_least_x_gpu",
    "captured_output",
    "cleanup_temp_dir",
    "create_device",
    "create_tcp_store",
    "evaluate_platform_supports_symm_mem",
    "get_required_world_size",
    "get_timeout",
    "has_efa",
    "import_transformers_or_skip",
    "init_multigpu_helper",
    "initialize_temp_directories",
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
    "requires_accelerator_dist_backend",
    "requires_ddp_rank",
    "requires_gloo",
    "requires_mpi",
    "requires_multicast_support",
    "requires_nccl",
    "requires_nccl_shrink",
    "requires_nccl_version",
    "requires_ucc",
    "requires_world_size",
    "retrieve_result_from_completion_queue",
    "run_subtests",
    "simple_sparse_reduce_tests",
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "skip_if_odd_worldsize",
    "skip_if_rocm_arch_multiprocess",
    "skip_if_rocm_multiprocess",
    "skip_if_rocm_ver_lessthan_multiprocess",
    "skip_if_small_worldsize",
    "skip_if_win32",
    "sm_is_or_higher_than",
    "spawn_threads_and_init_comms",
    "take_torchs_place",
    "tp_transports",
    "verify_ddp_error_logged",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
]


def __getattr__(name: str) -> Any:
    """Find names that are not loaded yet, whose values change, or that are torch's own."""
    if name in _COMPILER_NAMES:
        return getattr(importlib.import_module("phalanx.testing.unittest.dynamo"), name)
    if name == "tmp_dir":
        return environment.tmp_dir
    if not name.startswith("__"):
        for module in ("torch.testing._internal.common_utils", REPLACED):
            found = importlib.import_module(module)
            if found is not sys.modules[__name__] and hasattr(found, name):
                return getattr(found, name)
    raise AttributeError(f"module 'phalanx.testing.unittest' has no attribute '{name}'")
