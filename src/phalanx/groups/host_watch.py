"""Let the hosts of a job watch each other if torchrun, mpiexec or srun has started its ranks.

`phalanx run` watches its hosts itself. Without it, the first rank of each host starts a watcher: see
phalanx.launch.watcher. The watchers meet at the host of rank 0, at a port that the kernel chooses, and find that place
on the job's board.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import time
import weakref
from typing import Any

from phalanx.collectives import LocalGroup
from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.groups.hybrid import HybridGroup
from phalanx.launch.board import Board
from phalanx.launch.context import current_context
from phalanx.launch.hosts.addresses import Endpoint, claim_port
from phalanx.launch.hosts.json_lines import JsonLines
from phalanx.launch.rank_server import set_watching_server
from phalanx.launch.watcher import WatchTask
from phalanx.settings import copy_environment, job_desk, job_id, job_token

# It must not look for modules in the working directory, as Python does with -c.
_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); from phalanx.launch.watcher import main; "
    "main(int(sys.argv[1]))"
)
_PLACE, _REFUSED = "place", "refused"
_BETWEEN_LOOKS_S = 0.5

# The first group of all ranks over hosts that this process has made, by process: a forked child is no rank.
_worlds: dict[int, weakref.ref[HybridGroup]] = {}


def watch_hosts(group: LocalGroup, board: Board, address: str, timeout_s: float) -> None:
    """Start the watchers, if the group is the first of all ranks of a job over hosts that nobody watches yet.

    Every rank of the group must call it. It returns when all hosts watch each other.

    Args:
        group: The group.
        board: What all its ranks see; the keys must be new.
        address: The address that other hosts reach this one at.
        timeout_s: How long to wait for the watchers of all hosts.

    Raises:
        UsageError: A host does not fit, for example because it has another version of phalanx.
        OperationTimeoutError: The watchers did not meet in time.
    """
    if not isinstance(group, HybridGroup) or current_context() is not None or job_desk():
        return
    # If some ranks are new processes in a world of others, all start again.
    board.set(f"is watched/{group.rank}", "yes" if os.getpid() in _worlds else "no")
    if set(board.get_many([f"is watched/{rank}" for rank in range(group.size)], timeout_s)) == {"yes"}:
        return
    number = next(host for host, ranks in enumerate(group.hosts) if group.rank in ranks)
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        if group.rank == 0:
            claim = stack.enter_context(claim_port(address))
            token = "" if job_token() else secrets.token_hex(32)
            board.set(_PLACE, json.dumps({"place": [address, claim.getsockname()[1]], "token": token}))
        meeting = json.loads(board.get(_PLACE, timeout_s))
        place, token = Endpoint(*meeting["place"]), job_token() or str(meeting["token"])
        if group.rank == group.hosts[number][0]:
            task = WatchTask(
                place=(place.host, place.port),
                number=number,
                num_hosts=len(group.hosts),
                ranks=group.hosts[number],
                pids=tuple(row.any_pid for row in group.snapshot()),
                num_ranks=group.size,
                job_id=job_id(),
                token=token,
                address=address,
                timeout_s=timeout_s,
                world=group.nonce.hex(),
            )
            why = _start_watcher(task, board, deadline)
            board.set(f"ready/{number}", why)
            if why:
                board.set(_REFUSED, why)
        for_all = board.get_many([f"ready/{host}" for host in range(len(group.hosts))], timeout_s)
    if why := next(filter(None, for_all), ""):
        raise UsageError(f"the hosts of this job can't watch each other: {why}")
    set_watching_server(place, token)
    _worlds[os.getpid()] = weakref.ref(group)


def watched_world() -> LocalGroup | None:
    """Return the group that breaks when a host of this job is lost; None if nobody watches, or it is closed."""
    world = _worlds.get(os.getpid())
    group = None if world is None else world()
    return None if group is None or group.is_closed else group


def _start_watcher(task: WatchTask, board: Board, deadline: float) -> str:
    """Start the watcher of this host, and wait until it has met those of all hosts; return why it has not, or ""."""
    ours, theirs = socket.socketpair()
    with theirs:
        starting = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=copy_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C in the terminal does not reach it
        )
    lines = JsonLines(ours)
    try:
        lines.send(task.to_json())
        return _await_answer(lines, board, deadline)
    finally:
        lines.close()
        starting.wait()  # it has only started the watcher


def _await_answer(lines: JsonLines, board: Board, deadline: float) -> str:
    while time.monotonic() < deadline:
        if select.select([lines.fileno()], [], [], _BETWEEN_LOOKS_S)[0]:
            try:
                messages: list[dict[str, Any]] = lines.read()
            except EOFError:
                return "a watcher has ended before the job began; the lines above say why"
            for message in messages:
                return "" if message["kind"] == "started" else str(message["why"])
        with contextlib.suppress(OperationTimeoutError):
            return board.get(_REFUSED, 0.0)  # another host can't take part
    return "the watchers did not meet in time"
