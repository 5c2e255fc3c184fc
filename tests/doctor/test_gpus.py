"""Whether ranks can share a GPU, as the doctor finds out: by CUDA's driver alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from phalanx.doctor.gpus import phalanx_sharing
from tests.gpus import needs_gpu
from tests.virtual_gpus.in_child import in_child

# A driver whose GPU memory is a file, found by its handle; compiled with what it refuses.
_DRIVER = r"""
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>
typedef struct { char reserved[64]; } Handle;
static char name[64];
static void *map(const char *path, int flags) {
  int file = open(path, flags, 0600);
  if (file < 0 || ftruncate(file, 4096)) return 0;
  void *memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory;
}
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
  *context = name;
  if (!EXCLUSIVE) return 0;
  return flock(open(LOCK, O_RDWR | O_CREAT | O_CLOEXEC, 0600), LOCK_EX | LOCK_NB) ? 46 : 0;
}
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *memory, size_t size) {
  snprintf(name, sizeof name, "/dev/shm/gpu-of-%d", getpid());
  *memory = (uint64_t)map(name, O_RDWR | O_CREAT);
  return *memory ? 0 : 2;
}
int cuMemFree_v2(uint64_t memory) { unlink(name); return 0; }
int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t size, void *s) { memcpy((void *)to, from, size); return 0; }
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *s) { memcpy(to, (void *)from, size); return 0; }
int cuStreamSynchronize(void *stream) { return 0; }
int cuIpcGetMemHandle(Handle *handle, uint64_t memory) { memcpy(handle, name, 64); return 0; }
int cuIpcOpenMemHandle_v2(uint64_t *memory, Handle handle, unsigned flags) {
  if (REFUSED) { unlink(handle.reserved); return REFUSED; }
  *memory = (uint64_t)map(handle.reserved, O_RDWR);
  return *memory ? 0 : 1;
}
int cuIpcCloseMemHandle(uint64_t memory) { return 0; }
int cuGetErrorName(int code, const char **text) {
  *text = code == 304 ? "CUDA_ERROR_OPERATING_SYSTEM" : "CUDA_ERROR_OTHER";
  return 0;
}
"""


def _build(folder: Path, *, devices: int = 1, refused: int = 0, exclusive: bool = False) -> str:
    library = folder / "libcuda.so.1"
    macros = [f"-DDEVICES={devices}", f"-DREFUSED={refused}", f"-DEXCLUSIVE={int(exclusive)}"]
    macros.append(f'-DLOCK="{folder}/in_use"')
    command = ["cc", "-shared", "-fPIC", "-x", "c", *macros, "-o", str(library), "-"]
    try:
        subprocess.run(command, input=_DRIVER, text=True, check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("needs a C compiler")
    return str(library)


@pytest.mark.slow
def test_memory_that_gets_to_another_process_is_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    answer = phalanx_sharing(_build(tmp_path))
    assert (answer.status, answer.text) == ("ok", "ranks can share one through phalanx; they take turns on it")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_expandable_segments_are_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv(name, "max_split_size_mb:512,expandable_segments:True")
    answer = phalanx_sharing(_build(tmp_path))
    assert answer.status == "note"
    assert "expandable segments, which can't be handed over; phalanx takes collectives" in answer.text
    assert "Take expandable_segments:True out of PYTORCH_ALLOC_CONF" in answer.advice


@pytest.mark.slow
def test_a_refusal_is_named_with_what_it_means(tmp_path: Path) -> None:
    answer = phalanx_sharing(_build(tmp_path, refused=304))
    assert answer.status == "note"
    assert answer.text.startswith("CUDA IPC does not work: CUDA_ERROR_OPERATING_SYSTEM; phalanx takes collectives")
    assert "through the host's memory" in answer.text
    assert "--ipc=host" in answer.advice


@in_child  # which has the GPU from then on
@pytest.mark.slow
def test_a_gpu_for_one_process_is_named_as_such(tmp_path: Path) -> None:
    driver = _build(tmp_path, exclusive=True)
    answers = [phalanx_sharing(driver), phalanx_sharing(driver)]  # refused to the other process, then to this one
    assert {answer.status for answer in answers} == {"note"}
    assert {answer.text for answer in answers} == {
        "only one process may use this GPU at a time (compute mode EXCLUSIVE_PROCESS), so ranks can't share it"
    }
    assert all("nvidia-smi -c 0" in answer.advice for answer in answers)


@pytest.mark.slow
def test_no_gpu_is_no_problem(tmp_path: Path) -> None:
    assert phalanx_sharing("nowhere.so").text == "no CUDA driver"
    answer = phalanx_sharing(_build(tmp_path, devices=0))
    assert (answer.status, answer.text) == ("absent", "no CUDA device")


@needs_gpu
@pytest.mark.slow
def test_the_real_driver_answers() -> None:
    assert phalanx_sharing().status in ("ok", "note")
