"""torchvision beside a torch without CUDA. One test of the suite converts its ResNet-50, which is plain Python.

The package's compiled operators come with CUDA and can't be loaded here; then its import fails because it describes two
of them to torch. With those declared, and never implemented, the models can be imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

_OPERATORS = ("nms", "qnms")


def make_importable() -> object:
    """Make `import torchvision` work, where it is installed. It does as long as what is returned lives."""
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            return None
        import torch

        library = torch.library.Library("torchvision", "DEF")
        for name in _OPERATORS:
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        importlib.import_module("torchvision")
        return library
