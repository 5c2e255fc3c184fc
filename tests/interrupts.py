"""Ctrl-C at a chosen moment: before or after a call that this process makes."""

from __future__ import annotations

import signal
from typing import Any

import pytest


def interrupt_before(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Raise KeyboardInterrupt instead of the next call of a method."""
    _interrupt_once(patch, owner, name, has_effect=False)


def interrupt_after(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Raise KeyboardInterrupt at the end of the next call of a method."""
    _interrupt_once(patch, owner, name, has_effect=True)


def _interrupt_once(patch: pytest.MonkeyPatch, owner: type, name: str, *, has_effect: bool) -> None:
    call = getattr(owner, name)

    def call_and_interrupt(*args: Any, **kwargs: Any) -> None:
        patch.setattr(owner, name, call)
        if has_effect:
            call(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)

    patch.setattr(owner, name, call_and_interrupt)
