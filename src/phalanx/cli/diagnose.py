"""`phalanx diagnose`: show which rank waits for which in a job that runs, hangs or has failed."""

from __future__ import annotations

import contextlib
import errno
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from phalanx.cli.completion import complete_job
from phalanx.cli.numbers import Seconds

if TYPE_CHECKING:
    from phalanx.diagnosis.job_list import RunningJob
    from phalanx.diagnosis.observation import Observation


@click.command()
@click.argument("job", required=False, shell_complete=complete_job)
@click.option("--list", "is_list", is_flag=True, help="Only list the jobs that are running on this machine.")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON, in the form of a flight record.")
@click.option("--watch", "watch_s", type=Seconds(min=0.1, hint="; put the job before --watch"), is_flag=False,
              flag_value=1.0, metavar="[SECONDS]",
              help="Look again every second, or every SECONDS, until the job ends or you press Ctrl-C.")  # fmt: skip
@click.option("--short", is_flag=True, help="Leave out the last operations of each rank.")
@click.option("--torch", "torch_folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
              help="Also write one dump per rank to DIR, in the format of torch's flight recorder.")  # fmt: skip
def diagnose(
    job: str | None, is_list: bool, is_json: bool, watch_s: float | None, short: bool, torch_folder: Path | None
) -> None:
    """Show which rank waits for which, and where each rank is in the program.

    JOB is the process id of a rank or of its launcher, the name of a job, or the path of a flight record. You can leave
    it out if only one job is running. The job need not cooperate: it may hang, or be stopped.
    """
    from phalanx.diagnosis.formatting import visible_lines
    from phalanx.errors import PhalanxError
    from phalanx.scarcity import in_words

    if watch_s is not None and (is_json or torch_folder is not None or is_list):
        raise click.UsageError("--watch shows text only: leave out --json, --torch and --list")
    try:
        if is_list:
            _list_jobs()
        elif watch_s is not None:
            _watch(job, watch_s)
        else:
            seen = _look(job)
            if torch_folder is not None:
                _write_for_torch(seen, torch_folder)
            _show(seen, is_json, short)
    except PhalanxError as error:
        raise click.ClickException(visible_lines(str(error))) from error
    except OSError as error:
        if error.errno == errno.EPIPE:  # nobody reads it
            raise
        raise click.ClickException(str(in_words(error, "can't look at the jobs of this machine"))) from error


def _list_jobs() -> None:
    from phalanx.diagnosis.job_list import find_jobs

    jobs = find_jobs()
    for job in jobs:
        click.echo(job.title())
    if not jobs:
        click.echo("no job of phalanx runs here under this user")


def _look(wanted: str | None) -> Observation:
    from phalanx.diagnosis.job_list import choose_job
    from phalanx.diagnosis.observation import observe, read_record

    if wanted is not None and Path(wanted).is_file():
        return read_record(Path(wanted))
    job = choose_job(wanted)
    seen = observe(sorted(job.pids), job.record)
    from phalanx.launch.job_hosts import observe_other_hosts

    seen.other_hosts = observe_other_hosts(job.record.pid)
    return seen


def _show(seen: Observation, is_json: bool, is_short: bool) -> None:
    from phalanx.diagnosis.observation import to_json
    from phalanx.diagnosis.report import render

    click.echo(to_json(seen) if is_json else render(seen, is_full=not is_short))


def _watch(wanted: str | None, every_s: float) -> None:
    from phalanx.diagnosis.job_list import choose_job, follow_job
    from phalanx.diagnosis.observation import observe
    from phalanx.diagnosis.report import render
    from phalanx.errors import UsageError

    if wanted is not None and Path(wanted).is_file():
        raise UsageError(f"{wanted}: a flight record does not change; leave out --watch")
    job: RunningJob | None = choose_job(wanted)
    with contextlib.suppress(KeyboardInterrupt):
        while job is not None:
            text = render(observe(sorted(job.pids), job.record), is_full=False)
            if sys.stdout.isatty():
                click.clear()
            click.echo(text if sys.stdout.isatty() else f"{text}\n")
            time.sleep(every_s)
            job = follow_job(job)
        click.echo("the job has ended")


def _write_for_torch(seen: Observation, folder: Path) -> None:
    from phalanx.diagnosis.torch_record import write_torch_records

    paths = write_torch_records(seen, folder)
    click.echo(
        f"{len(paths)} dumps for torch's analyser: python -m torch.distributed.flight_recorder.fr_trace {folder}",
        err=True,
    )
