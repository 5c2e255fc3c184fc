"""A training step of a transformer on ranks that share a GPU, with and without communication.

"Without" in two ways: with no_sync(), which also leaves out that DDP copies gradients into its buckets and out of them;
and with a hook that leaves the buckets as they are.

The whole batch is the same for every number of ranks, so that their speed can be compared with one rank's.
"""

from __future__ import annotations

import contextlib
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from phalanx.groups.connect import connect
from phalanx_tools.bench.gpu.goals import has_training_goal
from phalanx_tools.bench.gpu.gradients import find_wrong
from phalanx_tools.bench.gpu.turns import Turns, spread

_TURN_S = 0.25
_LONGEST_CALL_S = 60
_MOST_EXPOSED = 0.10  # of a step


@dataclass(frozen=True)
class Shape:
    """How large the model is, and what it reads. Unless told otherwise it has 98 million parameters."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 16384
    tokens: int = 256


@dataclass(frozen=True)
class TrainingRequest:
    """What ranks are asked to train.

    Attributes:
        backend: "phalanx", "gloo", or "alone" for one rank without any group.
        sequences: The whole batch, of all ranks.
        rounds: Turns with and without communication.
        device: "cuda", or "cpu" to try the program itself.
        store: A file where torch's groups meet.
        is_view: Whether DDP gets gradient_as_bucket_view=True. Without, it copies all gradients back from its buckets,
            which is not communication, but comes with it: no_sync() leaves it out.
        shape: The model.
    """

    backend: str
    sequences: int
    rounds: int
    device: str
    store: str
    is_view: bool = False
    shape: Shape = Shape()


class Transformer(nn.Module):
    """Predicts the next token; the embedding is the last layer, too."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Parameter(torch.zeros(shape.tokens, shape.width))
        layers = (
            nn.TransformerEncoderLayer(
                shape.width, shape.heads, 4 * shape.width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(shape.layers)
        )
        self.layers = nn.ModuleList(layers)
        self.last = nn.LayerNorm(shape.width)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss."""
        hidden = self.embedding(tokens) + self.places
        for layer in self.layers:
            hidden = layer(hidden)
        scores = nn.functional.linear(self.last(hidden[:, :-1]), self.embedding.weight)
        return nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def train_on_rank(request: TrainingRequest) -> dict[str, Any]:
    """Be one rank: check a step's gradients, then time steps."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    group = connect()
    device = torch.device(request.device, 0) if request.device == "cuda" else torch.device("cpu")
    trainer = _Trainer(request, device, group.rank, group.size)
    turns = Turns(connect(name="control"), device)
    wrong: list[str] = []
    if request.backend == "alone":
        times = _time(turns, [trainer.step], request.rounds)
    else:
        wrong = find_wrong(trainer.backward, trainer.plain_model, turns, group)
        quiet = _Trainer(request, device, group.rank, group.size, is_quiet=True)
        times = _time(turns, [trainer.step, trainer.silent_step, quiet.step], request.rounds)
        dist.destroy_process_group()
    return _row(request, group.size, times, wrong, trainer.num_parameters)


class _Trainer:
    def __init__(
        self, request: TrainingRequest, device: torch.device, rank: int, size: int, *, is_quiet: bool = False
    ) -> None:
        torch.manual_seed(0)
        self.plain_model = Transformer(request.shape).to(device)
        self.num_parameters = sum(parameter.numel() for parameter in self.plain_model.parameters())
        self._model: nn.Module = self.plain_model
        self._device = device
        if request.backend != "alone":
            self._model = _distributed(self.plain_model, request, rank, size)
            if is_quiet:
                self._model.register_comm_hook(None, _communicate_nothing)
        self._optimizer = torch.optim.AdamW(self.plain_model.parameters(), lr=1e-5, fused=True)
        random = torch.Generator().manual_seed(rank)
        batch = (max(1, request.sequences // size), request.shape.tokens)
        self._tokens = torch.randint(request.shape.vocabulary, batch, generator=random).to(device)

    def step(self) -> None:
        self.backward(False, False)
        self._optimizer.step()

    def silent_step(self) -> None:
        self.backward(True, False)
        self._optimizer.step()

    def backward(self, is_silent: bool, is_float32: bool) -> None:
        """Leave the gradients of a step."""
        self._optimizer.zero_grad()
        without: Any = contextlib.nullcontext()
        if is_silent and isinstance(self._model, nn.parallel.DistributedDataParallel):
            without = self._model.no_sync()
        with without:
            with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=not is_float32):
                loss = self._model(self._tokens)
            loss.backward()


def _communicate_nothing(_: object, bucket: Any) -> torch.futures.Future[Tensor]:
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


_communicate_nothing.__annotations__.clear()  # torch refuses annotations that are strings


def _distributed(
    model: nn.Module, request: TrainingRequest, rank: int, size: int
) -> nn.parallel.DistributedDataParallel:
    if not dist.is_initialized():
        dist.init_process_group(
            request.backend,
            init_method=f"file://{request.store}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=_LONGEST_CALL_S),
        )
    places = [0] if request.device == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=places, gradient_as_bucket_view=request.is_view)


def _time(turns: Turns, steps: list[Callable[[], None]], rounds: int) -> list[list[float]]:
    counts = [turns.iterations_for(step, _TURN_S) for step in steps]
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(rounds):
        for own, step, count in zip(times, steps, counts, strict=True):
            own.append(turns.time(step, count))
    return times


def _row(
    request: TrainingRequest, num_ranks: int, times: list[list[float]], wrong: list[str], num_parameters: int
) -> dict[str, Any]:
    per_rank = max(1, request.sequences // num_ranks)
    tokens = per_rank * num_ranks * request.shape.tokens
    step_s = statistics.median(times[0])
    row: dict[str, Any] = {
        "backend": request.backend,
        "gradient_as_bucket_view": request.is_view,
        "ranks": num_ranks,
        "sequences_per_rank": per_rank,
        "tokens_per_sequence": request.shape.tokens,
        "parameters": num_parameters,
        "step": spread(times[0]),
        "tokens_per_s": tokens / step_s,
        "correct": not wrong,
        "wrong_gradients": wrong,
        "goal": "",
    }
    if request.backend != "alone":
        silent_s, quiet_s = statistics.median(times[1]), statistics.median(times[2])
        exposed = exposed_share(step_s, silent_s)
        row |= {"silent_step": spread(times[1]), "silent_tokens_per_s": tokens / silent_s, "exposed_share": exposed}
        row |= {"quiet_step": spread(times[2]), "exposed_beside_quiet": exposed_share(step_s, quiet_s)}
        if has_training_goal(request.backend, num_ranks, request.is_view):
            row["goal"] = "ok" if exposed < _MOST_EXPOSED else f"missed: {exposed:.1%} of {_MOST_EXPOSED:.0%}"
    return row


def exposed_share(step_s: float, silent_s: float) -> float:
    """Return the share of a step that communication adds to it; 0 when it hides behind the rest."""
    return max(0.0, step_s - silent_s) / step_s
