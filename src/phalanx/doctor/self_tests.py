"""Probes that run ranks of every kind and check what they compute."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Literal

from phalanx.doctor import rank_programs
from phalanx.doctor.finding import Answer, Probe, Topic
from phalanx.doctor.gpus import SHARING_NCCL, SHARING_SWITCH
from phalanx.settings import set_environment

TITLE = "Self-tests"
_TEST_S = 25.0
_GPU_TEST_S = 60.0  # each rank makes a CUDA context first
_FIRST_TEST_S = 75.0  # it imports torch, perhaps from a cold disk
_SPAWN_S = 18.0
_MOST_RANKS = 64
_SLOW_NOTICE_S = 1.0
_SLOW_NETWORK_S = 3.0  # a name server that does not answer costs five


def processes(num_ranks: int) -> Answer:
    """Add up the ranks of processes; the first time, start the process that they are forked from."""
    started = time.monotonic()
    _spawn(lambda: None, 1)
    ready_s = time.monotonic() - started
    answer = _sum(num_ranks, "process")
    if ready_s < 0.3:
        return answer
    return Answer(answer.status, f"{answer.text}, after {ready_s:.1f} s to import torch", "", answer.seconds)


def _sum(num_ranks: int, kind: Literal["process", "thread"]) -> Answer:
    started = time.monotonic()
    sums = _spawn(rank_programs.sum_over_group, num_ranks, kind=kind)
    return _judge(sums, started)


def threads(num_ranks: int) -> Answer:
    """Add up the ranks of threads."""
    import torch  # noqa: F401  # not part of what is measured

    return _sum(num_ranks, "thread")


def over_torch(backend: str, num_ranks: int) -> Answer:
    """Add up the ranks over a backend of torch.distributed."""
    from phalanx.torch_backend.untyped import dist

    if not dist.is_available() or not dist.is_backend_available(backend):
        return Answer("absent", "not in this torch")
    started = time.monotonic()
    limit_s = _GPU_TEST_S if backend == "nccl" else _SPAWN_S
    return _judge(_spawn(rank_programs.sum_over_torch, num_ranks, (backend, num_ranks), timeout_s=limit_s), started)


def gloo() -> Answer:
    """Add up ranks over Gloo, which asks for this host's name."""
    answer = over_torch("gloo", 2)
    if answer.status != "ok" or (answer.seconds or 0) < _SLOW_NETWORK_S:
        return answer
    return Answer("note", f"{answer.text}, which is slow: a name server may not answer", _NETWORK, answer.seconds)


def nccl() -> Answer:
    """Add up ranks over NCCL: one a GPU, or two on the only one where NCCL can do that."""
    ((num_devices, version),) = _spawn(rank_programs.gpus, 1, timeout_s=_GPU_TEST_S)
    if num_devices == 0:
        return Answer("absent", "no CUDA device, or no NCCL in this torch")
    if num_devices > 1:
        return over_torch("nccl", 2)
    if version < SHARING_NCCL:
        answer = over_torch("nccl", 1)
        return Answer(answer.status, f"{answer.text}; two can't share the only GPU", answer.advice, answer.seconds)
    set_environment(**{SHARING_SWITCH: "1"})
    answer = over_torch("nccl", 2)
    return Answer(answer.status, f"{answer.text}, on one GPU ({SHARING_SWITCH}=1)", answer.advice, answer.seconds)


def killed_rank() -> Answer:
    """Kill a rank and measure how soon another rank notices."""
    seconds = _spawn(rank_programs.lose_a_rank, 2, tolerate_losses=True)[0]
    text = f"noticed by the other rank after {seconds * 1e3:.0f} ms"
    if seconds > _SLOW_NOTICE_S:
        return Answer("note", f"{text}, which is slow: this machine is busy", "", seconds)
    return Answer("ok", text, "", seconds)


def view_of_a_rank() -> Answer:
    """Look at a rank from another through /proc, as a diagnosis does."""
    blind = _spawn(rank_programs.look_at_a_rank, 2)[0]
    if blind:
        advice = "Mount /proc without hidepid, so that phalanx diagnose can look at a hanging rank."
        return Answer("note", f"ranks run, but another process can't look at them: {blind}", advice)
    return Answer("ok", "another process can read its state, open files and memory")


def _spawn(function: Callable[..., Any], num_ranks: int, args: tuple[Any, ...] = (), **options: Any) -> list[Any]:
    from phalanx.launch.spawn import spawn

    return spawn(function, ranks=num_ranks, args=args, **{"timeout_s": _SPAWN_S, **options})


def _judge(sums: list[float], started: float) -> Answer:
    seconds, expected = time.monotonic() - started, len(sums) * (len(sums) + 1) / 2
    if set(sums) != {expected}:
        return Answer("problem", f"all_reduce gave {sums} instead of {expected} on each rank", _REPORT, seconds)
    return Answer("ok", f"all_reduce is right on {len(sums)} ranks, {seconds:.2f} s", "", seconds)


_REPORT = "Report this as a bug of phalanx, with the output of `phalanx doctor --json`."
_LOST = "Look at the problems above first; else report it, with the output of `phalanx doctor --json`."
_NCCL = "Run with NCCL_DEBUG=INFO to see what NCCL lacks."
_NETWORK = "Check that 127.0.0.1 and this host's name work; GLOO_SOCKET_IFNAME=lo makes Gloo use the loopback device."


def make_topic() -> Topic:
    """Return the self-tests for as many ranks as there are cores. The engine must have been found to work."""
    from phalanx.engine._native import usable_cores

    sizes = sorted({2, min(_MOST_RANKS, usable_cores())} - {1})
    crowds = [
        Probe(f"{size} processes", functools.partial(processes, size), _FIRST_TEST_S, advice_when_lost=_LOST)
        for size in sizes
    ]
    others = (
        Probe("2 threads", functools.partial(threads, 2), _FIRST_TEST_S, advice_when_lost=_LOST),
        Probe("torch, phalanx", functools.partial(over_torch, "phalanx", 2), _TEST_S, advice_when_lost=_LOST),
        Probe("torch, Gloo", gloo, _TEST_S, advice_when_lost=_NETWORK),
        Probe("torch, NCCL", nccl, _GPU_TEST_S, advice_when_lost=_NCCL),
        Probe("killed rank", killed_rank, _TEST_S, advice_when_lost=_LOST),
        Probe("view of a rank", view_of_a_rank, _TEST_S, advice_when_lost=_LOST),
    )
    return Topic(TITLE, (*crowds, *others))
