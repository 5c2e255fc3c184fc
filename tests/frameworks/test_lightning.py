"""Lightning trains over phalanx as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.checks import equal
from tests.frameworks.launching import run_as_torchrun_would

pytest.importorskip("lightning", reason="Lightning is not installed: make frameworks")


def _batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    inputs = torch.linspace(-1, 1, 64).view(32, 2)
    targets = inputs.sum(1, keepdim=True) * 3
    return [(inputs[start : start + 4], targets[start : start + 4]) for start in range(0, 32, 4)]


def _train_alone() -> list[float]:
    torch.manual_seed(3)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for first, second in zip(_batches()[::2], _batches()[1::2], strict=True):
        inputs, targets = torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return [*model.weight.flatten().tolist(), *model.bias.tolist()]


def _train_with_lightning() -> list[float]:
    import lightning
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer = nn.Linear(2, 1)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            equal(torch.distributed.get_backend(), "phalanx")
            loss = nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="phalanx"),
        plugins=[LightningEnvironment()],
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    module = Module()
    rank = int(trainer.global_rank)
    trainer.fit(module, torch.utils.data.DataLoader(_batches()[rank::2], batch_size=None))  # type: ignore[arg-type]
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return [*module.layer.weight.flatten().tolist(), *module.layer.bias.tolist()]


@pytest.mark.slow
def test_lightning_trains_as_one_process_does() -> None:
    wanted = _train_alone()
    for weights in run_as_torchrun_would(2, _train_with_lightning):
        assert weights == pytest.approx(wanted, rel=1e-5)
