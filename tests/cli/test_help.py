from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from phalanx.cli.devices import devices
from phalanx.cli.main import main
from phalanx_tools.__main__ import main as dev
from phalanx_tools.commands.bench import bench


@pytest.mark.parametrize("command", [main, devices, dev, bench], ids=["phalanx", "phalanx devices", "dev", "dev bench"])
def test_help_lists_commands_with_whole_sentences(command: click.Group) -> None:
    result = CliRunner().invoke(command, ["--help"], terminal_width=80)
    assert result.exit_code == 0
    listed = " ".join(result.output.partition("Commands:")[2].split())
    assert all(name in listed for name in command.commands)
    assert "..." not in listed
