"""A stand-in for NVIDIA's management library, built with the C compiler: GPUs for launchers where there are none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_SOURCE = r"""
#include <stdio.h>
typedef struct { unsigned long long total, free, used; } Memory;
static const unsigned long long sizes[] = { SIZES };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = sizeof sizes / sizeof *sizes; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  snprintf(text, length, "GPU-%08lx-aaaa-bbbb", (long)device);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  memory->total = sizes[(long)device - 1];
  return memory->total ? 0 : 3;
}
int nvmlDeviceGetComputeMode(void *device, int *mode) { *mode = MODE; return 0; }
"""


def build_nvml(folder: Path, *gib: int, mode: int = 0) -> Path:
    """Build one that knows GPUs of so much memory each; found by name where LD_LIBRARY_PATH has the folder.

    Args:
        mode: Their compute mode, as NVML numbers them.
    """
    library = folder / "libnvidia-ml.so.1"
    sizes = ", ".join(f"{size}ULL << 30" for size in gib)
    options = [f"-Wl,-soname,{library.name}", f"-DSIZES={sizes}", f"-DMODE={mode}"]
    command = ["cc", "-shared", "-fPIC", "-x", "c", *options, "-o", str(library), "-"]
    try:
        subprocess.run(command, input=_SOURCE, text=True, check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return library
