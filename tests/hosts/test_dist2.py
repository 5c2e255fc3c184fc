"""The Gloo tests of PyTorch's test_dist2.py, with the two ranks on two hosts; PYTORCH_TESTS says where the file is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from phalanx.settings import copy_environment
from tests.hosts.bed import Bed, hosts, needs_hosts
from tests.hosts.jobs import HostsJob, phalanx_run

_SOURCES = copy_environment().get("PYTORCH_TESTS")
_PROGRAM = str(Path(__file__).with_name("dist2_on_ranks.py"))
_TESTS = (
    "allreduce", "barrier", "broadcast", "allgather", "gather", "scatter", "reduce", "reduce_scatter", "alltoall_base",
    "group_split", "remote_group_merge",
)  # fmt: skip
_REFUSED = {"remote_group_merge": "UsageError: this rank is on another host than rank 0"}

pytestmark = [
    needs_hosts,
    pytest.mark.slow,
    pytest.mark.skipif(_SOURCES is None, reason="PYTORCH_TESTS does not say where PyTorch's sources are"),
]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with hosts(2) as made:
        yield made


@pytest.mark.parametrize("name", _TESTS)
def test_dist2_passes_over_two_hosts(name: str, bed: Bed) -> None:
    file = next(Path(_SOURCES or "").rglob("test_dist2.py"))
    program = [_PROGRAM, str(file), f"test_{name}"]
    with HostsJob(bed, program, (1, 1), ["--stand-in", "gloo"], command=partial(phalanx_run, port=29400)) as job:
        codes = job.wait(120)
        output = "".join(launcher.output for launcher in job.launchers)
    if name in _REFUSED:
        assert codes != [0, 0]
        assert re.search(_REFUSED[name], output), output
    else:
        assert codes == [0, 0], output
        assert sorted(re.findall(r"rank (\d) has passed", output)) == ["0", "1"], output
