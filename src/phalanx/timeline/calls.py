"""One call of a rank: its operation, dtype, shape and size."""

from __future__ import annotations

from dataclasses import dataclass

# In the order of the enums in native/core/types.hpp.
OPERATIONS = ("none", "all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter",
              "all_to_all", "barrier", "send", "recv", "refused")  # fmt: skip
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16",
          "float32", "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
          "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32", "8-bit", "16-bit", "32-bit", "64-bit",
          "128-bit")  # fmt: skip
REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")

_REDUCING = ("all_reduce", "reduce", "reduce_scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_MESSAGES = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Call:
    """One call as its rank made it. Equal calls in a file share one object.

    Attributes:
        operation: The operation, such as "all_reduce".
        dtype: The dtype, such as "float32"; "" if the operation moves no data.
        op: The reduction, such as "sum"; "" if the operation does not reduce.
        root: The rank of the root in the group, or None if the operation has no root.
        shape: The first six dimensions at most.
        num_dims: How many dimensions there were.
        size_bytes: The bytes that this rank contributes or receives: the tensor, or one rank's block of it.
        tag: Tag of a message, or None.
        is_async: Whether the call was made with async_op.
    """

    operation: str
    dtype: str
    op: str
    root: int | None
    shape: tuple[int, ...]
    num_dims: int
    size_bytes: int
    tag: int | None
    is_async: bool

    def shape_text(self) -> str:
        """Write the shape as torch does."""
        dims = [str(dim) for dim in self.shape] + ["..."] * (self.num_dims > len(self.shape))
        return f"({dims[0]},)" if len(dims) == 1 else f"({', '.join(dims)})"


def decode_call(what: int, count: int, size_bytes: int, flags: int, dims: tuple[int, ...]) -> Call:
    """Decode the words of a record.

    Raises:
        IndexError: The operation, dtype or reduction is unknown.
    """
    operation = OPERATIONS[what & 0xFF]
    dtype = DTYPES[what >> 8 & 0xFF]
    op = REDUCE_OPS[what >> 16 & 0xFF]
    num_dims = what >> 24 & 0x7F  # the bit above says that the tensor is on a GPU
    root = (what >> 32 ^ 1 << 31) - (1 << 31)  # a signed number of 32 bits
    has_data = operation not in ("barrier", "none")
    return Call(
        operation=operation,
        dtype=dtype if has_data else "",
        op=op if operation in _REDUCING else "",
        root=root if operation in _ROOTED else None,
        shape=dims[:num_dims],
        num_dims=num_dims,
        size_bytes=size_bytes,
        tag=count if operation in _MESSAGES else None,
        is_async=bool(flags & 1),
    )
