from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cuda_simulator.build import build_simulator, has_compiler, user_folder
from tests.on_simulated_gpu.launches import SimulatedGpu


@pytest.fixture(scope="session")
def own_simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the simulated driver that nobody else loads.

    A driver that was used here refuses to work in forked processes, where other tests need it.
    """
    if not has_compiler():
        pytest.skip("there is no g++, which builds the simulated CUDA driver")
    return Path(shutil.copy(build_simulator(user_folder()), tmp_path_factory.mktemp("simulator")))


@pytest.fixture(scope="session")
def simulated_gpu(own_simulator: Path) -> SimulatedGpu:
    return SimulatedGpu(own_simulator)


@pytest.fixture
def gpu(simulated_gpu: SimulatedGpu) -> Iterator[SimulatedGpu]:
    """Lend the simulated GPU; its memory is empty after the test."""
    yield simulated_gpu
    simulated_gpu.free_all()
    assert simulated_gpu.driver.sim_bytes_in_use() == 0
