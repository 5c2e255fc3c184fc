"""Train a character model on four ranks, and show that one process alone gets the same parameters.

The text is the source code of Python's standard library, so nothing is downloaded. Every rank computes the gradients of
its share of each batch; one all_reduce turns them into the gradients of the whole batch.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import phalanx
from phalanx import Group, ReduceOp

ALPHABET = "\n\t" + "".join(map(chr, range(32, 127)))
NUM_RANKS = 4
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Plan:
    """The model and the training settings. The same plan gives the same run."""

    num_steps: int = 240
    num_sequences: int = 128  # in a batch, over all ranks
    num_characters: int = 32  # in a sequence; four spaces count as one
    num_hidden: int = 128
    learning_rate: float = 1e-2  # falls to 0, because large steps would amplify rounding in the last digit
    seed: int = 1


@dataclass(frozen=True)
class Trained:
    """The result of a run: the loss of every step and the parameters."""

    losses: list[float]
    parameters: dict[str, Tensor]

    def digest(self) -> str:
        """Return a hash of the bits of the parameters."""
        values = [value.flatten().tolist() for value in self.parameters.values()]
        return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


class CharacterModel(nn.Module):
    """Predict the next character from the characters before it."""

    def __init__(self, num_hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(ALPHABET), 48)
        self.memory = nn.GRU(48, num_hidden, batch_first=True)
        self.output = nn.Linear(num_hidden, len(ALPHABET))
        self.double()  # rounding then differs in the 16th digit, not in the 7th

    def forward(self, characters: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a score for every possible next character, and the state for the next call."""
        hidden, state = self.memory(self.embedding(characters), state)
        return self.output(hidden), state


def read_standard_library(num_characters: int = 2_000_000) -> Tensor:
    """Return the first characters of its source as indices into ALPHABET.

    A tab stands for four spaces. Characters outside ALPHABET are left out.
    """
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8") for file in files).replace("    ", "\t")
    place = {character: number for number, character in enumerate(ALPHABET)}
    return torch.tensor([place[character] for character in text if character in place][:num_characters])


def train(
    plan: Plan,
    text: Tensor,
    mine: slice,
    average: Callable[[list[Tensor]], object],
    report: Callable[[int, float], object],
) -> Trained:
    """Train on the sequences `mine` of every batch; `average` replaces tensors by their mean over all processes."""
    torch.manual_seed(plan.seed)  # the same initial parameters and the same batches in every process
    model = CharacterModel(plan.num_hidden)
    optimizer = torch.optim.Adam(model.parameters(), lr=plan.learning_rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, plan.num_steps)
    window = torch.arange(plan.num_characters + 1)
    losses = []
    for step in range(plan.num_steps):
        starts = torch.randint(len(text) - len(window), (plan.num_sequences, 1))
        sequences = text[starts[mine] + window]
        scores, _ = model(sequences[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        mean_loss = loss.detach()
        average([mean_loss, *(p.grad for p in model.parameters() if p.grad is not None)])
        optimizer.step()
        schedule.step()
        losses.append(mean_loss.item())
        report(step + 1, mean_loss.item())
    return Trained(losses, model.state_dict())


def train_as_rank(plan: Plan, text: Tensor) -> tuple[Trained, list[str]]:
    """Train as one of several ranks. Going from one process to many takes no more than this."""
    torch.set_num_threads(1)
    group: Group = phalanx.connect()
    share = plan.num_sequences // group.size
    mine = slice(group.rank * share, (group.rank + 1) * share)
    with Display(plan, f"{group.size} ranks", is_shown=group.rank == 0) as display:
        trained = train(
            plan, text, mine, lambda tensors: group.all_reduce_coalesced(tensors, ReduceOp.AVG), display.report
        )
    return trained, group.all_gather_object(trained.digest())


def train_alone(plan: Plan, text: Tensor) -> Trained:
    torch.set_num_threads(min(NUM_RANKS, torch.get_num_threads()))  # as many cores as the ranks had
    with Display(plan, "one process") as display:
        return train(plan, text, slice(None), lambda tensors: None, display.report)


class Display:
    """Show live progress on a terminal, and a few lines of text elsewhere."""

    def __init__(self, plan: Plan, title: str, *, is_shown: bool = True) -> None:
        self._plan = plan
        self._title = title
        self._is_shown = is_shown
        self._start = 0.0
        self._bar = Progress(
            TextColumn("{task.description:12}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f}  {task.fields[speed]:>9,.0f} characters/s"),
            TimeElapsedColumn(),
        )
        self._is_live = is_shown and self._bar.console.is_terminal
        self._task = self._bar.add_task(title, total=plan.num_steps, loss=float("nan"), speed=0.0)
        self._shown: AbstractContextManager[object] = self._bar if self._is_live else nullcontext()

    def __enter__(self) -> Display:
        self._shown.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._shown.__exit__(None, None, None)

    def report(self, step: int, loss: float) -> None:
        """Show the progress of the training."""
        if step == 1:  # the first step is slow, because torch initializes itself
            self._start = time.monotonic()
        elapsed_s = time.monotonic() - self._start
        num_done = (step - 1) * self._plan.num_sequences * self._plan.num_characters
        speed = num_done / elapsed_s if step > 1 else 0.0
        if self._is_live:
            self._bar.update(self._task, completed=step, loss=loss, speed=speed)
        elif self._is_shown and step % (self._plan.num_steps // 8) == 0:
            counted = f"{step}/{self._plan.num_steps}"
            print(f"{self._title:12} step {counted:>9}  loss {loss:.3f}  {speed:>9,.0f} characters/s", flush=True)


def draw_curve(losses: list[float], width: int = 64, height: int = 10) -> str:
    """Return the loss curve as text; each line of text has eight levels."""
    edges = [round(column * len(losses) / width) for column in range(width + 1)]
    means = [sum(losses[a:b]) / (b - a) for a, b in itertools.pairwise(edges) if b > a]
    low, high = min(means), max(means)
    levels = [round((mean - low) / (high - low) * (8 * height - 1)) + 1 for mean in means]
    lines = []
    for line in reversed(range(height)):
        label = f"{low + (high - low) * line / (height - 1):6.2f} │"
        lines.append(label + "".join(" ▁▂▃▄▅▆▇█"[min(max(level - 8 * line, 0), 8)] for level in levels))
    return "\n".join([*lines, "       └" + "─" * len(means), f"        1{len(losses):>{len(means) - 1}}  step"])


@torch.no_grad()
def write_sample(plan: Plan, parameters: dict[str, Tensor], beginning: str = "def ", length: int = 360) -> str:
    """Let the model continue a text."""
    model = CharacterModel(plan.num_hidden)
    model.load_state_dict(parameters)
    torch.manual_seed(plan.seed)
    text, state = beginning, None
    characters = torch.tensor([[ALPHABET.index(character) for character in beginning]])
    while len(text) < length:
        scores, state = model(characters, state)
        characters = torch.multinomial((scores[:, -1] / 0.6).softmax(-1), 1)
        text += ALPHABET[int(characters)]
    return text.replace("\t", "    ")


def largest_difference(ours: Trained, theirs: Trained) -> float:
    pairs = zip(ours.parameters.values(), theirs.parameters.values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def prove(digests: list[str], ours: Trained, reference: Trained, console: Console) -> bool:
    """Show that all ranks agree with each other, and with the process that trained alone."""
    is_same = len(set(digests)) == 1
    difference = largest_difference(ours, reference)
    is_close = difference <= TOLERANCE
    told = f"all hold the bits {digests[0]}" if is_same else f"differ: {', '.join(digests)}"
    console.print(f"  {'yes' if is_same else 'NO '}  the {len(digests)} ranks: {told}")
    told = f"differs by {difference:.1e} at most ({TOLERANCE:.0e} is allowed)"
    console.print(f"  {'yes' if is_close else 'NO '}  one process on the whole batch: {told}")
    if 0 < difference <= TOLERANCE:
        console.print("       not bit for bit: it adds up a batch in one go, the ranks in parts, and sums are rounded")
    return is_same and is_close


def main() -> int:
    plan, console = Plan(), Console(highlight=False, soft_wrap=True)
    text = read_standard_library()
    console.print(f"A character model learns from {len(text):,} characters of Python's standard library.\n")

    results = phalanx.spawn(train_as_rank, ranks=NUM_RANKS, args=(plan, text))
    trained, digests = results[0]
    reference = train_alone(plan, text)

    console.print(f"\n[bold]Loss per character[/] (nats), {NUM_RANKS} ranks\n{draw_curve(trained.losses)}")
    console.print("\n[bold]What it writes[/]")
    console.print(write_sample(plan, trained.parameters), markup=False)
    console.print("\n[bold]Are the parameters the same?[/]")
    return 0 if prove(digests, trained, reference, console) else 1


if __name__ == "__main__":
    sys.exit(main())
