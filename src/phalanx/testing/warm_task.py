"""A test as it is sent to warm ranks, which were forked before its fixtures were set up.

The test itself is not sent: the ranks have it from the fork, and find it by its id.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError
from phalanx.launch.sending import pack
from phalanx.settings import copy_environment, replace_environment
from phalanx.testing.examples import unpack
from phalanx.testing.rank_fixtures import DeferredFixture, RankRequest, RankSetup
from phalanx.testing.rank_test import RankTest

# Values that belong to pytest itself: a rank has its own.
_OWN_VALUES = ("request", "pytestconfig", "tmp_path_factory", "cache", "subtests")


@dataclass(frozen=True)
class WarmTask:
    """What ranks need in addition to what they were forked with."""

    node_id: str
    values: dict[str, bytes]
    deferred: list[tuple[str, str, str, tuple[str, ...], bytes | None, bool]]
    instance: bytes | None
    environment: dict[str, str]
    folder: str
    path: list[str]
    random_state: Any
    torch_state: bytes | None
    example: bytes | None  # an example of Hypothesis


def make_task(
    item: Any,
    values: Mapping[str, Any],
    deferred: Sequence[DeferredFixture],
    example: bytes | None = None,
) -> WarmTask:
    """Prepare a test for sending.

    Raises:
        UsageError: A fixture's value can't be sent.
    """
    instance = getattr(item, "instance", None)
    torch: Any = sys.modules.get("torch")
    return WarmTask(
        node_id=item.nodeid,
        values={name: _pack(name, value) for name, value in values.items() if not _stays_here(item, name)},
        deferred=[
            (
                fixture.name,
                fixture.function.__module__,
                fixture.function.__qualname__,
                fixture.arguments,
                _pack(fixture.name, fixture.parameter) if fixture.has_parameter() else None,
                fixture.takes_instance,
            )
            for fixture in deferred
        ],
        instance=_pack("self", instance) if instance is not None and vars(instance) else None,
        environment=copy_environment(),
        folder=os.getcwd(),
        path=list(sys.path),
        random_state=random.getstate(),
        torch_state=torch.get_rng_state().numpy().tobytes() if torch is not None and _has_numpy() else None,
        example=example,
    )


def _stays_here(item: Any, name: str) -> bool:
    """Tell whether a fixture is not sent to ranks: fixtures of pytest, and event loops of async plugins."""
    if name in _OWN_VALUES:
        return True
    known = item._fixtureinfo.name2fixturedefs.get(name)
    found = known or item.session._fixturemanager.getfixturedefs(name, item) or ()
    return any(each.func.__module__.startswith(("pytest_asyncio", "anyio.")) for each in found)


def _has_numpy() -> bool:
    return "numpy" in sys.modules


def _pack(name: str, value: Any) -> bytes:
    try:
        return pack(value)
    except Exception as error:
        what = f"fixture '{name}'" if name != "self" else "the test's instance"
        raise UsageError(
            f"{what} is a {type(value).__name__}, which can't be sent to warm ranks ({type(error).__name__}: {error}); "
            f'run this test with kind="process", where ranks inherit it, or make it inside the test'
        ) from None


def adopt(task: WarmTask, items: Mapping[str, Any]) -> RankTest:
    """Make this warm rank ready for a test, as if it had just been forked."""
    replace_environment(task.environment)
    os.chdir(task.folder)
    sys.path[:] = task.path
    random.setstate(task.random_state)
    if task.torch_state is not None:
        import torch

        torch.set_rng_state(torch.frombuffer(bytearray(task.torch_state), dtype=torch.uint8))
    item = items.get(task.node_id)
    if item is None:
        raise UsageError(f"the process that ranks were forked from has not collected {task.node_id}")
    if task.instance is not None:
        item._instance = pickle.loads(task.instance)
    values = {name: pickle.loads(value) for name, value in task.values.items()}
    values["pytestconfig"] = item.config
    values["subtests"] = None  # RankTest makes one
    values["cache"] = getattr(item.config, "cache", None)
    values["tmp_path_factory"] = getattr(item.config, "_tmp_path_factory", None)
    deferred = [_find(item, *parts) for parts in task.deferred]
    test = RankTest(item, values, deferred)
    if task.example is not None:
        test.inner, test.example = item.obj.hypothesis.inner_test, unpack(task.example)
    nobody = DeferredFixture("request", lambda: None, ())
    values["request"] = RankRequest(item, nobody, RankSetup(item, None, values, test.run_async))
    return test


def _find(
    item: Any,
    name: str,
    module: str,
    qualname: str,
    arguments: tuple[str, ...],
    parameter: bytes | None,
    takes_instance: bool,
) -> DeferredFixture:
    known = item._fixtureinfo.name2fixturedefs.get(name)
    for found in known or item.session._fixturemanager.getfixturedefs(name, item) or ():
        if (found.func.__module__, found.func.__qualname__) == (module, qualname):
            given = {} if parameter is None else {"parameter": pickle.loads(parameter)}
            return DeferredFixture(name, found.func, arguments, takes_instance=takes_instance, **given)
    raise UsageError(f"fixture '{name}' is not known to the warm ranks")
