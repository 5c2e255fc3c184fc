from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any

import pytest

import phalanx
from phalanx import errors

CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


def _example(kind: type[errors.PhalanxError]) -> errors.PhalanxError:
    error = kind(
        "first line\n  second line", group="g", rank=1, num_ranks=4, operation="barrier", sequence=7, culprits=(2, 3)
    )
    for name, value in (("exit_code", 5), ("signal", 9), ("needed_bytes", 100), ("available_bytes", 50)):
        if hasattr(error, name):
            setattr(error, name, value)
    return error


@pytest.mark.parametrize("kind", CLASSES)
def test_errors_survive_pickling(kind: type[errors.PhalanxError]) -> None:
    error = _example(kind)
    for rebuilt in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(rebuilt) is kind
        assert str(rebuilt) == "first line\n  second line"
        assert rebuilt.args == error.args
        assert vars(rebuilt) == vars(error)


def test_notes_survive_pickling() -> None:
    error = _example(phalanx.MismatchError)
    error.add_note("raised on rank 1")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["raised on rank 1"]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_public_and_says_when_it_comes(kind: type[errors.PhalanxError]) -> None:
    assert getattr(phalanx, kind.__name__) is kind
    assert kind.__doc__
    assert issubclass(kind, phalanx.PhalanxError)


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (phalanx.UsageError, ValueError),
        (phalanx.ClosedError, phalanx.UsageError),
        (phalanx.OperationTimeoutError, TimeoutError),
        (phalanx.SharedMemoryError, MemoryError),
        (phalanx.PeerDiedError, phalanx.PeerError),
        (phalanx.PeerFailedError, phalanx.PeerError),
        (phalanx.PeerLeftError, phalanx.PeerError),
        (phalanx.PhalanxError, RuntimeError),
    ],
)
def test_errors_can_be_caught_as_their_standard_kind(kind: type[Exception], base: type[Exception]) -> None:
    assert issubclass(kind, base)


def test_facts_default_to_unknown() -> None:
    error = phalanx.PhalanxError("text")
    facts: tuple[Any, ...] = (error.group, error.rank, error.num_ranks, error.operation, error.sequence, error.culprits)
    assert facts == ("", None, None, "", None, ())


def test_every_public_name_can_be_imported() -> None:
    for name in phalanx.__all__:
        assert getattr(phalanx, name) is not None
    with pytest.raises(AttributeError, match="module 'phalanx' has no attribute 'nothing'"):
        _ = phalanx.nothing  # type: ignore[attr-defined]  # and mypy knows


@pytest.mark.slow
def test_torch_is_not_needed_below_the_groups() -> None:
    """The command line starts at once and works when torch is broken."""
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import phalanx, phalanx.launch, phalanx.diagnosis, phalanx.engine, phalanx.settings\n"
        "phalanx.PhalanxError, phalanx.spawn, phalanx.ReduceOp"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
