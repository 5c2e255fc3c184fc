"""How `phalanx diagnose` reaches the hosts of a job: a memory file of the launcher, which only its user can read."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator

from phalanx.diagnosis.memory_files import memory_files, open_memory_file
from phalanx.launch.hosts.addresses import Endpoint
from phalanx.launch.hosts.client import ServerClient

_NAME = "phalanx-access"
_MOST_BYTES = 1 << 16


@contextlib.contextmanager
def keep_access(place: Endpoint, token: str, number: int) -> Iterator[None]:
    """Let programs of this user ask the hosts of the job while the block runs.

    Args:
        place: Where the server is.
        token: The job's secret.
        number: The number of this host.
    """
    descriptor = os.memfd_create(_NAME)
    try:
        os.fchmod(descriptor, 0o600)
        os.pwrite(descriptor, json.dumps({"place": list(place), "token": token, "number": number}).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def find_access(launcher: int) -> tuple[ServerClient, int] | None:
    """Return a connection to the server of a launcher's job, and the number of its host; None if it is the only host.

    Only the user whose job it is gets it: the superuser does not act in the name of others.
    """
    for found in memory_files(launcher, _NAME):
        descriptor = open_memory_file(found) if found.is_ours else None
        if descriptor is None:
            continue
        try:
            facts = json.loads(os.pread(descriptor, _MOST_BYTES, 0))
            return ServerClient(Endpoint(*facts["place"]), facts["token"]), int(facts["number"])
        except (OSError, ValueError, TypeError, KeyError):
            continue
        finally:
            os.close(descriptor)
    return None
