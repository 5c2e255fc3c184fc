"""Assertions over all ranks: every rank takes part, and if one fails, all fail with the same message.

They use a separate group, so they work even if the test's groups are broken, and do not interfere with its calls.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from phalanx.collectives import LocalGroup
from phalanx.diagnosis import formatting
from phalanx.engine import create_group_segment
from phalanx.errors import PeerError, UsageError
from phalanx.launch.context import LaunchContext, current_context
from phalanx.launch.meeting import Gathering, MeetingResult, meet

_SHOWN_CHARACTERS = 200
_LONGEST_S = 600.0  # the test's own limit comes first


def assert_same_on_ranks(value: Any, what: str = "the value") -> None:
    """Check that every rank passes the same value: tensors bit by bit, anything else by ==.

    Args:
        value: The value of this rank.
        what: The name of the value in the error.

    Raises:
        AssertionError: The values differ; the text says on which ranks, and how.
    """
    __tracebackhide__ = True
    values = _gather(_comparable(value))
    classes: list[tuple[Any, list[int]]] = []
    for rank, its in values.items():
        for known, ranks in classes:
            if _is_same(known, its):
                ranks.append(rank)
                break
        else:
            classes.append((its, [rank]))
    if len(classes) > 1:
        raise AssertionError(_describe_difference(what, classes))


@contextlib.contextmanager
def assert_ranks_raise(
    error: type[BaseException] | tuple[type[BaseException], ...],
    *,
    match: str | None = None,
    on: int | Iterable[int] | None = None,
) -> Iterator[None]:
    """Check that the block raises on these ranks and on no other rank.

    Args:
        error: The exception that it must raise.
        match: A regular expression that the text of the exception must contain.
        on: The ranks that must raise. The default is all ranks.

    Raises:
        AssertionError: A rank did something else; the text says which rank, and what it raised.
    """
    __tracebackhide__ = True
    caught: Exception | None = None
    try:
        yield
    except Exception as raised:
        caught = raised
    size = _context().size
    expected = set(range(size)) if on is None else set(_listed(on, size))
    kinds = error if isinstance(error, tuple) else (error,)
    is_right = isinstance(caught, kinds) and (match is None or re.search(match, str(caught)) is not None)
    found = "nothing" if caught is None else f"{type(caught).__name__}: {(str(caught).splitlines() or [''])[0]}"
    outcomes = _gather((is_right if _context().rank in expected else caught is None, found))
    if all(fine for fine, _ in outcomes.values()):
        return
    by_text: dict[str, list[int]] = {}
    for rank, (fine, text) in outcomes.items():
        if not fine:
            by_text.setdefault(text, []).append(rank)
    wanted = " or ".join(kind.__name__ for kind in kinds) + (f" matching {match!r}" if match else "")
    lines = "".join(f"\n  {formatting.rank_list(ranks)} raised {text}" for text, ranks in by_text.items())
    failure = AssertionError(f"expected {wanted} on {formatting.rank_list(expected)} and nowhere else{lines}")
    raise failure from caught


def expect_on(rank: int | Iterable[int], value: Any, expected: Any = True) -> None:
    """Check a value on some ranks. If it is wrong on one of them, the test fails on all ranks.

    Args:
        rank: The rank or ranks that check their value.
        value: The value of this rank. It is ignored on other ranks.
        expected: The value that it must be equal to.

    Raises:
        AssertionError: A value differs; the text says on which rank.
    """
    __tracebackhide__ = True
    context = _context()
    ranks = _listed(rank, context.size)
    is_fine = context.rank not in ranks or _is_same(value, expected)
    problem = "" if is_fine else f"got {_shown(value)}, expected {_shown(expected)}"
    failures = {number: text for number, text in _gather(problem).items() if text}
    if failures:
        raise AssertionError("; ".join(f"rank {number}: {text}" for number, text in failures.items()))


def _context() -> LaunchContext:
    context = current_context()
    if context is None:
        raise UsageError("this assertion is for ranks: call it inside a test marked with @pytest.mark.ranks")
    return context


def _gather(value: Any) -> dict[int, Any]:
    """Return the values of all ranks that are alive, over a group that only assertions use."""
    context = _context()
    for _ in range(context.size):  # each retry is without a rank that has died
        group = context.own.get("asserts")
        gone = context.ask_gone()[0] if context.ask_gone is not None else frozenset()
        if group is None or gone.intersection(group.ranks):
            group = context.own["asserts"] = _meet(context)
        try:
            return dict(zip(group.ranks, group.all_gather_object(value), strict=True))
        except PeerError:
            context.own["asserts"] = None
    raise AssertionError("ranks died one after the other while they made this assertion")


def _meet(context: LaunchContext) -> LocalGroup:
    """Make a group of all ranks that are alive."""
    from phalanx.groups.connect import attach  # imports torch, which a test without ranks may do without

    number = context.own["num_asserts"] = context.own.get("num_asserts", 0) + 1
    everybody = set(range(context.size))

    def living() -> set[int]:
        return everybody - (context.ask_gone()[0] if context.ask_gone is not None else set())

    def check() -> None:
        done = context.ask_gone()[1] if context.ask_gone is not None else frozenset()
        if done:
            raise AssertionError(
                f"{formatting.rank_list(done)} finished the test without this assertion, for which "
                f"rank {context.rank} waits; every rank must make it"
            )

    gathering = Gathering(
        name=f"assertion|{context.meeting}#asserts{number}",
        is_complete=lambda cards: len(cards) == context.size or set(cards) >= living(),
        order=sorted,
        create=lambda cards: create_group_segment("assertions", len(cards), crowd=context.size),
        describe_missing=lambda cards: f"{formatting.rank_list(living() - set(cards))} did not make this assertion",
        timeout_s=_LONGEST_S,
        check=check,
        rank_of=int,
    )

    def take_part(outcome: MeetingResult) -> LocalGroup:
        return attach(outcome, outcome.cards, is_thread=context.is_thread, timeout_s=_LONGEST_S)

    return meet(gathering, context.rank, take_part, lambda group: group.close())


def _listed(ranks: int | Iterable[int], size: int) -> list[int]:
    listed = [ranks] if isinstance(ranks, int) else sorted(ranks)
    for rank in listed:
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} is outside this world of {size}; give 0 to {size - 1}")
    return listed


def _comparable(value: Any) -> Any:
    """Return a value that can be compared and sent: for a module, its state."""
    if hasattr(value, "state_dict"):
        return dict(value.state_dict())
    what = type(value).__name__
    if inspect.isgenerator(value) or (hasattr(value, "__next__") and hasattr(value, "__iter__")):
        raise UsageError(f"assert_same_on_ranks can't compare a {what}; give list(...) of it")
    has_no_equality = getattr(type(value), "__eq__", None) is getattr(object, "__eq__", None)
    if has_no_equality and not _is_tensor(value) and value is not None:
        raise UsageError(f"assert_same_on_ranks can't compare a {what}: it has no __eq__; give its fields")
    return value


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.startswith("torch") and hasattr(value, "untyped_storage")


def _is_same(a: Any, b: Any) -> bool:
    if _is_tensor(a) and _is_tensor(b):
        return _same_bits(a, b)
    if type(a) in (list, tuple) and type(b) is type(a):
        return len(a) == len(b) and all(_is_same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(_is_same(a[key], b[key]) for key in a)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True  # both are not a number
    result = a == b
    return bool(result.all()) if hasattr(result, "all") else bool(result)


def _same_bits(a: Any, b: Any) -> bool:
    import torch

    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        return _same_bits(a.to_dense(), b.to_dense())
    first, second = (tensor.detach().cpu().contiguous().flatten().view(torch.uint8) for tensor in (a, b))
    return bool(torch.equal(first, second))


def _describe_difference(what: str, classes: Sequence[tuple[Any, list[int]]]) -> str:
    lines = "".join(f"\n  {formatting.rank_list(ranks)}: {_shown(value)}" for value, ranks in classes)
    first, second = classes[0][0], classes[1][0]
    if _is_tensor(first) and _is_tensor(second) and first.shape == second.shape and first.dtype == second.dtype:
        lines += _describe_elements(classes[0], classes[1])
    return f"{what} differs between ranks{lines}"


def _describe_elements(first: tuple[Any, list[int]], second: tuple[Any, list[int]]) -> str:
    a, b = (
        pair[0].detach().cpu().to_dense() if pair[0].is_sparse else pair[0].detach().cpu() for pair in (first, second)
    )
    different = (a != b).nonzero()
    if not len(different):
        return "\n  they are equal as numbers, but not bit by bit"
    index = tuple(different[0].tolist())
    return (
        f"\n  {len(different)} of {a.numel()} elements differ, first at {list(index)}: "
        f"{a[index].item()!r} on rank {first[1][0]}, {b[index].item()!r} on rank {second[1][0]}"
    )


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
