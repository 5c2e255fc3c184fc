"""Every operation in torch's own database of operations, on a virtual device and on the CPU: are results and gradients
the same?

The database comes with torch. Run in a process of its own: virtual devices stay until its end.
"""

from __future__ import annotations

import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

_LIMIT_S = 20
_SEED = 7
_UNINITIALISED = ("empty",)
# The CPU has a fused kernel that rounds otherwise than the parts it is composed of on a device.
_ROUNDED_OTHERWISE = {"nn.functional.scaled_dot_product_attention": 1e-3}
# The second argument tells where to cut, and torch takes it from the CPU alone.
_CPU_ARGUMENT = ("tensor_split",)


@dataclass(frozen=True)
class OperationOutcome:
    """How one operation did.

    Attributes:
        name: The operation, with its variant.
        status: "right", "wrong" (other numbers), "failed" (raised), "late", or "not on the CPU".
        reason: Why, unless it is right.
        num_samples: Calls that were compared.
        num_gradients: Gradients that were compared.
    """

    name: str
    status: str
    reason: str = ""
    num_samples: int = 0
    num_gradients: int = 0


def operation_names() -> list[str]:
    """Return the names of all entries of the database, in its order."""
    return [_name(entry) for entry in _database()]


def run_operations(names: Sequence[str], device: str, most_samples: int) -> Iterator[OperationOutcome]:
    """Compare some operations on a device with the CPU."""
    wanted = set(names)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for entry in _database():
            if _name(entry) in wanted:
                yield _run(entry, device, most_samples)


def _database() -> list[Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def _name(entry: Any) -> str:
    return f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else str(entry.name)


def _run(entry: Any, device: str, most_samples: int) -> OperationOutcome:
    name = _name(entry)
    dtype = _dtype(entry)
    if dtype is None:
        return OperationOutcome(name, "not on the CPU", "it has no type there")
    comparison = _Comparison(entry, device, dtype)
    try:
        with _limit(_LIMIT_S):
            comparison.run(most_samples)
    except _LateError:
        return OperationOutcome(name, "late", f"not over after {_LIMIT_S} s")
    except AssertionError as error:
        return OperationOutcome(name, "wrong", _first_line(error))
    except Exception as error:
        return OperationOutcome(name, "failed", f"{type(error).__name__}: {_first_line(error)}")
    return OperationOutcome(name, "right", "", comparison.num_samples, comparison.num_gradients)


def _dtype(entry: Any) -> torch.dtype | None:
    dtypes = entry.supported_dtypes("cpu")
    for preferred in (torch.float32, torch.complex64):
        if preferred in dtypes:
            return preferred
    return min(dtypes, key=str, default=None)


class _LateError(Exception):
    pass


@contextmanager
def _limit(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise _LateError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "")[:200]


class _Comparison:
    """One operation, called with the same arguments on both."""

    def __init__(self, entry: Any, device: str, dtype: torch.dtype) -> None:
        self._entry = entry
        self._device = torch.device(device)
        self._dtype = dtype
        self._atol = _ROUNDED_OTHERWISE.get(entry.name, 1e-5)
        self._has_values = not any(word in _name(entry) for word in _UNINITIALISED)
        self._has_gradients = entry.supports_autograd and dtype.is_floating_point
        self.num_samples = self.num_gradients = 0

    def run(self, most_samples: int) -> None:
        samples = self._entry.sample_inputs("cpu", self._dtype, requires_grad=self._has_gradients)
        for _, sample in zip(range(most_samples), samples, strict=False):
            arguments = (sample.input, sample.args, sample.kwargs)
            try:
                expected = self._call(arguments)
            except _LateError:
                raise
            except Exception:
                continue  # the CPU itself refuses
            moved = self._moved(arguments)
            got = self._call(moved, is_moved=True)
            self.num_samples += 1
            if self._has_drawn() and not _are_equal(got, expected):
                # A device draws other numbers than the CPU, but the same again for the same seed.
                self._compare(_tensors(got), _tensors(expected), has_values=False)
                assert _are_equal(got, self._call(moved, is_moved=True)), "other numbers for the same seed"
                continue
            self._compare(_tensors(got), _tensors(expected), has_values=self._has_values)
            if self._has_gradients:
                self._compare_gradients(got, moved, expected, arguments)

    def _has_drawn(self) -> bool:
        generators = torch.get_device_module(self._device).default_generators
        return bool(generators[self._device.index].get_offset())

    def _call(self, arguments: tuple[Any, Any, Any], *, is_moved: bool = False) -> Any:
        given, args, kwargs = arguments
        torch.manual_seed(_SEED)
        if is_moved and "device" in kwargs:
            kwargs = {**kwargs, "device": self._device}
        return self._entry(given, *args, **kwargs)

    def _moved(self, arguments: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        given, args, kwargs = arguments
        if self._entry.name in _CPU_ARGUMENT:
            return _move(given, self._device), args, kwargs
        return _move(given, self._device), _move(args, self._device), _move(kwargs, self._device)

    def _compare(self, got: list[torch.Tensor], expected: list[torch.Tensor], *, has_values: bool) -> None:
        assert len(got) == len(expected), f"{len(got)} results instead of {len(expected)}"
        for ours, cpu in zip(got, expected, strict=True):
            assert ours.shape == cpu.shape, f"shape {tuple(ours.shape)} instead of {tuple(cpu.shape)}"
            assert ours.dtype == cpu.dtype, f"{ours.dtype} instead of {cpu.dtype}"
            if has_values:
                _assert_equal(ours, cpu, self._atol)

    def _compare_gradients(self, got: Any, moved: Any, expected: Any, arguments: Any) -> None:
        try:
            wanted = _gradients(expected, arguments)
        except _LateError:
            raise
        except Exception:
            return  # the CPU has none here
        for ours, cpu in zip(_gradients(got, moved), wanted, strict=True):
            assert (ours is None) == (cpu is None), "a gradient is missing"
            if ours is not None and cpu is not None:
                assert ours.device == self._device, f"a gradient is on {ours.device}"
                self.num_gradients += 1
                _assert_equal(ours, cpu, self._atol)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def _move(values: Any, device: torch.device) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: _move_tensor(tensor, device), values)


def _move_tensor(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor with all of its storage, so that strides and what lies between the elements are the same."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().to(device).requires_grad_(tensor.requires_grad)
    storage = tensor.untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload]
    moved = torch.empty(0, dtype=tensor.dtype, device=device)
    moved.set_(memory.to(device).untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return moved.requires_grad_(tensor.requires_grad)


def _are_equal(first: Any, second: Any) -> bool:
    try:
        for one, other in zip(_tensors(first), _tensors(second), strict=True):
            _assert_equal(one, other)
    except AssertionError:
        return False
    return True


def _gradients(result: Any, arguments: Any) -> tuple[torch.Tensor | None, ...]:
    leaves = [tensor for tensor in _tensors(arguments) if tensor.requires_grad]
    outputs = [tensor for tensor in _tensors(result) if tensor.requires_grad and tensor.is_floating_point()]
    if not leaves or not outputs:
        return ()
    total: Any = sum((tensor.sum() for tensor in outputs[1:]), outputs[0].sum())
    return torch.autograd.grad(total, leaves, allow_unused=True)


def _assert_equal(ours: torch.Tensor, cpu: torch.Tensor, atol: float = 1e-5) -> None:
    ours, cpu = ours.detach().cpu(), cpu.detach().cpu()
    if ours.dtype.itemsize == 1 and ours.is_floating_point():  # the comparison knows no 8-bit floats
        ours, cpu = ours.view(torch.uint8), cpu.view(torch.uint8)
    torch.testing.assert_close(ours, cpu, rtol=1e-4, atol=atol, equal_nan=True, check_stride=False)
