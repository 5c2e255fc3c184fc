"""Which tests need a real GPU. Looks without CUDA, so that this process can still be forked for ranks that use it."""

from __future__ import annotations

import pytest
import torch

from phalanx.real_gpus.discovery import find_gpus, visible_gpus

NUM_GPUS = 0 if torch.version.cuda is None else len(visible_gpus(find_gpus()))

needs_gpu = pytest.mark.skipif(NUM_GPUS == 0, reason="needs a GPU and a torch with CUDA")
