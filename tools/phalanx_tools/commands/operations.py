"""`./dev operations`: every operation of torch on a virtual device, compared with the CPU."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from phalanx_tools.conformance.operations import OperationOutcome


@click.command()
@click.option("--face", type=click.Choice(["virtual", "cuda"]), default="virtual", show_default=True,
              help='Use devices of type "virtual", or virtual GPUs of type "cuda".')  # fmt: skip
@click.option("--samples", "most_samples", type=click.IntRange(min=1), default=12, show_default=True,
              help="How often each operation is called at most.")  # fmt: skip
@click.argument("names", nargs=-1)
def operations(face: str, most_samples: int, names: tuple[str, ...]) -> None:
    """Run torch's operations, or only those in NAMES, on a virtual device and on the CPU.

    Results and gradients must be the same. The exit code is 1 if one of them differs. The operations and their
    arguments are those of torch's own tests (OpInfo).
    """
    from phalanx.errors import UsageError
    from phalanx.virtual_gpus.set_up import virtual_devices
    from phalanx_tools.conformance.operations import operation_names, run_operations

    try:
        device = virtual_devices(2, face=face, gpu="h100" if face == "cuda" else None)[1]  # type: ignore[arg-type]
        known = operation_names()
    except ImportError as error:
        raise click.ClickException(
            f"torch's own tests need another package: {error}; pip install expecttest"
        ) from error
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise click.UsageError(f"torch's database has no operation {', '.join(unknown)}")
    start = time.monotonic()
    outcomes = []
    for outcome in run_operations(names or known, str(device), most_samples):
        outcomes.append(outcome)
        _tell(outcome, len(outcomes), len(names or known))
    click.echo(_summary(outcomes, str(device), time.monotonic() - start))
    sys.exit(0 if all(outcome.status in ("right", "not on the CPU") for outcome in outcomes) else 1)


def _tell(outcome: OperationOutcome, done: int, total: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{done}/{total} {outcome.name[:60]:60}", nl=False, err=True)
    if outcome.status != "right":
        click.echo(f"{outcome.status:15} {outcome.name}: {outcome.reason}")


def _summary(outcomes: list[OperationOutcome], device: str, seconds: float) -> str:
    counts = Counter(outcome.status for outcome in outcomes)
    comparable = len(outcomes) - counts["not on the CPU"]
    samples, gradients = (sum(getattr(o, name) for o in outcomes) for name in ("num_samples", "num_gradients"))
    return (
        f"operations {device}: {counts['right']} of {comparable} right, {samples} calls and {gradients} gradients "
        f"compared in {seconds:.0f} s"
    )
