"""The options of `phalanx run` for jobs on several hosts, spelt as those of torchrun, and what they mean together."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from phalanx.cli.completion import complete_file
from phalanx.cli.numbers import Seconds, WholeNumber

if TYPE_CHECKING:
    from phalanx.launch.hosts.plan import HostsPlan

_BACKENDS = ("phalanx", "static", "c10d", "etcd-v2")
_NAMES = (
    *("num_hosts", "host_number", "rdzv_endpoint", "rdzv_id", "rdzv_backend", "rdzv_timeout_s"),
    *("master_addr", "master_port", "local_addr", "token_file"),
)


@dataclass(frozen=True)
class HostOptions:
    """What the user has given; None for options that were not given."""

    num_hosts: int | None
    host_number: int | None
    rdzv_endpoint: str | None
    rdzv_id: str | None
    rdzv_backend: str | None
    rdzv_timeout_s: float | None
    master_addr: str | None
    master_port: int | None
    local_addr: str | None
    token_file: Path | None


def _take_num_hosts(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """Return the number of hosts; torchrun also writes it as 2:2."""
    if text is None:
        return None
    least, colon, most = text.partition(":")
    if not least.isdecimal() or not 0 < int(least) <= 4096 or (colon and most != least):
        why = "; phalanx run starts when all hosts are there, so give one number" if colon else ""
        raise click.BadParameter(f"{text!r} is not a number of hosts{why}", context, option)
    return int(least)


_OPTIONS = (
    click.option(
        "--nnodes",
        "num_hosts",
        callback=_take_num_hosts,
        metavar="HOSTS",
        help="The number of hosts. Start phalanx run on each of them [default: 1; under Slurm: one for each "
        "task of the step].",
    ),
    click.option(
        "--node-rank",
        "host_number",
        type=WholeNumber(0),
        metavar="N",
        help="The number of this host, 0 to HOSTS - 1 [default: any that is free].",
    ),
    click.option(
        "--rdzv-endpoint", metavar="HOST:PORT", help="Where the hosts meet: one of them, and a port that is free there."
    ),
    click.option("--rdzv-id", metavar="ID", help="The name of the job, the same on all hosts [default: none]."),
    click.option(
        "--rdzv-backend",
        type=click.Choice(_BACKENDS),
        help="What finds out where the hosts meet: phalanx, or a rendezvous backend of torch [default: phalanx].",
    ),
    click.option(
        "--rdzv-timeout",
        "rdzv_timeout_s",
        type=Seconds(min=0, min_open=True),
        metavar="SECONDS",
        help="How long to wait for all hosts [default: 600].",
    ),
    click.option("--master-addr", metavar="HOST", hidden=True),
    click.option("--master-port", type=WholeNumber(1, 65535), metavar="PORT", hidden=True),
    click.option(
        "--local-addr",
        metavar="ADDRESS",
        help="The address at which other hosts reach this one [default: that of the route to them].",
    ),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        shell_complete=complete_file,
        help="A file that only you can read with the secret of the job, the same on all hosts [default: "
        "PHALANX_JOB_TOKEN].",
    ),
)


def host_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_host_options(options: dict[str, Any]) -> HostOptions:
    """Remove the options of hosts from all options, and return them."""
    return HostOptions(**{name: options.pop(name) for name in _NAMES})


def plan_hosts(given: HostOptions, environment: Mapping[str, str], num_program_words: int) -> HostsPlan | None:
    """Return where the hosts of the job meet; None if there is only this host.

    Args:
        given: The options.
        environment: The variables of the launcher.
        num_program_words: How many words of the command are the program and its arguments.

    Raises:
        click.UsageError: The options do not fit together.
    """
    from phalanx.launch.hosts.addresses import DEFAULT_PORT, parse_endpoint
    from phalanx.launch.hosts.plan import DEFAULT_TIMEOUT_S, HostsPlan
    from phalanx.launch.hosts.token import read_token
    from phalanx.settings import slurm_step

    step = slurm_step(environment) if given.num_hosts is None and given.rdzv_endpoint is None else None
    num_hosts = given.num_hosts or (step.num_hosts if step is not None else 1)
    if num_hosts == 1:
        _check_one_host(given)
        return None
    number = given.host_number if step is None or given.host_number is not None else step.number
    if number is not None and number >= num_hosts:
        raise click.UsageError(f"--node-rank {number}: with --nnodes {num_hosts}, give 0 to {num_hosts - 1}")
    place = given.rdzv_endpoint
    if place is None and given.master_addr is not None:
        place = f"{given.master_addr}:{given.master_port or DEFAULT_PORT}"
    if place is None and step is not None:
        place = f"{step.first_host}:{step.port}"
    if place is None:
        raise click.UsageError(
            f"--nnodes {num_hosts} needs --rdzv-endpoint HOST:PORT, the same on all hosts: where they meet, such as "
            f"{os.uname().nodename}:{DEFAULT_PORT} for a port of this host"
        )
    if given.rdzv_backend == "static" and number is None:
        raise click.UsageError("--rdzv-backend static needs --node-rank N on each host")
    words = sys.argv[1:]
    split = len(words) - num_program_words
    return HostsPlan(
        endpoint=parse_endpoint(place),
        num_hosts=num_hosts,
        number=number,
        job_id=given.rdzv_id or (f"slurm-{step.job}" if step is not None else "none"),
        token=read_token(None if given.token_file is None else str(given.token_file)),
        own_address=given.local_addr or "",
        timeout_s=given.rdzv_timeout_s or DEFAULT_TIMEOUT_S,
        backend=given.rdzv_backend or "phalanx",
        options=("phalanx", *words[:split]),
        program=tuple(words[split:]),
    )


def _check_one_host(given: HostOptions) -> None:
    """Refuse options that have no meaning if there is only this host."""
    if given.host_number:
        raise click.UsageError(f"--node-rank {given.host_number}: there is only host 0; give --nnodes HOSTS")
    for name in _NAMES[2:]:
        value = getattr(given, name)
        if value is not None:
            option = "--" + name.removesuffix("_s").replace("_", "-")
            raise click.UsageError(
                f"{option} {value}: ranks of one machine meet without an address or a port; leave this option out, or "
                "give --nnodes HOSTS"
            )
