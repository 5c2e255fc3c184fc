"""What tests over several hosts use: the bed of phalanx_tools.hosts, and when they are skipped."""

from __future__ import annotations

import pytest

from phalanx_tools.hosts.bed import Bed, hosts
from phalanx_tools.hosts.host import Host
from phalanx_tools.hosts.requirements import why_no_hosts

__all__ = ["Bed", "Host", "hosts", "needs_hosts"]

needs_hosts = pytest.mark.skipif(bool(why_no_hosts()), reason=why_no_hosts() or "hosts can be made here")
