from __future__ import annotations

import importlib

import pytest


@pytest.fixture(autouse=True, scope="session")
def _dynamo_is_imported() -> None:
    """Import once, before ranks are forked, what torch imports in the first functional collective or DDP model."""
    importlib.import_module("torch._dynamo")
