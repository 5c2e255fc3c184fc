"""Set up virtual GPUs and stand-ins when `import torch` runs, if the environment asks for them.

It is registered as an entry point of the group "torch.backends". Keep it small: every `import torch` in an environment
with phalanx waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from phalanx import settings
from phalanx.errors import PhalanxError


class EnvironmentRefused(BaseException):
    """What the environment asks of `import torch` can't be done. `__cause__` has the PhalanxError.

    Not an Exception: of those torch shows its own advice last, to switch all extensions off, and programs that can do
    without torch would go on as if nothing had been asked for.
    """


def set_up_from_environment() -> None:
    """Set up what PHALANX_VIRTUAL_GPUS and PHALANX_STAND_IN say; nothing when they say nothing.

    Raises:
        EnvironmentRefused: A variable makes no sense, this process can't have virtual GPUs, or their library can't be
            built on this machine.
    """
    variable = ""
    try:
        for variable, step in _steps():  # noqa: B007
            step()
    except PhalanxError as error:
        raise EnvironmentRefused(f"{variable}{error}") from error


def set_up_rank() -> None:
    """Do the same in a rank that was forked from a process which had imported torch without these variables.

    Raises:
        PhalanxError: A variable makes no sense, this process can't have virtual GPUs, or their library can't be built.
    """
    for _, step in _steps():
        step()


def _steps() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what the environment asks for: each variable, and what it does."""
    num_devices, names = settings.virtual_gpus(), settings.stood_in_for()
    if num_devices:
        # Here, and below: most programs do not ask for it, and should not wait for these imports.
        from phalanx.virtual_gpus.set_up import virtual_devices

        yield f"PHALANX_VIRTUAL_GPUS={num_devices}: ", partial(virtual_devices, num_devices, face="cuda")
    if names:
        # As above.
        from phalanx.stand_in import stand_in_for

        for name in names:
            yield f"PHALANX_STAND_IN={name}: ", partial(stand_in_for, name)
