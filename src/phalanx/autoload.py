"""What `import torch` runs when the environment asks for virtual GPUs or for a backend to be stood in for.

Registered as an entry point of the group "torch.backends", under the name of the variable: torch names the entry point
when it fails. Keep it small: every `import torch` in an environment with phalanx pays for it.
"""

from __future__ import annotations

from phalanx import settings


def set_up_from_environment() -> None:
    """Set up what PHALANX_VIRTUAL_GPUS and PHALANX_STAND_IN say; nothing when they say nothing.

    Raises:
        UsageError: A variable makes no sense, or this process can't have virtual GPUs.
        BuildError: The library of virtual devices can't be built on this machine.
    """
    num_devices, names = settings.virtual_gpus(), settings.stood_in_for()
    if num_devices:
        from phalanx.devices.set_up import virtual_devices

        virtual_devices(num_devices, face="cuda")
    if names:
        from phalanx.stand_in import stand_in_for

        for name in names:
            stand_in_for(name)
