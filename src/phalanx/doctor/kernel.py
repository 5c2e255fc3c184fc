"""Probes of the system: kernel, C library, Python, container, and what processes see of each other."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

from phalanx.doctor.finding import Answer, Probe, Topic
from phalanx.doctor.neighbours import neighbour
from phalanx.doctor.system_calls import yama_scope

_OLDEST_KERNEL = (5, 3)
_TESTED_PYTHONS = ((3, 11), (3, 12))


def kernel() -> Answer:
    """Name kernel and C library."""
    release = platform.release()
    found = re.match(r"(\d+)\.(\d+)", release)
    library = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else None
    text = f"{platform.system()} {release} on {platform.machine()}, {library or 'a C library that is not glibc'}"
    if platform.system() != "Linux" or found is None or tuple(map(int, found.groups())) < _OLDEST_KERNEL:
        return Answer("problem", text, "Use Linux 5.3 or newer: phalanx needs memfd, futex and pidfd.")
    return Answer("ok", text)


def python() -> Answer:
    """Name Python's version."""
    text = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if sys.version_info[:2] in _TESTED_PYTHONS:
        return Answer("ok", text)
    return Answer("note", f"{text}; phalanx is tested with 3.11 and 3.12")


def engine() -> Answer:
    """Load the native extension and let it make the memory of a group."""
    from phalanx.engine import create_group_segment

    segment = create_group_segment("doctor", 2, crowd=2)
    segment.close_descriptor()
    return Answer("ok", "loads, and makes the memory of a group")


def process_folder(folder: Path = Path("/proc")) -> Answer:
    """See whether /proc shows other processes of this user: their state, and the files they have open."""
    descriptor = os.memfd_create("phalanx-doctor")
    try:
        with neighbour() as pid:
            (folder / str(pid) / "stat").read_bytes()
            target = os.readlink(folder / str(pid) / "fd" / str(descriptor))
    finally:
        os.close(descriptor)
    if "memfd:phalanx-doctor" not in target:
        return Answer("note", f"shows processes of this user, but calls their memory {target}")
    hidden = re.search(r"hidepid=(\w+)", _mount_options(folder))
    others = "; those of others are hidden, which does not matter" if hidden and hidden[1] not in ("0", "off") else ""
    return Answer("ok", f"shows processes of this user and what they have open{others}")


def ptrace_scope() -> Answer:
    """Name Yama's rule, and say that it does not matter."""
    scope = yama_scope()
    if scope == 0:
        return Answer("ok", "0: debuggers may attach to ranks")
    text = "debuggers can't attach to every process; phalanx never attaches, so it does not matter"
    return Answer("ok", f"{scope}: {text}")


def container(root: Path = Path("/")) -> Answer:
    """Say whether this is a container, and whether users are mapped."""
    signs = {"Docker": ".dockerenv", "Podman": "run/.containerenv", "Singularity": ".singularity.d"}
    names = [name for name, sign in signs.items() if (root / sign).exists()]
    if (root / "var/run/secrets/kubernetes.io").exists():
        names.append("Kubernetes")
    text = f"{' and '.join(names)}; ranks must share it" if names else "none seen"
    users = (root / "proc/self/uid_map").read_text().split()
    if users != ["0", "0", "4294967295"]:
        text += "; users are mapped (a user namespace), which does not matter"
    return Answer("ok", text)


def _mount_options(folder: Path) -> str:
    # Users can mount things too, under any name: only spaces and line ends are escaped there.
    for line in Path("/proc/mounts").read_bytes().rstrip(b"\n").split(b"\n"):
        _, place, _, options, *_ = line.split(b" ")
        if place == os.fsencode(folder):
            return options.decode(errors="replace")
    return ""


TOPIC = Topic(
    "System",
    (
        Probe("kernel", kernel),
        Probe("Python", python),
        Probe("engine", engine, advice_when_lost="Install phalanx again: its native extension does not work here."),
        Probe("/proc", process_folder,
              advice_when_lost="Mount /proc so that this user's own processes are visible (hidepid below 3)."),
        Probe("ptrace_scope", ptrace_scope, is_needed=False),
        Probe("container", container, is_needed=False),
    ),
)  # fmt: skip
