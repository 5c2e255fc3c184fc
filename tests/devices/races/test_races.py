"""Switching the detector, what it tells and how, on a process's virtual devices."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import phalanx
from phalanx.devices import races
from phalanx.errors import RaceError, UsageError
from phalanx.virtual_gpus import library
from tests.virtual_gpus.in_child import in_child, on_virtual_devices, run_script


def race(size: int = 64) -> None:
    """Let a side stream read what the default stream writes."""
    side = torch.cuda.Stream()
    x = torch.ones(size, device="cuda")
    with torch.cuda.stream(side):
        x.sum()


def test_without_virtual_devices_the_error_says_so() -> None:
    assert not races.is_on()
    for call in (races.seen, races.clear, races.races_mode("warn").__enter__):
        with pytest.raises(UsageError, match=r"call phalanx\.virtual_devices"):
            call()


@on_virtual_devices(1, face="cuda")
def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UsageError, match='"off", "warn" or "raise", not \'loud\''):
        races.set_mode("loud")  # type: ignore[arg-type]


@on_virtual_devices(1, face="cuda")
def test_off_nothing_is_found_and_a_block_switches_it_on_for_a_while() -> None:
    race()
    assert races.seen() == []
    with races.races_mode("raise"):
        assert races.is_on()
        with pytest.raises(RaceError):
            race()
    assert not races.is_on()
    race()


@on_virtual_devices(1, face="cuda", races="raise")
def test_an_error_keeps_the_exception_that_was_being_handled() -> None:
    def race_twice() -> None:
        try:
            race()
        finally:
            race()

    with pytest.raises(RaceError) as later:
        race_twice()
    first = later.value.__context__
    assert isinstance(first, RaceError)
    assert first.__context__ is None


@on_virtual_devices(1, face="cuda", races="warn")
def test_a_warning_comes_once_for_each_pair_of_lines_and_points_at_the_later_one() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            race()
            torch.cuda.synchronize()  # or the next tensor would get memory that is still read
    assert [(warning.category, warning.filename) for warning in caught] == [(races.RaceWarning, __file__)]
    (report,) = races.seen()
    assert caught[0].lineno == report.here.place.line
    assert str(caught[0].message) == report.text
    races.clear()
    assert races.seen() == []


@on_virtual_devices(1, face="cuda", races="warn")
def test_a_warning_that_is_an_error_is_raised_by_the_operation() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(races.RaceWarning, match="stream 1 reads what stream 0 writes"):
            race()


@on_virtual_devices(1, face="cuda", races="raise")
def test_the_error_has_the_facts() -> None:
    with pytest.raises(RaceError) as caught:
        race()
    error, (report,) = caught.value, races.seen()
    assert (error.device, error.first_stream, error.second_stream) == (0, 0, 1)
    assert (error.first_operation, error.second_operation) == ("aten::fill_", "aten::sum")
    assert error.second_line == str(report.here.place)
    assert (report.here.tensor, report.here.is_write, report.earlier.is_write) == ("float32 (64,)", False, True)
    assert report.here.place.function == "race"
    lines = str(error).splitlines()
    assert lines[0].startswith("race on cuda:0: stream 1 reads what stream 0 writes, and nothing orders them: float32")
    assert [line.split()[0] for line in lines[1:]] == ["here", "earlier", "order", "do"]


@on_virtual_devices(2, races="raise")
def test_the_other_face_has_its_own_words() -> None:
    side = torch.Stream(device="virtual:1")
    x = torch.ones(64, device="virtual:1")
    with pytest.raises(RaceError, match=r"(?s)race on virtual:1: .*torch\.virtual\.current_stream\(\)"), side:
        x.sum()


@on_virtual_devices(1, face="cuda", races="raise")
def test_a_race_in_backward_comes_out_of_backward_and_names_the_forward_line() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(64, device="cuda", requires_grad=True)
    y = (x * 2).sigmoid()
    loss = y.sum()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y.data.mul_(2)
    with pytest.raises(RaceError, match="in SigmoidBackward0, the backward of"):
        loss.backward()
    (report,) = races.seen()
    assert report.here.backward_node == "SigmoidBackward0"
    assert report.here.place.line == report.earlier.place.line - 4


@on_virtual_devices(1, face="cuda", races="raise")
def test_a_custom_function_is_shown_by_its_own_line() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * scale

    x, scale = torch.ones(64, device="cuda", requires_grad=True), torch.ones(64, device="cuda")
    y = Twice.apply(x)  # type: ignore[no-untyped-call]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        scale.mul_(3)
    with pytest.raises(RaceError):
        y.sum().backward()
    assert races.seen()[0].here.place.function.endswith("Twice.backward")


@on_virtual_devices(1, face="cuda", races="raise")
def test_threads_are_shown_by_their_own_lines() -> None:
    found: list[RaceError] = []

    def work() -> None:
        try:
            race()
        except RaceError as error:
            found.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 4
    assert {error.second_line for error in found} == {str(races.seen()[0].here.place)}


@on_virtual_devices(1, face="cuda")
def test_lists_and_printing_count_as_reads_of_the_host() -> None:
    x = torch.ones(64, device="cuda")
    for look in (torch.Tensor.tolist, torch.Tensor.clone, str):
        with (
            pytest.raises(RaceError, match="the host reads pinned memory that a copy writes"),
            races.races_mode("raise"),
        ):
            look(x.to("cpu", non_blocking=True))


@on_virtual_devices(1, face="cuda", races="raise")
def test_who_has_seen_an_event_done_may_rely_on_it() -> None:
    side, done = torch.cuda.Stream(), torch.cuda.Event()
    with torch.cuda.stream(side):
        x = torch.ones(64, device="cuda")
        done.record()
    while not done.query():
        pass
    x.sum()


@on_virtual_devices(1, face="cuda", races="raise")
def test_an_operation_that_was_refused_has_not_happened() -> None:
    x, side = torch.ones(64, device="cuda"), torch.cuda.Stream()
    with pytest.raises(RaceError), torch.cuda.stream(side):
        x.add_(1)
    assert x.mul(2).sum().item() == 128
    del x
    torch.ones(64, device="cuda").mul_(2)  # perhaps in the same memory
    assert len(races.seen()) == 1


@on_virtual_devices(1, face="cuda", races="warn")
def test_an_operation_that_a_warning_has_refused_has_not_happened_either() -> None:
    x = torch.ones(64, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(races.RaceWarning), torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)
        x.mul_(2)


@on_virtual_devices(1, face="cuda", races="raise")
def test_an_error_that_was_caught_keeps_no_tensor_alive() -> None:
    def work() -> weakref.ref[torch.Tensor]:
        x = torch.ones(64, device="cuda")
        kept = weakref.ref(x)
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                x.add_(1)
        except RaceError:
            return kept
        raise AssertionError("no race was found")

    kept = work()
    gc.collect()
    assert kept() is None


@on_virtual_devices(1, face="cuda", races="raise")
def test_tensors_that_are_wrappers_pass_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    on_host = torch.empty(64, pin_memory=True)
    on_host.copy_(torch.ones(64, device="cuda"), non_blocking=True)
    torch.vmap(lambda row: row * 2)(torch.ones(3, 4))
    torch.func.grad(lambda x: (x * 2).sum())(torch.ones(3))
    torch.zeros(3, device="meta").add(1)
    with FakeTensorMode():
        torch.ones(3).add(1)
    assert capfd.readouterr().err == ""
    torch.vmap(lambda row: row * 2)(on_host.view(8, 8))
    with pytest.raises(RaceError, match="the host reads pinned memory"):
        torch.ones(1, device="cuda")


@on_virtual_devices(1, face="cuda")
def test_a_result_whose_size_the_host_must_know_waits_for_the_stream() -> None:
    x = torch.ones(64, device="cuda")
    for look in (torch.Tensor.nonzero, torch.Tensor.unique, lambda x: x[x > 0], lambda x: torch.equal(x, x)):
        library.current().sleep(0.02)
        asleep = torch.cuda.current_stream().record_event()
        assert not asleep.query()
        look(x)
        assert asleep.query()


@in_child
def test_memory_from_before_it_was_switched_on_has_no_past() -> None:
    phalanx.virtual_devices(1, face="cuda")
    x = torch.ones(64, device="cuda")
    with races.races_mode("raise"), torch.cuda.stream(torch.cuda.Stream()):
        x.add_(1)


@pytest.mark.slow
def test_a_race_of_the_host_that_nothing_follows_is_told_at_the_end() -> None:
    ended = run_script(
        "import torch\nx = torch.ones(64, device='cuda')\nx.to('cpu', non_blocking=True).sum()",
        PHALANX_VIRTUAL_GPUS="1",
        PHALANX_RACES="raise",
    )
    assert (ended.returncode, "RaceWarning: race on cuda:0: the host reads" in ended.stderr) == (0, True), ended.stderr
