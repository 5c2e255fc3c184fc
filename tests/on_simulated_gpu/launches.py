"""The simulated GPU as tests use it: memory as tensors, kernels by name, kernel arguments from lists."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack, unpack
from typing import Any

import torch

KERNELS = Path(__file__).parents[2] / "native" / "cuda" / "kernels"
PARTS = ("pieces", "float8", "reduce", "copy", "strided")  # in the order of CMakeLists.txt
_ARGUMENT_WORDS = 480
_THREADS = 512


class KernelArguments(ctypes.Structure):
    """The parameter of reductions and copies."""

    _fields_ = (
        ("num_sources", ctypes.c_uint64),
        ("num_targets", ctypes.c_uint64),
        ("stride", ctypes.c_uint64),
        ("spill", ctypes.c_uint64),
        ("divisor", ctypes.c_double),
        ("words", ctypes.c_uint64 * _ARGUMENT_WORDS),
    )


class StridedArguments(ctypes.Structure):
    """The parameter of packing and unpacking."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("num_dims", ctypes.c_uint64),
        ("item_bytes", ctypes.c_uint64),
        ("is_pack", ctypes.c_uint64),
        ("flat", ctypes.c_uint64),
        ("strided", ctypes.c_uint64),
        ("sizes", ctypes.c_int64 * 8),
        ("strides", ctypes.c_int64 * 8),
    )


@dataclass
class Entry:
    first: int
    last: int
    sources: Sequence[int]
    targets: Sequence[int]
    factors: Sequence[float] = ()

    def words(self) -> list[int]:
        bits = [unpack("<Q", pack("<d", factor))[0] for factor in self.factors]
        return [self.first, self.last, *self.sources, *self.targets, *bits]


@dataclass
class SimulatedGpu:
    """One process's use of a simulated driver. Not for several threads."""

    library: Path
    driver: Any = field(init=False)
    _allocations: list[int] = field(init=False, default_factory=list)
    _modules: dict[tuple[str, ...], ctypes.c_void_p] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.driver = ctypes.CDLL(str(self.library))
        self.call("cuInit", 0)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)

    def call(self, name: str, *args: Any) -> None:
        result = getattr(self.driver, name)(*args)
        assert result == 0, f"{name} gave {result}"

    def allocate(self, size_bytes: int) -> int:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size_bytes))
        self._allocations.append(address.value)
        return address.value

    def free_all(self) -> None:
        while self._allocations:
            self.call("cuMemFree_v2", ctypes.c_uint64(self._allocations.pop()))

    def tensor(self, values: torch.Tensor, offset_bytes: int = 0) -> torch.Tensor:
        """Copy values to device memory at an offset from an aligned address; guards of 0xa5 lie on both sides."""
        size_bytes = values.numel() * values.element_size()
        total_bytes = offset_bytes + size_bytes + 64
        address = self.allocate(total_bytes)
        memory = torch.frombuffer((ctypes.c_uint8 * total_bytes).from_address(address), dtype=torch.uint8)
        memory.fill_(0xA5)
        inside = memory[offset_bytes : offset_bytes + size_bytes]
        inside.copy_(values.contiguous().view(-1).view(torch.uint8))
        return torch.frombuffer(
            (ctypes.c_uint8 * size_bytes).from_address(address + offset_bytes), dtype=values.dtype
        ).view(values.shape)

    def guards_are_whole(self, tensor: torch.Tensor, offset_bytes: int) -> bool:
        size_bytes = tensor.numel() * tensor.element_size()
        before = (ctypes.c_uint8 * offset_bytes).from_address(tensor.data_ptr() - offset_bytes)
        after = (ctypes.c_uint8 * 64).from_address(tensor.data_ptr() + size_bytes)
        return set(before) | set(after) == {0xA5}

    def module(self, *macros: str) -> ctypes.c_void_p:
        """Return the kernels, compiled with these macros and loaded."""
        if macros not in self._modules:
            self._modules[macros] = self._load(self._compiled(macros))
        return self._modules[macros]

    def _compiled(self, macros: tuple[str, ...]) -> ctypes.Array[ctypes.c_char]:
        program = ctypes.c_void_p()
        source = b"".join((KERNELS / f"{part}.cu").read_bytes() for part in PARTS)
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, b"kernels.cu", 0, None, None)
        options = [b"--gpu-architecture=sm_90", b"--std=c++17", *(f"-D{macro}".encode() for macro in macros)]
        result = self.driver.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
        assert result == 0, self._log(program)
        size = ctypes.c_size_t()
        self.call("nvrtcGetCUBINSize", program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        self.call("nvrtcGetCUBIN", program, code)
        self.call("nvrtcDestroyProgram", ctypes.byref(program))
        return code

    def _load(self, code: ctypes.Array[ctypes.c_char]) -> ctypes.c_void_p:
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        return module

    def _log(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self.call("nvrtcGetProgramLogSize", program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        self.call("nvrtcGetProgramLog", program, log)
        return log.value.decode()

    def launch(self, module: ctypes.c_void_p, kernel: str, arguments: ctypes.Structure, *, num_blocks: int = 2,
               num_rows: int = 1, stream: int = 0) -> None:  # fmt: skip
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        shape = (num_blocks, num_rows, 1, _THREADS, 1, 1)
        self.call("cuLaunchKernel", function, *shape, 0, ctypes.c_void_p(stream), parameters, None)

    def run(self, module: ctypes.c_void_p, kernel: str, entries: Sequence[Entry], *, divisor: float = 1,
            is_spilled: bool = False, num_blocks: int = 2) -> None:  # fmt: skip
        """Launch a reduction or a copy with these entries."""
        rows = [entry.words() for entry in entries]
        assert len({len(row) for row in rows}) == 1
        arguments = KernelArguments(len(entries[0].sources), len(entries[0].targets), len(rows[0]), 0, divisor)
        words = [word for row in rows for word in row]
        if is_spilled:
            arguments.spill = self.allocate(8 * len(words))
            ctypes.memmove(arguments.spill, (ctypes.c_uint64 * len(words))(*words), 8 * len(words))
        else:
            arguments.words[: len(words)] = words
        self.launch(module, kernel, arguments, num_blocks=num_blocks, num_rows=len(rows))
