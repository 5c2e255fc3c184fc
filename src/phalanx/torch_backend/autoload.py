"""What `import torch` runs: it tells torch the backend's name. The rest is loaded when a group is made.

It is an entry point of the group "torch.backends", so a program can call init_process_group("phalanx") without an
import. Keep it small: it runs in every `import torch` of an environment that has phalanx.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from phalanx import patches, settings
from phalanx.torch_backend import NAME


def register() -> None:
    """Make "phalanx" a backend of torch.distributed. Calling it again does nothing."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or NAME.upper() in dist.Backend._plugins:
        return
    # A string instead of a list would register the devices "c", "p" and "u".
    # NCCL stays torch's default for real GPUs. Virtual ones are added when they are set up.
    devices = ["cpu"] if torch.version.cuda is None else ["cpu", "cuda"]
    why = 'init_process_group("phalanx") works without an import'
    register_backend(NAME, _create, devices, "torch is imported", why)
    _serve_env_rendezvous()
    _advise_without_gpus()


def register_backend(name: str, create: Callable[..., Any], devices: list[str], when: str, why: str) -> None:
    """Register a backend with torch's own function, and record that as a patch."""
    import torch.distributed as dist

    dist.Backend.register_backend(name, create, extended_api=True, devices=devices)
    registration = patches.Patches(when, undo="never: torch has no function that removes a backend")
    registration.note(f"torch.distributed.Backend.{name.upper()}", _nothing, why)


def _serve_env_rendezvous() -> None:
    """Let init_method env:// read what launchers say.

    torch has no function that replaces a method.
    """
    handlers = "torch.distributed.rendezvous._rendezvous_handlers"
    torchs_own: Callable[..., Iterator[Any]] = patches.find(handlers)["env"]

    def meet(url: str, timeout: timedelta = timedelta(minutes=30), **options: Any) -> Iterator[Any]:
        if settings.private_store() is None:
            from phalanx.torch_backend.other_launchers import complete_url

            return torchs_own(complete_url(url), timeout=timeout, **options)
        from phalanx.torch_backend.private_store import meet_through_environment

        return meet_through_environment(url, timeout)

    why = "init_method env:// finds the store of phalanx's launcher, and the ranks of mpiexec and srun"
    patches.Patches("torch is imported").set_item(handlers, "env", meet, why)


def _advise_without_gpus() -> None:
    """Let init_process_group("nccl") say what to do where there is no GPU."""
    why = 'init_process_group("nccl") says what to do where there is no GPU'
    make_group = "torch.distributed.distributed_c10d._new_process_group_helper"
    patches.Patches("torch is imported").wrap([make_group], advising, why)


def advising(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's function that makes a group, so that its errors say what to do without a GPU."""

    @functools.wraps(make)
    def make_or_advise(*args: Any, **kwargs: Any) -> Any:
        try:
            return make(*args, **kwargs)
        except Exception as error:
            from phalanx.launch.context import current_context
            from phalanx.real_gpus.advice import advise

            context = current_context()
            if context is None:  # the ranks are torchrun's or the program's own, and the first group has all of them
                advise(error, args[0] if args else kwargs["group_size"])
            else:
                advise(error, context.size, context.started_by)
            raise

    return make_or_advise


def register_for_dist2() -> None:
    """Make "phalanx" a backend of torch's object-oriented API too (torch.distributed._dist2)."""
    from torch.distributed import _dist2

    if NAME not in _dist2._BACKENDS:
        _dist2.register_backend(NAME, _create_for_dist2)


def _nothing() -> None:
    """Do nothing: torch can't remove a backend."""


def _create(options: Any, backend_options: Any) -> Any:
    from phalanx.torch_backend.creation import create

    return create(options, backend_options)


def _create_for_dist2(store: Any, rank: int, world_size: int, timeout: Any, device: Any, **options: Any) -> Any:
    from phalanx.torch_backend.creation import create_for_dist2

    return create_for_dist2(store, rank, world_size, timeout, device, **options)
