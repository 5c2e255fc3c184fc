"""What the other hosts of a running job do, for `phalanx diagnose`."""

from __future__ import annotations

from phalanx.diagnosis.observation import HostObservation, Observation
from phalanx.diagnosis.plain_data import from_plain
from phalanx.errors import PhalanxError
from phalanx.launch.hosts.access import find_access

_ANSWER_S = 3.0


def observe_other_hosts(launcher: int) -> list[HostObservation]:
    """Return the observations of the other hosts of a launcher's job; [] if it has only one.

    Args:
        launcher: The process id of the launcher here, or 0.
    """
    access = find_access(launcher) if launcher else None
    if access is None:
        return []
    client, number = access
    try:
        answer = client.request({"kind": "ask", "what": {"kind": "observe"}}, _ANSWER_S)
    except PhalanxError as error:
        return [HostObservation(f"the other hosts ({str(error).splitlines()[0]})", None)]
    finally:
        client.close()
    found = {int(host): _read(value) for host, value in answer["answers"].items()}
    found |= {int(host): None for host in answer["silent"]}
    return [
        HostObservation(f"host {host}" + (f" ({seen.host})" if seen is not None else ""), seen)
        for host, seen in sorted(found.items())
        if host != number
    ]


def _read(value: object) -> Observation | None:
    try:
        return from_plain(Observation, value["seen"]) if isinstance(value, dict) else None
    except (ValueError, TypeError, KeyError):  # of another version of phalanx
        return None
