"""The command `phalanx`. It starts at once, because each subcommand imports what it needs when it runs."""

from __future__ import annotations

import click

from phalanx.cli.command_group import CommandGroup
from phalanx.cli.devices import devices
from phalanx.cli.diagnose import diagnose
from phalanx.cli.doctor import doctor
from phalanx.cli.run import run
from phalanx.cli.timeline import timeline

_COMPLETION = """\b
To complete commands, options and file names with the Tab key, add this line to ~/.bashrc:
  eval "$(_PHALANX_COMPLETE=bash_source phalanx)"
In ~/.zshrc, write zsh_source. For fish, add this line to ~/.config/fish/config.fish:
  _PHALANX_COMPLETE=fish_source phalanx | source
"""


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_COMPLETION)
@click.version_option(package_name="phalanx", prog_name="phalanx")
def main() -> None:
    """Run distributed PyTorch on this machine, and find out why a job hangs."""


for command in (run, diagnose, timeline, doctor, devices):
    main.add_command(command)
