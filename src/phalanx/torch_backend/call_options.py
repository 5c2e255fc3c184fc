"""What a caller asked for, whichever of torch's ways it used to say so.

torch passes an options object; users of `_dist2` pass `op=`, `root=` and `timeout=`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from phalanx.collectives import AnyReduceOp, ReduceOp
from phalanx.errors import UsageError

_TORCH_OPS = dist.ReduceOp.RedOpType
_OPS: dict[Any, ReduceOp] = {
    _TORCH_OPS.SUM: ReduceOp.SUM,
    _TORCH_OPS.AVG: ReduceOp.AVG,
    _TORCH_OPS.PRODUCT: ReduceOp.PRODUCT,
    _TORCH_OPS.MIN: ReduceOp.MIN,
    _TORCH_OPS.MAX: ReduceOp.MAX,
    _TORCH_OPS.BAND: ReduceOp.BAND,
    _TORCH_OPS.BOR: ReduceOp.BOR,
    _TORCH_OPS.BXOR: ReduceOp.BXOR,
}
_UNSET = timedelta(0)


class CallOptions(NamedTuple):
    """One call's options, in our words."""

    op: AnyReduceOp
    root: int
    timeout_s: float | None
    is_async: bool


def read_options(given: Any, op: Any = None, root: int | None = None, timeout: timedelta | None = None) -> CallOptions:
    """Read torch's options object, or the short form.

    Raises:
        UsageError: The reduction is not one of torch's.
    """
    if given is None:
        return CallOptions(read_op(op), root or 0, read_timeout(timeout), True)
    if isinstance(given, (dist.ReduceOp, _TORCH_OPS)):  # the short form, by position
        return CallOptions(read_op(given), root or 0, read_timeout(timeout), True)
    return CallOptions(
        read_op(getattr(given, "reduceOp", None) if op is None else op),
        getattr(given, "rootRank", 0) if root is None else root,
        read_timeout(given.timeout if timeout is None else timeout),
        given.asyncOp,
    )


def read_op(op: Any) -> AnyReduceOp:
    """Translate torch's ReduceOp.

    Raises:
        UsageError: It is not one of torch's.
    """
    if op is None:
        return ReduceOp.SUM
    kind = getattr(op, "op", op)  # ReduceOp.SUM is the bare kind; an option holds an object around it
    if kind in _OPS:
        return _OPS[kind]
    if kind == _TORCH_OPS.PREMUL_SUM:
        factor = op.__getstate__()[1]
        return ReduceOp.premul_sum(float(factor))
    raise UsageError(f"the reduction {op} is not known; give one of torch.distributed.ReduceOp")


def read_timeout(timeout: timedelta | None) -> float | None:
    """Return seconds; None for torch's ways to say "not given", which are None, zero and less."""
    return None if timeout is None or timeout <= _UNSET else timeout.total_seconds()
