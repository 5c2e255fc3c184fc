"""DDP's hooks for bfloat16, which torch accepts only if it is built with CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.patches import Patches

_FOR_BFLOAT16 = ("bf16_compress_hook", "bf16_compress_wrapper_hook")


def allow_bfloat16(patches: Patches) -> None:
    """Make DDP accept them, because virtual GPUs can add bfloat16 with any build of torch."""

    def with_bfloat16(check: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def check_comm_hook(self: Any, hook: Any) -> None:
            check(self, _renamed(hook) if getattr(hook, "__name__", "") in _FOR_BFLOAT16 else hook)

        return check_comm_hook

    why = "DDP refuses hooks for bfloat16 on a torch without CUDA"
    patches.wrap(["torch.nn.parallel.DistributedDataParallel._check_comm_hook"], with_bfloat16, why)


def _renamed(hook: Any) -> Callable[..., Any]:
    """Return a function with the hook's signature but another name, because torch checks for CUDA by name."""

    def checked_hook(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    checked_hook.__wrapped__ = hook  # type: ignore[attr-defined]  # where inspect.signature() looks
    return checked_hook
