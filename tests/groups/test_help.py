"""What editors, help() and inspect show of a group: every kind of group has the same methods, signatures and docs."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import pytest

import phalanx
from phalanx import Group, ReduceOp, Work
from phalanx.engine._native import NativeWork
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.groups.torch_network import TorchGroup

PUBLIC = [name for name in dir(Group) if not name.startswith("_")]
METHODS = [name for name in PUBLIC if callable(getattr(Group, name))]
KINDS = [SharedMemoryGroup, TorchGroup]


def _arguments(cls: type, name: str) -> list[tuple[Any, ...]]:
    """Return names, kinds and defaults, without `self`."""
    found = list(inspect.signature(getattr(cls, name)).parameters.values())[1:]
    return [(each.name, each.kind, _plain(each.default)) for each in found]


def _plain(default: Any) -> Any:
    return default.name.lower() if isinstance(default, ReduceOp) else default


@pytest.mark.parametrize("cls", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_the_signatures_of_all_groups_agree(cls: type, name: str) -> None:
    assert _arguments(cls, name) == _arguments(Group, name)


@pytest.mark.parametrize("cls", [Group, *KINDS])
def test_everything_public_has_a_docstring(cls: type) -> None:
    for name in PUBLIC:
        text = inspect.getdoc(inspect.getattr_static(cls, name)) or ""
        first = text.splitlines()[0] if text else ""
        assert first.endswith("."), f"{name}: {text!r}"


def test_help_shows_the_arguments_and_what_a_method_does() -> None:
    shown = pydoc.plain(pydoc.render_doc(SharedMemoryGroup.all_reduce))
    assert "all_reduce(self, /, tensor, op='sum', *, timeout_s=None, async_op=False)" in shown
    assert "Reduce the tensor over all ranks, in place." in shown
    of_protocol = pydoc.plain(pydoc.render_doc(Group))
    assert "Copy the root's tensor into every rank's." in of_protocol
    assert "overload" not in of_protocol


@pytest.mark.parametrize("name", ["wait", "done", "exception", "result"])
def test_an_operation_under_way_has_signatures_and_docstrings(name: str) -> None:
    assert _arguments(NativeWork, name) == _arguments(Work, name)
    assert str(inspect.getdoc(getattr(NativeWork, name))).endswith(".")


def test_an_editor_offers_what_programs_use_of_a_group_and_nothing_else() -> None:
    group = phalanx.connect()
    assert [name for name in dir(group) if not name.startswith("_")] == PUBLIC
    assert {"__enter__", "__exit__", "__class__"} <= set(dir(group))
    group.close()
