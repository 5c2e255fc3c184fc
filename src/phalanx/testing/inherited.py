"""Find objects that ranks must not inherit by a fork or get as fixtures, before they make a rank hang."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from phalanx.errors import UsageError

_LOCKS = (type(threading.Lock()), type(threading.RLock()))


def check_fixtures(values: Mapping[str, Any], *, is_forked: bool) -> None:
    """Check the values of fixtures, and the objects that they hold directly.

    Args:
        values: The values, by the fixtures' names.
        is_forked: Whether ranks will be copies of this process.

    Raises:
        UsageError: A value can't work on a rank.
    """
    for name, value in values.items():
        for part in _parts(value):
            if is_forked and isinstance(part, _LOCKS) and _is_held(part):
                raise UsageError(
                    f"fixture '{name}' holds a lock that is taken; ranks are copies of this process, in which nobody "
                    f'would ever release it. Release it before the test, or use kind="thread"'
                )
            if getattr(part, "is_cuda", False) is True:
                raise UsageError(
                    f"fixture '{name}' holds a tensor on {part.device}; another process can't use this one's GPU "
                    f"memory. Make it inside the test or in a fixture that asks for 'rank' or 'device', which runs on "
                    f'the ranks, or use kind="thread"'
                )


def wide_fixtures(item: Any) -> dict[int, Any]:
    """Return the results of fixtures that serve more than one test, by their id() (the results are kept alive).

    Such fixtures may have changed modules and classes, as setup_class does. Ranks forked before do not see that.
    """
    found: dict[int, Any] = {}
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            home = getattr(definition.func, "__module__", "")
            is_pytests = home.startswith(("_pytest.", "pytest_asyncio", "anyio.", "phalanx.testing."))
            is_setup = definition.argname.startswith("_xunit_setup_")
            if definition.scope != "function" and definition.cached_result is not None and (is_setup or not is_pytests):
                found[id(definition.cached_result)] = definition.cached_result
    return found


def has_initialised_cuda() -> bool:
    """Tell whether this process has a CUDA context, or threads for backward() on GPUs: forks could use neither."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return False
    return bool(torch.cuda.is_initialized()) or _has_autograd_threads()


def _has_autograd_threads() -> bool:
    """Tell whether torch has threads for backward(). With GPUs, it starts them once, and then refuses it in forks."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            if (task / "comm").read_bytes().startswith(b"pt_autograd"):
                return True
    return False


def _parts(value: Any) -> Iterator[Any]:
    """Yield a value and what it holds directly."""
    yield value
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif type(value).__module__.split(".")[0] not in ("_pytest", "pytest", "pathlib", "builtins"):
        yield from getattr(value, "__dict__", {}).values()
        parameters = getattr(value, "_parameters", None)
        yield from parameters.values() if isinstance(parameters, dict) else ()


def _is_held(lock: Any) -> bool:
    if not hasattr(lock, "_is_owned"):
        return bool(lock.locked())
    taken = lock.acquire(blocking=False)  # fails also if this thread has the lock: its fork would have it too
    if taken:
        lock.release()
    return not taken
