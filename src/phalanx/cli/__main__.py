"""`python -m phalanx.cli`."""

from __future__ import annotations

from phalanx.cli.main import main

main(prog_name="phalanx")
