"""Skips that are decided when the test is defined: by the features of torch's build, and by the machine."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from phalanx.testing.unittest.hardware import ACCELERATOR_DIST_BACKENDS, rocm_arch
from phalanx.testing.unittest.skip_codes import TEST_SKIPS
from phalanx.testing.unittest.torch_case import TEST_CUDA, TEST_HPU, TEST_WITH_ROCM, common_utils
from phalanx.torch_backend.untyped import autograd, dist, native

Test = TypeVar("Test", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]


def _skip_if(condition: bool, reason: str) -> Decorator:
    decorator: Decorator = common_utils.skip_but_pass_in_sandcastle_if(condition, reason)
    return decorator


def _requires(is_there: bool, name: str) -> Decorator:
    return _skip_if(not is_there, f"c10d was not compiled with the {name} backend")


def requires_gloo() -> Decorator:
    """Skip where torch has no Gloo."""
    return _requires(dist.is_gloo_available(), "Gloo")


def requires_nccl() -> Decorator:
    """Skip where torch has no NCCL."""
    return _requires(dist.is_nccl_available(), "NCCL")


def requires_ucc() -> Decorator:
    """Skip where torch has no UCC."""
    return _requires(dist.is_ucc_available(), "UCC")


def requires_mpi() -> Decorator:
    """Skip where torch has no MPI."""
    return _requires(dist.is_mpi_available(), "MPI")


def requires_nccl_version(version: tuple[int, ...], msg: str) -> Decorator:
    """Skip where NCCL is older; do nothing without CUDA."""
    if not TEST_CUDA:
        return lambda test: test
    if not dist.is_nccl_available():
        return requires_nccl()
    found = torch.cuda.nccl.version()
    text = f"Requires NCCL version greater than or equal to: {version}, found: {found}, reason: {msg}"
    return _skip_if(found < version, text)


def requires_nccl_shrink() -> Decorator:
    """Skip where NCCL can't shrink groups."""
    return requires_nccl_version((2, 27), "Need NCCL 2.27+ for shrink_group")


def requires_accelerator_dist_backend(backends: Sequence[str] | None = None) -> Decorator:
    """Skip if torch has none of these backends; the default is those of accelerators."""
    names = ACCELERATOR_DIST_BACKENDS if backends is None else list(backends)
    is_there = {"nccl": dist.is_nccl_available(), "xccl": dist.is_xccl_available(), "hccl": TEST_HPU}
    return _skip_if(
        not any(is_there.get(name, False) for name in names),
        f"No accelerator communication backend available among {names}",
    )


def requires_multicast_support() -> Decorator:
    """Skip where GPUs have no multicast memory."""
    has_it = torch.cuda.is_available() and native._SymmetricMemory.has_multicast_support(autograd.DeviceType.CUDA, 0)
    return _skip_if(not has_it, "multicast support is not available")


def skip_if_win32() -> Decorator:
    """Skip on Windows, where phalanx does not run anyway."""
    return _skip_if(sys.platform == "win32", "This unit test case is not supported on Windows platform")


def skip_if_rocm_multiprocess(func: Test) -> Test:
    """Skip on ROCm."""
    return unittest.skipIf(TEST_WITH_ROCM, TEST_SKIPS["skipIfRocm"].message)(func)


def skip_if_rocm_arch_multiprocess(arch: Sequence[str]) -> Callable[[Test], Test]:
    """Skip on these ROCm architectures."""
    is_one = TEST_WITH_ROCM and rocm_arch().split(":")[0] in arch
    return unittest.skipIf(is_one, f"skip_if_rocm_arch_multiprocess: test skipped on {arch}")


def skip_if_rocm_ver_lessthan_multiprocess(version: Sequence[int] | None = None) -> Callable[[Test], Test]:
    """Skip on an older ROCm; on any when no version is given."""
    if not TEST_WITH_ROCM:
        return unittest.skipIf(False, "")
    found = tuple(int(part) for part in str(torch.version.hip).split("-", maxsplit=1)[0].split("."))
    return unittest.skipIf(
        version is None or found < tuple(version),
        f"skip_if_rocm_ver_lessthan_multiprocess: ROCm {found} is available but {version} required",
    )
