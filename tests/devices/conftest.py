"""The services for devices are tested on virtual ones."""

from __future__ import annotations

from tests.virtual_gpus.conftest import pytest_collection_finish

__all__ = ["pytest_collection_finish"]
