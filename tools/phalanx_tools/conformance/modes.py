"""Under which name, and on which devices, phalanx meets torch's tests.

Two modes use no devices: "plain" (phalanx's own name) and "gloo". The others run on virtual GPUs, as many as ranks,
with phalanx standing in for the backend they are named after; "vgloo" is Gloo there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phalanx.errors import UsageError
from phalanx.settings import set_environment


@dataclass(frozen=True)
class Mode:
    """One way to run tests.

    Attributes:
        name: What the user calls it.
        backend: The backend's name that the tests are told.
        stands_in_for: Backends that phalanx stands in for meanwhile.
        has_gpus: Whether there are virtual GPUs.
    """

    name: str
    backend: str
    stands_in_for: tuple[Literal["nccl", "gloo", "mpi"], ...] = ()
    has_gpus: bool = False


# With GPUs, groups that a test makes under another name are ours too: nothing of the run goes through another engine.
MODES = {
    mode.name: mode
    for mode in (
        Mode("plain", "phalanx"),
        Mode("gloo", "gloo", ("gloo",)),
        Mode("nccl", "nccl", ("nccl", "gloo"), has_gpus=True),
        Mode("vgloo", "gloo", ("gloo", "nccl"), has_gpus=True),
        Mode("mpi", "mpi", ("mpi", "gloo", "nccl"), has_gpus=True),
    )
}


def find_mode(name: str) -> Mode:
    """Return a mode.

    Raises:
        UsageError: There is no such mode.
    """
    if name not in MODES:
        raise UsageError(f'there is no mode "{name}"; give one of {", ".join(MODES)}')
    return MODES[name]


def enter_mode(mode: Mode, num_gpus: int) -> None:
    """Make this process, and those it starts, ready for a mode. It must come before anything of torch.testing.

    torch.testing looks for GPUs when it is imported.

    Raises:
        UsageError: There can be no virtual GPUs, or no stand-in, here.
    """
    # Libraries that would start threads when loaded: a process with threads can't be forked.
    set_environment(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    set_environment(PYTORCH_PRINT_REPRO_ON_FAILURE="0")  # the commands it names are not there
    import torch

    from phalanx.torch_backend.autoload import register

    torch.set_num_threads(1)  # a process that has run a parallel operation can't be forked
    register()
    if mode.has_gpus:
        from phalanx.virtual_gpus.set_up import virtual_devices

        # torch skips some tests on GPUs of an older capability.
        set_environment(PHALANX_VIRTUAL_GPU="h100", PHALANX_VIRTUAL_MEMORY="16GiB")
        virtual_devices(num_gpus, face="cuda")
        set_environment(PHALANX_VIRTUAL_GPUS=str(num_gpus), PHALANX_STAND_IN=",".join(mode.stands_in_for))
    if mode.stands_in_for:
        from phalanx.stand_in import stand_in_for

        for backend in mode.stands_in_for:
            stand_in_for(backend)
