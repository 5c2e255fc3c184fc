"""A command group whose help lists each command with a whole sentence; click would cut it off."""

from __future__ import annotations

import click

_LONGEST_SENTENCE = 400


class CommandGroup(click.Group):
    """Used as `@click.group(cls=CommandGroup)`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help, on several lines if necessary."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(_LONGEST_SENTENCE)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
