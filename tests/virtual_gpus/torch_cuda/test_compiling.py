from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.inductor import needs_inductor
from tests.virtual_gpus.in_child import on_virtual_devices, run_script

pytestmark = pytest.mark.slow


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # importing Dynamo warns
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@on_virtual_devices(2, face="cuda")
def test_a_graph_computes_what_its_function_does(backend: str) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x @ x).softmax(-1).square().sum()

    x = torch.randn(4, 4, device="cuda:1", requires_grad=True)
    (expected,) = torch.autograd.grad(function(x), x)
    (result,) = torch.autograd.grad(torch.compile(function, backend=backend)(x), x)
    assert result.device == torch.device("cuda:1")
    torch.testing.assert_close(result, expected)


_BY_THE_DEFAULT_BACKEND = """
import torch, phalanx
phalanx.virtual_devices(2, face="cuda")

def function(x, weight):
    return torch.nn.functional.gelu(x @ weight).softmax(-1).square().sum()

inputs = [torch.randn(4, 4, device="cuda:1", requires_grad=True) for _ in range(2)]
expected = torch.autograd.grad(function(*inputs), inputs)
result = torch.autograd.grad(torch.compile(function)(*inputs), inputs)
for one, other in zip(result, expected):
    assert one.device == torch.device("cuda:1")
    torch.testing.assert_close(one, other)
print("gradients")

moved = torch.compile(lambda x: (x * 2).to("cuda:1") + 1)(torch.ones(3, device="cuda:0"))
print(moved.device, moved.tolist())

from phalanx import patches
print("torch._inductor.config.cuda_backend" in [patch.name for patch in patches.changes()])
"""


@needs_inductor
def test_the_default_backend_writes_code_for_the_cpu(tmp_path: Path) -> None:
    ended = run_script(
        _BY_THE_DEFAULT_BACKEND,
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0",
    )
    assert ended.stdout.split("\n") == ["gradients", "cuda:1 [3.0, 3.0, 3.0]", "True", ""], ended.stderr
