"""The terminal, which ranks that are debugged share."""

from __future__ import annotations

from typing import Protocol

from phalanx.testing.member import Member


class Terminal(Protocol):
    """Where ranks can be debugged, one at a time."""

    def lend(self, member: Member) -> None:
        """Let a rank have it."""

    def wait(self, member: Member) -> None:
        """Wait until the rank is done with it, or gone."""

    def take_back(self) -> None:
        """Use it again."""


class NoTerminal:
    """Nothing: ranks that stop in a debugger read the end of their input at once."""

    def lend(self, member: Member) -> None:
        """Do nothing."""

    def wait(self, member: Member) -> None:
        """Do nothing."""

    def take_back(self) -> None:
        """Do nothing."""
