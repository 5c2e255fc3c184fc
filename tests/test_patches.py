"""Torch is left as it was: every change is in the ledger, and what can be undone puts every name back."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx import patches
from phalanx.groups import stream_order
from phalanx.patches import MISSING, Patch, Patches
from phalanx.torch_backend import torch_functions
from phalanx.torch_backend.cuda_order import CudaStreamOrder
from phalanx.torch_backend.thread_worlds import THREADED, thread_worlds
from phalanx.torch_backend.untyped import c10d, dist
from tests.virtual_gpus.in_child import in_child, on_virtual_devices

# Packages whose own code replaces names must do so through a Patches.
_SOURCES = Path(phalanx.__file__).parent


_Place = tuple[int, str]  # the id of a module, class, dictionary or list, and the name in it

_MAY_CHANGE = ("__warningregistry__", "__abstractmethods__", "_abc_impl", "__doc__")


def _everything() -> dict[_Place, Any]:
    """Return what all names of torch's modules and of their classes stand for, and what its tables hold."""
    found: dict[_Place, Any] = {(id(sys), "excepthook"): sys.excepthook}
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "torch"]:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            found[id(module), name] = value
            kind = type(value)  # isinstance() would ask objects that warn
            if issubclass(kind, type) and str(vars(value).get("__module__", "")).startswith("torch"):
                found.update({(id(value), part): its for part, its in vars(value).items()})
            if issubclass(kind, dict) and len(value) < 1000:
                found.update({(id(value), str(key)): its for key, its in value.items()})
            if issubclass(kind, list) and len(value) < 1000:
                found.update({(id(value), str(item)): None for item in value})
    return found


def _differences(before: dict[_Place, Any], after: dict[_Place, Any]) -> set[_Place]:
    """Return the names that stand for something else, or are new, in what is there before and after."""
    known = {owner for owner, _ in before} & {owner for owner, _ in after}
    return {
        place
        for place in {*before, *after}
        if place[0] in known
        and place[1] not in _MAY_CHANGE
        and before.get(place, MISSING) is not after.get(place, MISSING)
        and not issubclass(type(after.get(place)), type(sys))  # a submodule that was imported meanwhile
    }


def _places_of(patch: Patch) -> set[_Place]:
    path, _, key = patch.name.partition('["')
    if key:
        return {(id(patches.find(path)), key.removesuffix('"]'))}
    owner, _, name = path.rpartition(".")
    value = patches.find(path)
    items = {(id(value), str(item)) for item in value} if isinstance(value, list) else set()
    return {(id(patches.find(owner)), name), *items}


def _import_first() -> None:
    """Import what changes need, so that it is not new afterwards."""
    for name in ("_dynamo.trace_rules", "cuda.nccl", "distributed._dist2", "distributed.constants"):
        importlib.import_module(f"torch.{name}")
    dir(torch.ops._c10d_functional)
    if THREADED.upper() not in dist.Backend._plugins:  # which torch can't take back
        with thread_worlds():
            pass


def _install_all(backends: list[Any]) -> Iterator[str]:
    torch_functions.skip_own_code()
    yield "torch.compile"
    torch_functions.teach_torch()
    yield "a group"
    stand_ins = [phalanx.stand_in_for(backend) for backend in backends]
    with thread_worlds():
        yield "all"
    for stand_in in stand_ins:
        stand_in.undo()
    patches.undo_all()
    yield "nothing"


def _check_all(backends: list[Any]) -> None:
    _import_first()
    patches.undo_all()
    kept = list(patches.changes())
    before = _everything()
    num_changes = []
    for _ in _install_all(backends):
        made = [patch for patch in patches.changes() if patch not in kept]
        num_changes.append(len(made))
        changed: set[_Place] = set().union(*map(_places_of, made))
        missed = _differences(before, _everything()) - changed
        assert {name for _, name in missed} == set()
    assert num_changes == [*sorted(set(num_changes[:-1])), 0]
    assert {name for _, name in _differences(before, _everything())} == set()
    assert list(patches.changes()) == kept


@in_child
def test_on_the_cpu_every_name_is_put_back() -> None:
    _check_all(["gloo", "mpi"])


@on_virtual_devices(1, face="cuda")
def test_on_virtual_gpus_every_name_is_put_back_but_those_of_the_device() -> None:
    _check_all(["nccl", "gloo", "mpi"])
    kept = list(patches.changes())
    assert {"torch._C._cuda_getDevice", "torch.cuda.Stream", "torch.UntypedStorage.resize_"} <= {p.name for p in kept}
    assert [patch for patch in kept if not re.match(r"never: \w+", patch.undo)] == []


@on_virtual_devices(1, face="cuda")
def test_synchronizing_is_put_back() -> None:
    before = torch._C._cuda_synchronize
    order = CudaStreamOrder()
    stream_order.orders("cuda", order)

    class Done:
        def done(self) -> bool:
            return True

        def finish(self) -> None: ...
        def unreported(self) -> None: ...
        def report(self) -> None: ...

    for _ in range(2):
        order.started(Done(), owner=None)
        assert torch._C._cuda_synchronize is not before
        patches.undo_all()
        assert torch._C._cuda_synchronize is before


@in_child
def test_what_was_undone_is_changed_again_for_the_next_group(tmp_path: Path) -> None:
    for turn in range(2):
        dist.init_process_group("phalanx", init_method=f"file://{tmp_path}/{turn}", rank=0, world_size=1)
        dist.monitored_barrier()  # torch's own refuses it
        dist.destroy_process_group()
        patches.undo_all()
        assert "serve" not in c10d.monitored_barrier.__code__.co_freevars


def test_a_change_of_what_is_not_there_is_none() -> None:
    some = Patches("a test")
    assert some.replace("torch.no_such_class.name", 1, "none") is MISSING
    assert some.replace("torch.no_such_name", 1, "none", only_if_there=True) is MISSING
    some.wrap(["torch.no_such_name"], lambda function: function, "none")
    assert not some
    assert not hasattr(torch, "no_such_name")


def test_changes_are_undone_in_the_order_of_a_stack() -> None:
    some = Patches("a test")
    before = torch.ones
    assert some.replace("torch.ones", 1, "first") is before
    assert some.replace("torch.ones", 2, "second", until="torch 3") == 1
    some.replace("torch.another", 3, "new")
    assert [(patch.name, patch.until) for patch in patches.changes() if patch.when == "a test"] == [
        ("torch.ones", "always"),
        ("torch.ones", "torch 3"),
        ("torch.another", "always"),
    ]
    some.undo()
    assert torch.ones is before
    assert not hasattr(torch, "another")


def test_changes_that_fail_part_way_are_undone() -> None:
    some = Patches("a test")
    before = torch.ones

    def change() -> None:
        some.replace("torch.ones", 1, "first")
        raise RuntimeError("no")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            some.enter(change)
        assert torch.ones is before
        assert not some
    some.enter(lambda: some.replace_all({"torch.ones": 2}, "second"))
    assert patches.find("torch.ones") == 2
    some.leave()
    assert torch.ones is before


def test_a_step_that_raises_does_not_keep_the_others_from_being_undone() -> None:
    some = Patches("a test")
    before = torch.ones

    def fail() -> None:
        raise RuntimeError("no")

    some.replace("torch.ones", 1, "first")
    some.note("torch.something", fail, "second")
    some.replace("torch.another", 3, "third")
    with pytest.raises(RuntimeError, match="no"):
        some.undo()
    assert torch.ones is before
    assert not hasattr(torch, "another")
    assert [patch for patch in patches.changes() if patch.when == "a test"] == []


def test_what_somebody_else_changed_since_is_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    some = Patches("a test")
    table: dict[str, int] = {"one": 1, "two": 2}
    monkeypatch.setattr(torch, "a_table", table, raising=False)
    monkeypatch.setattr(torch, "a_list", ["one"], raising=False)
    monkeypatch.setattr(torch, "ones", torch.ones)
    some.replace("torch.ones", 1, "first")
    some.replace("torch.another", 2, "second")
    for key in ("one", "two", "three"):
        some.set_item("torch.a_table", key, -1, "third")
    some.add_item("torch.a_list", "two", "fourth")
    torch.ones = "theirs"  # type: ignore[assignment]
    del torch.another  # type: ignore[attr-defined]
    table["one"] = 11
    del table["three"]
    torch.a_list.clear()  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING, logger="phalanx"):
        some.undo()
    assert patches.find("torch.ones") == "theirs"
    assert not hasattr(torch, "another")
    assert table == {"one": 11, "two": 2}
    assert "torch.ones was changed after phalanx changed it" in caplog.text


def test_a_name_that_a_program_has_changed_keeps_calling_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Patches("a test")
    monkeypatch.setattr(torch, "first", lambda: ["first"], raising=False)
    monkeypatch.setattr(torch, "second", lambda: ["theirs"], raising=False)
    monkeypatch.setattr(torch, "third", patches.find("torch.first"), raising=False)
    paths = ["torch.first", "torch.second", "torch.third"]
    some.wrap(paths, lambda function: lambda: [*function(), "ours"], "a test")
    called = [patches.find(path)() for path in paths]
    assert called == [["first", "ours"], ["theirs", "ours"], ["first", "ours"]]
    assert patches.find("torch.first") is patches.find("torch.third")
    some.undo()
    assert [patches.find(path)() for path in paths] == [["first"], ["theirs"], ["first"]]


@in_child
def test_rules_of_a_program_for_torch_compile_are_kept() -> None:
    rules: Any = importlib.import_module("torch._dynamo.trace_rules")
    folders = rules.SKIP_DIRS
    ours = str(_SOURCES)
    torch_functions.skip_own_code()
    assert [folder for folder in folders if folder.startswith(ours)] != []
    rules.add("json")
    theirs = folders[-1]
    patches.undo_all()
    assert rules.SKIP_DIRS is folders
    assert theirs in folders
    assert rules.SKIP_DIRS_RE.match(theirs + "decoder.py")
    assert not rules.SKIP_DIRS_RE.match(ours + "/patches.py")


_SLOW_MODULE = """
import threading
lock = threading.Lock()
import a_gate
a_gate.has_begun.set()
assert a_gate.may_end.wait(60)
VALUE = 1
"""


def test_changes_wait_for_a_module_that_another_thread_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate: Any = type(sys)("a_gate")
    gate.has_begun, gate.may_end = threading.Event(), threading.Event()
    monkeypatch.setitem(sys.modules, "a_gate", gate)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_slow_module.py").write_text(_SLOW_MODULE)
    found: list[Any] = []
    some = Patches("a test")
    importer = threading.Thread(target=importlib.import_module, args=["a_slow_module"])
    changer = threading.Thread(
        target=some.after_import,
        args=["a_slow_module", lambda: found.append(getattr(sys.modules["a_slow_module"], "VALUE", MISSING))],
    )
    importer.start()
    assert gate.has_begun.wait(60)
    changer.start()
    changer.join(0.5)  # time in which code that does not wait would see half a module
    gate.may_end.set()
    for thread in (importer, changer):
        thread.join(60)
    assert found == [1]


def test_changes_come_with_the_import_that_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "a_late_module.py"
    module.write_text("raise RuntimeError('not yet')")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    some = Patches("a test")
    made: list[int] = []
    some.after_import("a_late_module", lambda: made.append(1))
    assert importlib.util.find_spec("a_late_module") is not None  # a program only looks whether it is there
    with pytest.raises(RuntimeError, match="not yet"):
        importlib.import_module("a_late_module")
    assert made == []
    module.write_text("VALUE = 1")
    importlib.invalidate_caches()
    importlib.import_module("a_late_module")
    assert made == [1]
    importlib.reload(sys.modules["a_late_module"])
    assert made == [1]
    some.undo()
    del sys.modules["a_late_module"]


def test_changes_that_are_undone_before_the_import_are_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "an_undone_module.py").write_text("VALUE = 1")
    some = Patches("a test")
    made: list[int] = []
    some.after_import("an_undone_module", lambda: made.append(1))
    spec = importlib.util.find_spec("an_undone_module")
    assert spec is not None
    assert spec.loader is not None
    some.undo()
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert made == []


@in_child
def test_functions_of_torch_that_were_replaced_in_part_are_replaced_by_the_next_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    last = "torch._C._distributed_c10d.Reducer._set_forward_pass_work_handle"
    before = c10d.monitored_barrier, patches.find(last)
    monkeypatch.setattr(torch_functions, "_keeping_works", interrupt)
    with pytest.raises(KeyboardInterrupt):
        torch_functions.teach_torch()
    assert (c10d.monitored_barrier, patches.find(last)) == before
    monkeypatch.undo()
    torch_functions.teach_torch()
    assert c10d.monitored_barrier is not before[0]
    assert patches.find(last) is not before[1]


@in_child
def test_torchs_hook_for_exceptions_is_removed_but_not_that_of_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sys.excepthook
    with thread_worlds():
        dist.init_process_group("phalanx", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        assert sys.excepthook is not before
        dist.destroy_process_group()
    assert sys.excepthook is before
    with thread_worlds():
        monkeypatch.setattr(sys, "excepthook", print)
    assert sys.excepthook is print


def _raise_in_a_block() -> None:
    with contextlib.suppress(KeyError), c10d._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
        raise KeyError


def _raise_at_the_end_of_a_block() -> None:
    with contextlib.suppress(RuntimeError), c10d._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(torch.ones(4))
        dist.reduce_scatter_tensor(torch.ones(4), torch.ones(4))  # torch refuses two kinds of operations


@in_child
@pytest.mark.filterwarnings("ignore:.*reduce_scatter_tensor. is deprecated:FutureWarning")
@pytest.mark.parametrize("fail", [_raise_in_a_block, _raise_at_the_end_of_a_block])
def test_a_coalescing_block_that_raises_keeps_nothing(tmp_path: Path, fail: Callable[[], None]) -> None:
    dist.init_process_group("phalanx", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    fail()
    tensor = torch.ones(4)
    dist.broadcast(tensor, 0)
    dist.barrier()
    kept = weakref.ref(tensor)
    del tensor
    assert kept() is None
    reduced = torch.ones(4)
    with c10d._coalescing_manager():
        dist.all_reduce(reduced)
    assert reduced.tolist() == [1, 1, 1, 1]
    dist.destroy_process_group()


@pytest.mark.parametrize("package", ["torch_backend", "stand_in"])
def test_only_one_module_depends_on_the_version_of_torch(package: str) -> None:
    """Others neither name a version nor compare one."""
    version = re.compile(r"torch 2\.\d|__version__|\(2, \d+\)")
    assert [
        path.name
        for path in sorted((_SOURCES / package).glob("*.py"))
        if path.name != "versions.py" and version.search(path.read_text())
    ] == []


@pytest.mark.parametrize("package", ["torch_backend", "stand_in", "groups", "devices", "virtual_gpus"])
def test_names_of_torch_are_set_through_the_ledger_alone(package: str) -> None:
    assignment = re.compile(
        r"^\s*(torch|dist|c10d|native)(\.\w+)+ = |setattr\((torch|dist|c10d|native)\b", re.MULTILINE
    )
    found = [path for path in sorted((_SOURCES / package).rglob("*.py")) if assignment.search(path.read_text())]
    assert found == []
