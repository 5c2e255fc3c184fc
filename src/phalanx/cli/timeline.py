"""`phalanx timeline`: make the page of a recording from its raw files."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def timeline(folder: Path) -> None:
    """Make trace.json and timeline.html from the recording in FOLDER.

    `phalanx run --trace FOLDER`, `with phalanx.trace(FOLDER):` and PHALANX_TRACE=FOLDER make recordings.
    """
    from phalanx.diagnosis.formatting import visible, visible_lines
    from phalanx.errors import PhalanxError
    from phalanx.timeline import units, write_timeline

    try:
        written = write_timeline(folder)
    except PhalanxError as error:
        raise click.ClickException(visible_lines(str(error))) from error
    for warning in written.warnings:
        click.echo(visible(warning), err=True)
    click.echo(f"{units.count(written.num_spans, 'call')}: {written.page} for a browser, {written.trace} for Perfetto")
