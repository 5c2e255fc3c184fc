"""`phalanx run` and `phalanx diagnose` in which system calls fail: they go on without, or say why they can't."""

from __future__ import annotations

import errno
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system_calls.cases import Case, select
from tests.system_calls.commands import Commands, judge_command
from tests.system_calls.page import LAUNCHER, NEWBORN, ZYGOTE, find_compiler

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler for the library that makes calls fail"),
]

_SCRIPT = """
import torch, phalanx
group = phalanx.connect(timeout_s=10)
tensor = torch.ones(3)
group.all_reduce(tensor)
print(tensor.tolist())
"""
# Each takes as long as the import of torch.
_OFTEN = (
    Case(LAUNCHER, "memfd_create", errno.EMFILE, 1),
    Case(LAUNCHER, "socketpair", errno.EMFILE, 1),
    Case(LAUNCHER, "fork", errno.EAGAIN, 1),
    Case(LAUNCHER, "pipe", errno.EMFILE, 5),
    Case(ZYGOTE, "fork", errno.EAGAIN, 2),
    Case(NEWBORN, "dup", errno.EMFILE, 1),
)
_SELDOM = (
    *(Case(LAUNCHER, "memfd_create", number, 2) for number in (errno.EMFILE, errno.ENOMEM)),
    *(Case(LAUNCHER, "pidfd_open", errno.EMFILE, use) for use in (1, 2, 3)),
    *(Case(LAUNCHER, "socket", errno.EMFILE, use) for use in (1, 2)),
    *(Case(LAUNCHER, "socketpair", errno.EMFILE, use) for use in (2, 3, 4)),
    *(Case(LAUNCHER, "bind", errno.EPERM, use) for use in (1, 2)),
    *(Case(LAUNCHER, "sendmsg", errno.EPERM, use) for use in (1, 2)),
    *(Case(LAUNCHER, "pipe", errno.EMFILE, use) for use in (1, 2, 8)),
    *(Case(LAUNCHER, "dup", errno.EMFILE, use) for use in (1, 2)),
    *(Case(LAUNCHER, "recv", number, 1) for number in (errno.EINTR, errno.ENOMEM)),
    Case(LAUNCHER, "open", errno.EMFILE, 1),
    Case(LAUNCHER, "fallocate", errno.ENOSPC, 1),
    Case(LAUNCHER, "fcntl", errno.EPERM, 1),
    *(Case(ZYGOTE, "recvmsg", errno.ENOMEM, use) for use in (1, 2)),
    Case(ZYGOTE, "socketpair", errno.EMFILE, 1),
    *(Case(ZYGOTE, "send", errno.EPERM, use) for use in (2, 3, 5)),
    Case(NEWBORN, "memfd_create", errno.EMFILE, 1),
    Case(NEWBORN, "mmap", errno.ENOMEM, 1),
    Case(NEWBORN, "chdir", errno.EPERM, 1),
)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    return Commands(tmp_path_factory.mktemp("commands"))


def _is_full(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--failing-calls") == "all")


@pytest.mark.parametrize("case", [*_OFTEN, *_SELDOM], ids=lambda case: f"{case.role} {case}")
def test_a_launcher_says_which_call_has_failed(
    case: Case, commands: Commands, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if case in _SELDOM and not _is_full(request):
        pytest.skip("only with --failing-calls all")
    script = tmp_path / "program.py"
    script.write_text(_SCRIPT)
    began = time.monotonic()
    ended = commands.run(["run", "-n", "2", script], case)
    assert ended.struck > 0
    assert judge_command(ended, began=began, is_users=case.role == NEWBORN) == []


_HANGING = """
import sys, phalanx
def program():
    group = phalanx.connect(timeout_s=600)
    if group.rank == 0:
        group.barrier()
    print("there", flush=True)
    sys.stdin.readline()
phalanx.spawn(program, ranks=2)
"""


@pytest.fixture(scope="module")
def hanging_job() -> Iterator[int]:
    command = [sys.executable, "-c", _HANGING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        yield process.pid
        process.kill()


def test_a_diagnosis_goes_on_or_says_which_call_has_failed(
    commands: Commands, hanging_job: int, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["diagnose", hanging_job]
    complaints, num_cases = [], 0
    for case in select(LAUNCHER, commands.counts(arguments), is_full=_is_full(request)):
        began = time.monotonic()
        ended = commands.run(arguments, case)
        num_cases += 1
        complaints += [f"{case}: {wrong}" for wrong in judge_command(ended, began=began, is_users=False)]
    with capsys.disabled():
        print(f"\ndiagnose: {num_cases} cases", end=" ")
    assert not complaints, "\n".join(complaints)
