"""`--rdzv-backend etcd-v2`: torch's rendezvous in a server of etcd, which is started here on the loopback interface."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import leftovers
from tests.jobs.hosts.launchers import job

_HAS_ETCD = shutil.which("etcd") is not None and importlib.util.find_spec("etcd") is not None


@contextlib.contextmanager
def _etcd(folder: Path) -> Iterator[str]:
    """Yield where a server with etcd's older interface listens; torch's etcd-v2 speaks only that."""
    with socket.socket() as claim, socket.socket() as second:
        claim.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        place, for_peers = (f"127.0.0.1:{each.getsockname()[1]}" for each in (claim, second))
    urls = ["--listen-client-urls", f"http://{place}", "--advertise-client-urls", f"http://{place}"]
    urls += ["--listen-peer-urls", f"http://{for_peers}", "--initial-advertise-peer-urls", f"http://{for_peers}"]
    urls += ["--initial-cluster", f"default=http://{for_peers}"]
    command = ["etcd", "--enable-v2", "--data-dir", str(folder / "etcd"), *urls]
    log = folder / "etcd.log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, env=os.environ) as server:
        try:
            ready = "ready to serve client requests"
            assert leftovers.wait_until(lambda: ready in log.read_text(), 60), log.read_text()
            yield place
        finally:
            server.kill()


@pytest.mark.slow
@pytest.mark.skipif(not _HAS_ETCD, reason="there is no etcd (package etcd-server), or no python-etcd")
def test_etcd_can_say_where_the_hosts_meet(tmp_path: Path) -> None:
    program = "import os; print('rank', os.environ['RANK'])"
    with _etcd(tmp_path) as place, job(tmp_path, program) as start:
        hosts = [start("--rdzv-backend", "etcd-v2", endpoint=place) for _ in range(2)]
        assert [host.end() for host in hosts] == [0, 0], hosts[0].text + hosts[1].text
        ranks = {line.split()[-1] for host in hosts for line in host.text.splitlines() if "rank " in line[4:9]}
        assert ranks == {"0", "1", "2", "3"}
