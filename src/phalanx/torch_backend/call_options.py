"""The options of a call, in whichever of torch's forms the caller has given them.

torch passes an options object; users of `_dist2` pass `op=`, `root=` and `timeout=`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

from phalanx.collectives import ReduceOp, Reduction
from phalanx.errors import UsageError
from phalanx.torch_backend.untyped import dist, native

_TORCH_OPS: Any = dist.ReduceOp.RedOpType
# The keys are numbers, because torch's enumeration is slow to hash.
_OPS: dict[int, ReduceOp] = {
    int(getattr(_TORCH_OPS, name)): ReduceOp[name]
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
_PREMUL_SUM = int(_TORCH_OPS.PREMUL_SUM)
_SHORT_FORMS = (dist.ReduceOp, _TORCH_OPS)
# To ask an object for an attribute that it does not have takes a microsecond.
_WITH_OP = {
    native.AllreduceOptions,
    native.AllreduceCoalescedOptions,
    native.ReduceOptions,
    native.ReduceScatterOptions,
}
_WITH_ROOT = {native.BroadcastOptions, native.ReduceOptions, native.GatherOptions, native.ScatterOptions}
_TORCH_SUM = dist.ReduceOp.SUM
_UNSET = timedelta(0)


class CallOptions(NamedTuple):
    """The options of one call, under phalanx's names."""

    op: Reduction
    root: int
    timeout_s: float | None
    is_async: bool


PLAIN, PLAIN_BEHIND = (CallOptions(ReduceOp.SUM, 0, None, is_async) for is_async in (False, True))


def read_options(given: Any, op: Any = None, root: int | None = None, timeout: timedelta | None = None) -> CallOptions:
    """Read torch's options object, or the short form.

    Raises:
        UsageError: The reduction is not one of torch's.
    """
    kind = type(given)
    if kind in _WITH_OP:
        op = given.reduceOp if op is None else op
    elif given is None or kind in _SHORT_FORMS:  # the reduction may be given by position
        return CallOptions(read_op(given if op is None else op), root or 0, read_timeout(timeout), True)
    if root is None and kind in _WITH_ROOT:
        root = given.rootRank
    seconds = read_timeout(given.timeout if timeout is None else timeout)
    if (op is None or op == _TORCH_SUM) and not root and seconds is None:
        return PLAIN_BEHIND if given.asyncOp else PLAIN
    return CallOptions(read_op(op), root or 0, seconds, given.asyncOp)


def read_op(op: Any) -> Reduction:
    """Translate torch's ReduceOp.

    Raises:
        UsageError: It is not one of torch's.
    """
    if op is None:
        return ReduceOp.SUM
    kind = getattr(op, "op", op)  # ReduceOp.SUM is the kind itself; an options object holds a wrapper of it
    number = int(kind) if isinstance(kind, _TORCH_OPS) else -1
    if number in _OPS:
        return _OPS[number]
    if number == _PREMUL_SUM:
        return ReduceOp.premul_sum(op.__getstate__()[1])
    raise UsageError(f"the reduction {op} is not known; give one of torch.distributed.ReduceOp")


def read_timeout(timeout: timedelta | None) -> float | None:
    """Return seconds; None if no timeout is given, for which torch passes None, zero or a negative time."""
    return None if timeout is None or timeout <= _UNSET else timeout.total_seconds()
