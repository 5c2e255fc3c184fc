"""Who calls the backend: Python code, or C++ code of torch.

C++ calls a method of a Work or of a group without a frame of its own. So the nearest frame outside the backend is that
of the Python code which called C++, and this code does not name the method. On a thread that C++ started, such as those
of the autograd engine, there is no such frame.
"""

from __future__ import annotations

import sys
from types import FrameType

_OWN_PACKAGES = ("phalanx.torch_backend", "phalanx.stand_in")


def calling_frame() -> FrameType | None:
    """Return the nearest frame outside the backend; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") in _OWN_PACKAGES:
        frame = frame.f_back
    return frame


def is_called_from_python(method: str) -> bool:
    """Tell whether Python code outside the backend has called this method."""
    frame = calling_frame()
    return frame is not None and method in frame.f_code.co_names
