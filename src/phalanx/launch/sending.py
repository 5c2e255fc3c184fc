"""Turn functions and values into bytes, for another process of the same program."""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from types import ModuleType
from typing import Any

import cloudpickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        # Pickle modules by name. cloudpickle does so for plain modules, but torch.ops has a class of its own.
        if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
            return importlib.import_module, (value.__name__,)
        return super().reducer_override(value)


def pack(value: Any) -> bytes:
    """Return the value as bytes that pickle.loads() takes.

    Raises:
        Exception: It can't be pickled.
    """
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def pack_exception(error: BaseException) -> bytes:
    """Return an exception as bytes; empty if it can't be pickled or rebuilt."""
    try:
        packed = pack(error)
        pickle.loads(packed)  # some exceptions can be pickled but not rebuilt
    except Exception:
        return b""
    return packed
