"""What the facts about hosts and the paths between them mean for a job. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.doctor.finding import Finding, Status
from phalanx.doctor.hosts.facts import HostFacts
from phalanx.doctor.hosts.paths import Path

_HOSTS, _NETWORK = "Hosts", "Network"
_MUST_BE_ALIKE = ("phalanx", "torch")
_CLOCKS_S = 1.0
_SLOW_TRIP_S = 2e-3  # a switch in one building takes less than 0.2 ms
_SMALL_PART = 0.5  # of the rate that the interface promises
_OPEN_PORTS = (
    "Let the hosts connect to each other at all ports: engines such as Gloo and NCCL listen at ports that the kernel "
    "chooses (/proc/sys/net/ipv4/ip_local_port_range)."
)


def compare_hosts(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Compare what the hosts say about themselves."""
    packages = list(dict.fromkeys(name for host in hosts for name in host.versions))
    return [*_machines(hosts), *(_versions(hosts, package) for package in packages), _sizes_of_packets(hosts)]


def compare_paths(hosts: Sequence[HostFacts], rows: Sequence[Sequence[Path]]) -> list[Finding]:
    """Judge each path from one host to another, and the clocks."""
    findings = [
        _path(hosts[source], hosts[target], path)
        for source, row in enumerate(rows)
        for target, path in enumerate(row)
        if source != target
    ]
    return [*findings, _clocks(hosts, rows)]


def _machines(hosts: Sequence[HostFacts]) -> list[Finding]:
    """Find hosts that are one machine: that is no error, but seldom meant."""
    seen = dict[str, HostFacts]()
    findings = []
    for host in hosts:
        other = seen.setdefault(host.machine, host)
        if other is not host:
            text = f"{host.name} and {other.name} are the same machine"
            findings.append(Finding(_HOSTS, "machines", "note", text, "Start one launcher on each machine."))
    return findings or [Finding(_HOSTS, "machines", "ok", f"{len(hosts)} different ones")]


def _versions(hosts: Sequence[HostFacts], package: str) -> Finding:
    by_version = dict[str, list[str]]()
    for host in hosts:
        by_version.setdefault(host.versions.get(package, "") or "not installed", []).append(host.name)
    if len(by_version) == 1:
        return Finding(_HOSTS, package, "ok", f"{next(iter(by_version))} everywhere")
    text = "; ".join(f"{version} on {', '.join(names)}" for version, names in by_version.items())
    status: Status = "problem" if package in _MUST_BE_ALIKE else "note"
    return Finding(_HOSTS, package, status, text, f"Install the same version of {package} on all hosts.")


def _sizes_of_packets(hosts: Sequence[HostFacts]) -> Finding:
    sizes = {host.interface_mtu for host in hosts if host.interface_mtu}
    text = ", ".join(f"{host.interface or '?'} of {host.name}: {host.interface_mtu or '?'}" for host in hosts)
    if len(sizes) <= 1:
        return Finding(_HOSTS, "packet size", "ok", text)
    advice = (
        "Give all network interfaces the same MTU (ip link set dev INTERFACE mtu SIZE): large packets may be lost on "
        "the way."
    )
    return Finding(_HOSTS, "packet size", "note", text, advice)


def _path(source: HostFacts, target: HostFacts, path: Path) -> Finding:
    subject = f"{source.name} to {target.name}"
    if path.problem:
        advice = _OPEN_PORTS
        if path.trip_s:
            advice = (
                f"Look for different MTUs between {source.name} and {target.name}: long packets are lost on the way."
            )
        return Finding(_NETWORK, subject, "problem", f"{target.name} {path.problem}", advice)
    text = f"round trip {_duration(path.trip_s)}, {_rate(path.bits_per_s)}"
    promised = min(host.interface_mbit * 1e6 for host in (source, target))
    if promised and path.bits_per_s < _SMALL_PART * promised:
        text += f", and the interfaces promise {_rate(promised)}"
        advice = "Measure again when nothing else uses the network and the hosts; then look at interfaces and switch."
        return Finding(_NETWORK, subject, "note", text, advice)
    if path.trip_s > _SLOW_TRIP_S:
        advice = "Small messages between these hosts are slow: use hosts that are close to each other, and wired."
        return Finding(_NETWORK, subject, "note", text, advice)
    return Finding(_NETWORK, subject, "ok", text)


def _clocks(hosts: Sequence[HostFacts], rows: Sequence[Sequence[Path]]) -> Finding:
    """Compare all clocks with that of the first host."""
    ahead = {
        host.name: path.clock_s
        for host, path in zip(hosts[1:], rows[0][1:], strict=True)
        if not path.problem or path.trip_s
    }
    wrong = {name: offset_s for name, offset_s in ahead.items() if abs(offset_s) > _CLOCKS_S}
    if not wrong:
        return Finding(_NETWORK, "clocks", "ok", f"within {_CLOCKS_S:g} s of each other")
    parts = [
        f"{name} is {abs(s):.1f} s {'ahead of' if s > 0 else 'behind'} {hosts[0].name}" for name, s in wrong.items()
    ]
    return Finding(
        _NETWORK, "clocks", "note", f"{'; '.join(parts)}. phalanx does not compare clocks; logs of several hosts do",
        "Let all hosts get their time from NTP (chrony, systemd-timesyncd).",
    )  # fmt: skip


def _duration(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:.2f} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.0f} Mbit/s"
