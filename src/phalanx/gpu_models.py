"""What virtual GPUs can claim to be: a plain device, or a model that people rent.

The facts of the models are those of NVIDIA's data sheets and architecture white papers. Their memory is the nominal
one; a real device shows up to 6 % less. What follows from the compute capability is from the table "Technical
Specifications per Compute Capability" of the CUDA C++ Programming Guide.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.errors import UsageError

PLAIN = "plain"


@dataclass(frozen=True)
class GpuModel:
    """What a device says about itself.

    Attributes:
        key: What users call it.
        name: The result of torch.cuda.get_device_name().
        capability: The compute capability.
        memory: The memory of a device, as text.
        num_multiprocessors: The number of streaming multiprocessors.
        l2_mib: The size of the L2 cache.
    """

    key: str
    name: str
    capability: tuple[int, int]
    memory: str
    num_multiprocessors: int
    l2_mib: int

    @property
    def architecture(self) -> str:
        """The architecture, as nvcc calls it."""
        major, minor = self.capability
        return f"sm_{major}{minor}"


@dataclass(frozen=True)
class CapabilityLimits:
    """What all GPUs of a compute capability have in common.

    Attributes:
        max_threads: The most threads that a multiprocessor runs at the same time.
        shared_kib: The shared memory of a multiprocessor.
    """

    max_threads: int
    shared_kib: int


# For the plain device: bfloat16 needs 8.0; from 8.9 on, libraries choose float8, and from 9.0 on FlashAttention 3. With
# fewer than 68 multiprocessors, torch.compile would log at every matrix product that it can't tune it.
_MODELS = (
    GpuModel(PLAIN, "Virtual GPU (phalanx)", (8, 0), "16GiB", 108, 40),
    GpuModel("v100", "Tesla V100-SXM2-16GB", (7, 0), "16GiB", 80, 6),
    GpuModel("t4", "Tesla T4", (7, 5), "16GiB", 40, 4),
    GpuModel("a100", "NVIDIA A100-SXM4-80GB", (8, 0), "80GiB", 108, 40),
    GpuModel("a100-40gb", "NVIDIA A100-SXM4-40GB", (8, 0), "40GiB", 108, 40),
    GpuModel("a10g", "NVIDIA A10G", (8, 6), "24GiB", 80, 6),
    GpuModel("a6000", "NVIDIA RTX A6000", (8, 6), "48GiB", 84, 6),
    GpuModel("rtx3090", "NVIDIA GeForce RTX 3090", (8, 6), "24GiB", 82, 6),
    GpuModel("l4", "NVIDIA L4", (8, 9), "24GiB", 58, 48),
    GpuModel("l40s", "NVIDIA L40S", (8, 9), "48GiB", 142, 96),
    GpuModel("rtx4090", "NVIDIA GeForce RTX 4090", (8, 9), "24GiB", 128, 72),
    GpuModel("h100", "NVIDIA H100 80GB HBM3", (9, 0), "80GiB", 132, 50),
    GpuModel("h200", "NVIDIA H200", (9, 0), "141GiB", 132, 60),
    GpuModel("b200", "NVIDIA B200", (10, 0), "180GiB", 148, 126),
    GpuModel("rtx5090", "NVIDIA GeForce RTX 5090", (12, 0), "32GiB", 170, 96),
)
_BY_KEY = {model.key: model for model in _MODELS}
GPU_MODELS = tuple(_BY_KEY)

_LIMITS = {
    (7, 0): CapabilityLimits(2048, 96),
    (7, 5): CapabilityLimits(1024, 64),
    (8, 0): CapabilityLimits(2048, 164),
    (8, 6): CapabilityLimits(1536, 100),
    (8, 9): CapabilityLimits(1536, 100),
    (9, 0): CapabilityLimits(2048, 228),
    (10, 0): CapabilityLimits(2048, 228),
    (12, 0): CapabilityLimits(1536, 100),
}


def find_gpu_model(name: object, given_as: str) -> GpuModel:
    """Return the model with a name, in small or capital letters.

    Args:
        name: What the user calls it.
        given_as: Where the user has named it.

    Raises:
        UsageError: There is none with this name.
    """
    model = _BY_KEY.get(name.strip().lower()) if isinstance(name, str) else None
    if model is None:
        raise UsageError(f"{given_as} is {name!r}; give one of {', '.join(GPU_MODELS)}{_advice(name, given_as)}")
    return model


def _advice(name: object, given_as: str) -> str:
    is_number = isinstance(name, int) or (isinstance(name, str) and name.strip().isdigit())
    return f"; the number of GPUs is another setting{_NUMBERS.get(given_as, '')}" if is_number else ""


_NUMBERS = {"--virtual-gpu": ", --virtual-gpus", "PHALANX_VIRTUAL_GPU": ", PHALANX_VIRTUAL_GPUS"}


def limits_of(model: GpuModel) -> CapabilityLimits:
    """Return what follows from the compute capability of a model."""
    return _LIMITS[model.capability]
