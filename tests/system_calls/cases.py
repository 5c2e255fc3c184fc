"""Which call fails how, and what must come of it."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What the kernel may answer, as far as a program can meet it: limits, memory, signals, and a seccomp filter's EPERM.
_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPERM)
_MEMORY = (errno.ENOMEM, errno.ENOSPC, errno.EPERM)
_TALK = (errno.EINTR, errno.ENOMEM, errno.EPERM)
ERRORS: Mapping[str, tuple[int, ...]] = {
    "memfd_create": _FILES,
    "ftruncate": (errno.EINTR, *_MEMORY),
    "fallocate": (errno.EINTR, *_MEMORY),
    "mmap": (errno.ENOMEM, errno.EAGAIN, errno.ENFILE, errno.EPERM),
    "madvise": (errno.EINTR, errno.EAGAIN, errno.ENOMEM, errno.EPERM),
    "fcntl": (errno.EMFILE, errno.ENOMEM, errno.EPERM),
    "futex": (errno.EINTR, errno.EAGAIN, errno.ENOMEM, errno.EPERM),
    "pidfd_open": _FILES,
    "poll": (errno.EINTR, errno.EAGAIN, errno.ENOMEM),
    "socket": _FILES,
    "socketpair": _FILES,
    "bind": (errno.ENOMEM, errno.EPERM),
    "listen": (errno.ENOMEM, errno.EPERM),
    "connect": (errno.EINTR, errno.EAGAIN, errno.ENOMEM, errno.EPERM),
    "accept": (errno.EINTR, errno.EAGAIN, *_FILES),
    "sendmsg": (*_TALK, errno.ETOOMANYREFS),
    "recvmsg": _TALK,
    "send": _TALK,
    "recv": _TALK,
    "getsockopt": (errno.ENOMEM, errno.EPERM),
    "fork": (errno.EAGAIN, errno.ENOMEM, errno.EPERM),
    "open": (errno.EINTR, *_FILES),
    "pipe": _FILES,
    "dup": (errno.EMFILE, errno.EINTR, errno.EPERM),
    "epoll_create": _FILES,
    "epoll_ctl": (errno.ENOMEM, errno.ENOSPC, errno.EPERM),
    "epoll_wait": (errno.EINTR,),
    "read": (errno.EINTR,),
    "write": (errno.EINTR, errno.ENOSPC, errno.EPERM),
    "waitpid": (errno.EINTR,),
    "setpgid": (errno.EPERM,),
    "fchmod": (errno.EPERM,),
    "fstat": (errno.ENOMEM, errno.EPERM),
    "thread": (errno.EAGAIN, errno.ENOMEM, errno.EPERM),
    "chdir": (errno.ENOMEM, errno.EPERM),
    "getrandom": (errno.EINTR, errno.ENOSYS, errno.EPERM),
}
_SOON_S = 50.0  # before the timeout of operations, which is 60 s


@dataclass(frozen=True)
class Case:
    """In a process of this role, the call fails for the first time at its n-th use, and so often."""

    role: int
    call: str
    errno: int
    first: int
    count: int = 1

    def __str__(self) -> str:
        how = errno.errorcode.get(self.errno, "")
        return f"{self.call} {how} at use {self.first}" + (f", {self.count} times" if self.count > 1 else "")

    def facts(self) -> dict[str, Any]:
        return asdict(self)


def select(role: int, counts: Mapping[str, int], *, is_full: bool) -> Iterator[Case]:
    """Choose cases: each call with each error at each use; or with two at its first use and another at its last."""
    for call, errors in ERRORS.items():
        num_uses = counts.get(call, 0)
        if is_full:
            yield from (Case(role, call, number, use) for use in range(1, num_uses + 1) for number in errors)
        elif num_uses > 0:
            yield from (Case(role, call, number, 1) for number in dict.fromkeys((errors[0], errors[-1])))
            if num_uses > 1:
                yield Case(role, call, errors[1 % len(errors)], num_uses)


def select_lasting(role: int, counts: Mapping[str, int]) -> Iterator[Case]:
    """Choose cases in which a call fails from its first use on, as it does when descriptors or memory are used up."""
    for call, errors in ERRORS.items():
        lasting = [number for number in errors if number not in (errno.EINTR, errno.EAGAIN)]
        if counts.get(call, 0) > 0 and lasting:
            yield Case(role, call, lasting[0], 1, count=1 << 30)


def judge(case: Case, result: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with how a job took it."""
    wrong = [f"left behind: {left}" for left in result["left"]]
    error = result["error"]
    if error["kind"]:
        wrong += [f"spawn() raised {problem}" for problem in _judge_words(error)]
        if result["seconds"] > _SOON_S:
            wrong.append(f"it took {result['seconds']:.1f} s: {error['kind']}: {error['text']}")
    for rank in result["ranks"]:
        wrong += [f"rank {rank['rank']} raised {problem}" for problem in _judge_words(rank)]
        if case.role >= 0 and rank["kind"] and rank["rank"] != case.role and not _names(rank, case.role):
            wrong.append(f"rank {rank['rank']} does not name rank {case.role}: {rank['kind']}: {rank['text']}")
    return wrong


def _judge_words(error: Mapping[str, Any]) -> Iterator[str]:
    told = f"{error['kind']}: {error['text']}"
    if error["kind"] and not {"PhalanxError", "OSError"}.intersection(error["classes"]):
        yield f"what is neither an error of phalanx nor of the system: {told}"
    if "InternalError" in error["classes"]:
        yield f"what looks like a bug: {told}"
    if "OperationTimeoutError" in error["classes"]:
        yield f"only when the time was up: {told}"
    if "SIG" in error["text"]:
        yield f"a signal: {told}"
    if error["kind"] and len(error["text"]) < 20:
        yield f"no words: {told}"


def _names(error: Mapping[str, Any], rank: int) -> bool:
    return rank in error["culprits"] or f"rank {rank}" in error["text"]
