"""The options of torchrun that `phalanx run` does not have: it refuses them, and says what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import click


@dataclass(frozen=True)
class _Refused:
    """An option of torchrun.

    Attributes:
        names: Its names.
        advice: What to do instead.
        accepted: The values that change nothing here, so that they are accepted all the same.
        is_flag: Whether the option takes no value.
    """

    names: tuple[str, ...]
    advice: str
    accepted: tuple[str, ...] = ()
    is_flag: bool = False


_LOGS = "--log-dir DIR saves the output of every rank and still prints it; leave this option out"
_NOT_NEEDED = "phalanx run does not need it; leave this option out"
_FILTER = "every line begins with its rank, such as [3], so filter the output with grep; leave this option out"
_EXTENSION = "phalanx run loads no extensions of torchrun; leave this option out"
OF_TORCHRUN = (
    _Refused(("--rdzv-conf",), "give --rdzv-timeout SECONDS, or leave this option out"),
    _Refused(("-r", "--redirects"), _LOGS),
    _Refused(("-t", "--tee"), _LOGS),
    _Refused(("--role",), "ranks of phalanx run all have the role default; leave this option out"),
    _Refused(("--start-method",), _NOT_NEEDED),
    _Refused(("--monitor-interval",), _NOT_NEEDED),
    _Refused(("--shutdown-timeout",), "give --grace SECONDS instead"),
    _Refused(
        ("--virtual-local-rank",),
        "with --gpus and fewer GPUs than ranks, each rank sees its GPU as cuda:0 and has LOCAL_RANK 0; give that "
        "instead",
        is_flag=True,
    ),
    _Refused(
        ("--run-path",),
        "a script always runs in the interpreter that is already there; leave this option out",
        is_flag=True,
    ),
    *(
        _Refused((name,), _FILTER)
        for name in ("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters")
    ),
    _Refused(("--logs-specs",), _EXTENSION),
    _Refused(("--event-log-handler",), _EXTENSION),
    _Refused(("--numa-binding",), "phalanx run does not bind ranks to cores; leave this option out"),
    _Refused(("--signals-to-handle",), "phalanx run passes on SIGINT, SIGTERM and SIGHUP; leave this option out"),
)
_BY_NAMES = {option.names: option for option in OF_TORCHRUN}


def refuse_torchrun_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of torchrun that are refused with advice. `--help` does not list them."""
    for option in OF_TORCHRUN:
        command = click.option(
            *option.names, is_flag=option.is_flag, hidden=True, expose_value=False, callback=_refuse
        )(command)
    return command


def _refuse(context: click.Context, option: click.Parameter, value: str | bool | None) -> None:
    refused = _BY_NAMES[tuple(option.opts)]
    if value in (None, False, *refused.accepted) or context.resilient_parsing:
        return
    given = option.opts[-1] if refused.is_flag else f"{option.opts[-1]} {value}"
    raise click.UsageError(f"{given}: {refused.advice}")
