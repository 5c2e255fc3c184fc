"""The warning of the plugin; a module of its own, because every session of pytest imports it."""

import pytest


class RanksWarning(pytest.PytestWarning):
    """A test on ranks left a thread or a process behind, or a fault took no effect."""


RanksWarning.__module__ = "phalanx.testing.plugin"  # where filters of warnings look for it
