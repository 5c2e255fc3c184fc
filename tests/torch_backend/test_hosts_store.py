"""torch's store over the rendezvous server of a job: it does what torch's own stores do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from phalanx.torch_backend.hosts_store import HostsStore
from phalanx.torch_backend.untyped import dist
from tests.launch.hosts.test_agents import agents, await_kind, server_of


@pytest.fixture(scope="module")
def new_store() -> Iterator[Callable[[], Any]]:
    """Makes stores that have no values yet."""
    with agents() as start, contextlib.ExitStack() as cleanup:
        (told, _) = await_kind("start", start(), start())
        client = cleanup.enter_context(contextlib.closing(server_of(told)))
        made: list[HostsStore] = []

        def make() -> HostsStore:
            made.append(HostsStore(client, f"test {len(made)}/"))
            return made[-1]

        yield make


def _use(store: Any) -> list[Any]:
    """Do everything that can be done with a store; return what it answers."""
    store.set("a", "text")
    store.set("b", b"\x00\xff")
    answers = [store.get("a"), store.get("b"), store.add("n", 3), store.add("n", -5), store.get("n")]
    answers += [store.check(["a", "b"]), store.check(["a", "c"])]
    answers += [store.compare_set("c", "", "first"), store.compare_set("c", "x", "second"), store.get("c")]
    answers += [store.compare_set("c", "first", "third"), store.get("c")]
    answers += [store.delete_key("a"), store.delete_key("a"), store.check(["a"])]
    store.append("list", "1")
    store.append("list", b"2")
    store.multi_set(["x", "y"], ["1", b"2"])
    answers += [store.get("list"), store.multi_get(["y", "x"]), store.has_extended_api()]
    store.wait(["x", "y"], timedelta(seconds=1))
    return answers


def test_it_answers_as_torchs_stores_do(new_store: Callable[[], Any]) -> None:
    assert _use(new_store()) == _use(dist.HashStore())


def test_it_does_so_when_torchs_cpp_code_calls_it(new_store: Callable[[], Any]) -> None:
    inner = new_store()
    assert _use(dist.PrefixStore("p", inner)) == _use(dist.PrefixStore("p", dist.HashStore()))
    assert sorted(inner.list_keys()) == sorted(f"p/{key}" for key in ("b", "n", "c", "list", "x", "y"))
    assert inner.num_keys() == 6


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_waits_keep_to_their_limit(is_wrapped: bool, new_store: Callable[[], Any]) -> None:
    inner = new_store()
    store = dist.PrefixStore("p", inner) if is_wrapped else inner
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 0\.05 s, keys: .*never"):
        store.wait(["never"], timedelta(seconds=0.05))
    inner.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(dist.DistStoreError, match="wait timeout"):
        store.get("never")


def test_stores_of_different_attempts_do_not_see_each_other(new_store: Callable[[], Any]) -> None:
    first, second = new_store(), new_store()
    first.set("a", "1")
    assert not second.check(["a"])
