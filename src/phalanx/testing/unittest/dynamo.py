"""Test cases for compiled code on one rank and on several, with torch's compiler reset around each test.

It is separate from the other modules because torch's compiler takes a second to load.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.test_case
import torch._dynamo.utils

from phalanx.launch.context import current_context
from phalanx.settings import set_environment, set_environment_defaults
from phalanx.testing.unittest.distributed_base import DistributedTestBase
from phalanx.testing.unittest.torch_case import common_utils
from phalanx.torch_backend.untyped import dist

_CompilerTestCase: Any = torch._dynamo.test_case.TestCase


def _accelerator() -> str:
    found = torch.accelerator.current_accelerator()
    return "cpu" if found is None else found.type


@contextmanager
def _dynamo_dist_per_rank_init(
    rank: int, world_size: int, backend: str | None = None, init_pg: bool = True, fake_pg: bool = False
) -> Iterator[None]:
    """Prepare a rank: choose its device, make the default process group, reset the compiler before and after."""
    device = _accelerator()
    if not fake_pg and device != "cpu":
        torch.accelerator.set_device_index(rank)
    set_environment_defaults(MASTER_ADDR="localhost", MASTER_PORT="6789")
    if init_pg and fake_pg:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    elif init_pg:
        name = backend or dist.get_default_backend_for_device(device)
        dist.init_process_group(name, rank=rank, world_size=world_size, **_meeting())
    _reset_compiler()
    try:
        yield
    finally:
        _reset_compiler()
        if init_pg:
            dist.destroy_process_group()


def _meeting() -> dict[str, str]:
    """Return variables for a file that only the ranks of this test use; another test could use the same port."""
    context = current_context()
    if context is None:
        return {}
    place = Path(tempfile.gettempdir()) / f"phalanx-{context.meeting.rpartition(' ')[2]}"
    return {"init_method": f"file://{place}"}


def _reset_compiler() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class DynamoDistributedSingleProcTestCase(_CompilerTestCase):  # type: ignore[misc]
    """One rank in this process, with a process group for the whole class."""

    rank = 0
    device: str
    device_ids: list[int] | None

    @classmethod
    def setUpClass(cls) -> None:
        """Make the group."""
        super().setUpClass()
        set_environment(MASTER_ADDR="localhost", MASTER_PORT=str(common_utils.find_free_port()))
        cls.device = f"{_accelerator()}:{cls.rank}"
        cls.device_ids = None
        backend = dist.get_default_backend_for_device(_accelerator())
        dist.init_process_group(backend, rank=cls.rank, world_size=1)

    @classmethod
    def tearDownClass(cls) -> None:
        """Destroy it."""
        dist.destroy_process_group()
        super().tearDownClass()


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """One rank per accelerator; a test prepares its rank with _dynamo_dist_per_rank_init()."""

    @property
    def world_size(self) -> int:
        """How many ranks a test gets."""
        return torch.accelerator.device_count()

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        from torch._logging._internal import trace_log

        trace_log.addHandler(logging.NullHandler())
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)
