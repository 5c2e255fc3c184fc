"""The page of what phalanx changes in torch is complete: it is what `./dev patches` writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx_tools.commands.patches import write_page
from tests.cuda_simulator.build import has_compiler

_PAGE = Path(__file__).resolve().parents[2] / "docs/internals/torch-patches.md"


@pytest.mark.slow
def test_the_page_lists_every_change() -> None:
    page = _PAGE.read_text()
    version = ".".join(torch.__version__.split(".")[:2])
    if torch.version.cuda is not None or f"in torch {version} without CUDA" not in page:
        pytest.skip("the page was written with another torch")
    if not has_compiler():
        pytest.skip("there is no g++, which builds virtual GPUs")
    assert write_page() == page, "run ./dev patches > docs/internals/torch-patches.md"
