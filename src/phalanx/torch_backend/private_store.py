"""torch's store for ranks that phalanx has started: init_method env:// finds one that only this user can reach.

Elsewhere, and for programs that have set MASTER_ADDR or MASTER_PORT themselves, env:// stays what it is in torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import parse_qs, urlparse

from phalanx import settings
from phalanx.errors import UsageError
from phalanx.settings import ON_THE_SERVER
from phalanx.torch_backend.hosts_store import open_hosts_store
from phalanx.torch_backend.untyped import Store, dist


def meet_through_environment(url: str, timeout: timedelta) -> Iterator[tuple[Store, int, int]]:
    """Serve env:// of torch.distributed.rendezvous where a launcher keeps a store.

    Args:
        url: The URL, which may contain rank and world_size.
        timeout: How long operations of the store may take.

    Raises:
        UsageError: The launcher has gone.
    """
    place = settings.private_store()
    assert place is not None
    query = parse_qs(urlparse(url).query)
    placement = settings.read_placement()
    rank = int(query["rank"][0]) if "rank" in query or placement is None else placement.rank
    size = int(query["world_size"][0]) if "world_size" in query or placement is None else placement.size
    yield open_private_store(place, rank, size, timeout), rank, size
    raise RuntimeError("a rank can't meet the others again in the same process group")


def open_private_store(place: str, rank: int, size: int, timeout: timedelta) -> Store:
    """Open the launcher's store for one process group of all ranks.

    Args:
        place: The world's name and the file, see phalanx.launch.rendezvous; or, if there are several hosts, that the
            store is on the rendezvous server.
        rank: The number of this rank in the world.
        size: How many ranks there are.
        timeout: How long operations of the store may take.

    Raises:
        UsageError: The launcher has gone.
    """
    world, _, path = place.partition(":")
    if world == ON_THE_SERVER:
        return _count_group(open_hosts_store(path), rank, size, timeout)
    if not os.access(path, os.R_OK | os.W_OK):  # torch would wait for the file to appear
        raise UsageError(
            f"the launcher that kept torch's store ({path}) has gone, or this process may not look at it\n"
            "  do       start the ranks again, or give init_process_group a store or an init_method of your own"
        )
    return _count_group(dist.PrefixStore(f"phalanx/{world}", dist.FileStore(path)), rank, size, timeout)


def _count_group(store: Store, rank: int, size: int, timeout: timedelta) -> Store:
    store.set_timeout(timeout)
    # The store outlives process groups. Every rank counts its calls, so that the next group finds no old keys.
    number = store.add(f"init/{size}/{rank}", 1)
    return dist.PrefixStore(f"{size}/{number}", store)
