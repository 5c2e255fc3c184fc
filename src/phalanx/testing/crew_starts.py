"""Three ways to start a crew: forked from this process, forked from a zygote, or as separate programs.

A fork of this process has everything that this process has imported and set up. The other ways are for a process whose
forks do not work, because it has initialised CUDA or runs threads, as a notebook does. There, tasks must be sent to the
ranks.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Sequence

from phalanx.errors import InternalError
from phalanx.launch.connection import Connection
from phalanx.launch.context import current_context
from phalanx.launch.forked_ranks import ForkedRanks
from phalanx.launch.outcome import could_not_start, describe_process_limit
from phalanx.launch.rank_devices import RankGpus
from phalanx.launch.rank_process import Report
from phalanx.launch.sending import pack
from phalanx.launch.waiting import is_readable
from phalanx.launch.world import name_meeting, open_world
from phalanx.launch.zygote_client import ZygoteClient
from phalanx.launch.zygote_ranks import ZygoteRanks, make_request, open_standard_streams
from phalanx.testing.crew import Crew
from phalanx.testing.crew_rank import CrewRank, fork_member, open_member, watch_process
from phalanx.testing.output import OutputFiles
from phalanx.testing.stacks import answer_with_stacks
from phalanx.testing.task_watch import Terminal

# The function of a rank: it serves its connection until the crew closes it.
Serve = Callable[[Connection], None]

_START_S = 120.0


def fork_crew(
    main: Callable[[int, Connection], None], num_ranks: int, *, redirect: bool, terminal: Terminal | None = None
) -> Crew:
    """Fork ranks from this process that each run `main(rank, connection)` and end.

    Raises:
        RankFailedError: A process could not be started.
    """
    starter = ForkedRanks()
    crew = Crew([], starter, terminal)
    try:
        for rank in range(num_ranks):

            def be_rank(connection: Connection, rank: int = rank) -> None:
                main(rank, connection)

            try:
                fork_member(crew.members, be_rank, starter, redirect=redirect)
            except OSError as error:
                raise could_not_start(rank, num_ranks, error.errno or 0, describe_process_limit(error)) from error
    except BaseException:
        crew.close()
        raise
    return crew


def start_crew(
    num_ranks: int,
    serve: Serve,
    zygote: ZygoteClient,
    *,
    redirect: bool,
    terminal: Terminal | None = None,
    gpus: RankGpus | None = None,
) -> Crew:
    """Let a zygote fork ranks.

    Args:
        num_ranks: How many ranks.
        serve: The function that they run; must be picklable.
        zygote: The process that they are forked from.
        redirect: Whether each prints into its own files.
        terminal: The terminal that debugged ranks share.
        gpus: Their virtual GPUs; None for those that this process has set up.

    Raises:
        InternalError: They did not start.
        RankFailedError: A process could not be started.
        OSError: There are no more descriptors for them.
    """
    payload = pack((_be_zygotes_rank, (serve, redirect), {}))
    members: list[CrewRank] = []
    starter = ZygoteRanks(members, has_groups=True)
    crew = Crew(members, starter, terminal)
    try:
        with contextlib.ExitStack() as starting:
            theirs = _open_members(members, num_ranks, starting)
            segment = starting.enter_context(open_world(num_ranks))
            descriptors = [segment.descriptor, *open_standard_streams(starting)]
            for member, connection in zip(members, theirs, strict=True):
                descriptors += _of_rank(member, connection)
            starter.start(make_request(payload, num_ranks, name_meeting(), 1, gpus), descriptors, zygote)
        starter.await_start()
        _await_ready(members)
    except BaseException:
        crew.close()
        raise
    return crew


def start_programs(command: Callable[[str], Sequence[str]], num_ranks: int, terminal: Terminal) -> Crew:
    """Start ranks as separate programs.

    Args:
        command: Makes the command line from a text that the program must pass to be_program().
        num_ranks: How many ranks.
        terminal: The terminal that debugged ranks share.

    Raises:
        InternalError: They did not start.
        OSError: There are no more processes or descriptors for them.
    """
    starter = ForkedRanks()
    crew = Crew([], starter, terminal)
    try:
        with contextlib.ExitStack() as starting:
            theirs = _open_members(crew.members, num_ranks, starting)
            for member, connection in zip(crew.members, theirs, strict=True):
                own = _of_rank(member, connection)
                process = subprocess.Popen(
                    command(",".join(map(str, own))), pass_fds=own, start_new_session=True, stdin=subprocess.DEVNULL
                )
                process.returncode = 0  # the crew waits for it
                watch_process(member, process.pid, starter)
        _await_ready(crew.members)
    except BaseException:
        crew.close()
        raise
    return crew


def be_program(descriptors: str, serve: Serve, *, redirect: bool) -> None:
    """Run a rank that start_programs() has started."""
    connection, *files = map(int, descriptors.split(","))
    _be_started(Connection(socket.socket(fileno=connection)), OutputFiles(*files), serve, redirect)


def _be_zygotes_rank(serve: Serve, redirect: bool) -> None:
    context = current_context()
    assert context is not None
    with contextlib.suppress(ConnectionError):
        _be_started(context.own["connection"], OutputFiles(*context.own["descriptors"]), serve, redirect)


def _be_started(connection: Connection, files: OutputFiles, serve: Serve, redirect: bool) -> None:
    if redirect:
        files.redirect()
    answer_with_stacks(files)
    connection.send(("ready",))
    serve(connection)


def _open_members(members: list[CrewRank], num_ranks: int, starting: contextlib.ExitStack) -> list[Connection]:
    """Add the members, and return the ranks' ends of their connections.

    `starting` closes these ends here once the ranks have them: only then can the end of a rank be seen.
    """
    theirs = []
    for rank in range(num_ranks):
        member, other = open_member(rank)
        members.append(member)
        starting.callback(other.close)
        theirs.append(other)
    return theirs


def _of_rank(member: CrewRank, connection: Connection) -> list[int]:
    return [connection.fileno(), member.files.out, member.files.err, member.files.stacks]


def _await_ready(members: Sequence[CrewRank]) -> None:
    deadline = time.monotonic() + _START_S
    for member in members:
        has_news = is_readable(member.connection.fileno(), deadline - time.monotonic())
        received = member.connection.receive() if has_news else None
        if received is not None and received[0] == ("ready",):
            continue
        how = "" if has_news else f" in {_START_S:.0f} s"
        if received is not None and isinstance(received[0], Report):
            how = f": {received[0].description}"
        raise InternalError(f"rank {member.number} did not start{how}")
