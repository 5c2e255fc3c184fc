"""DDP's hooks for bfloat16, which torch registers only where it was built with CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from phalanx.stand_in.names import ReplacedNames

_FOR_BFLOAT16 = ("bf16_compress_hook", "bf16_compress_wrapper_hook")


def allow_bfloat16(names: ReplacedNames) -> None:
    """Have DDP take them: virtual GPUs add up bfloat16 whatever torch was built with."""
    check: Callable[[Any, Any], None] = DistributedDataParallel._check_comm_hook

    def check_comm_hook(self: Any, hook: Any) -> None:
        check(self, _renamed(hook) if getattr(hook, "__name__", "") in _FOR_BFLOAT16 else hook)

    names.attribute(DistributedDataParallel, "_check_comm_hook", check_comm_hook)


def _renamed(hook: Any) -> Callable[..., Any]:
    """Return what has the signature of the hook, and not the name by which torch knows that it needs CUDA."""

    def checked_hook(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    checked_hook.__wrapped__ = hook  # type: ignore[attr-defined]  # where inspect.signature() looks
    return checked_hook
