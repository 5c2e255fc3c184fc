"""Whether a bed of hosts can be made here."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

from phalanx_tools.hosts.host import python_command

_PROGRAMS = {"ip": "iproute2", "nsenter": "util-linux", "cc": "a C compiler"}
_TAP = "/dev/net/tun"
_TRIAL_S = 20


@functools.cache
def why_no_hosts() -> str:
    """Return why no hosts can be made on this machine, or ""."""
    if os.geteuid() != 0:
        return "hosts on one machine need root"
    for program, package in _PROGRAMS.items():
        if shutil.which(program) is None:
            return f"hosts on one machine need {package}: there is no command {program}"
    try:
        os.close(os.open(_TAP, os.O_RDWR))
    except OSError as error:
        return f"hosts on one machine need TAP devices: {_TAP}: {error.strerror}"
    command = python_command("requirements")
    trial = subprocess.run(command, capture_output=True, text=True, timeout=_TRIAL_S, check=False)
    if trial.returncode != 0:
        return f"hosts on one machine need namespaces: {trial.stderr.strip().splitlines()[-1]}"
    return ""


def main() -> None:
    """Try to get the namespaces of a host, in a process of its own."""
    from phalanx_tools.hosts import kernel_calls

    kernel_calls.unshare(sum(kernel_calls.NAMESPACES.values()))
    kernel_calls.mount("none", "/", flags=kernel_calls.MOUNT_RECURSIVE | kernel_calls.MOUNT_PRIVATE)
    kernel_calls.mount("sysfs", "/sys", "sysfs")
