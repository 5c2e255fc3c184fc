"""The kinds of ranks that a test may ask for, and the backends of their groups."""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal["process", "thread", "pool"]
Backend = Literal["phalanx", "gloo", "nccl", "mpi"]
KINDS: tuple[Kind, ...] = get_args(Kind)
BACKENDS: tuple[Backend, ...] = get_args(Backend)
