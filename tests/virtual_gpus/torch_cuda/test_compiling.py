from __future__ import annotations

import subprocess
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


_FLEX_ATTENTION = """
import warnings
import torch, phalanx
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
phalanx.virtual_devices(2, face="cuda")

def run(attention, device):
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, heads, 32, 8, generator=random).to(device) for heads in (4, 2, 2))
    slopes = torch.tensor([0.1, 0.2, 0.3, 0.4], device=device)
    inputs = [tensor.requires_grad_() for tensor in (query, key, value, slopes)]
    mask = create_block_mask(lambda b, h, q, k: q >= k, 2, None, 32, 32, device=device)
    lean = lambda score, b, h, q, k: score - slopes[h] * (q - k)
    out = attention(query, key, value, score_mod=lean, block_mask=mask, enable_gqa=True)
    return [out, *torch.autograd.grad(out.square().sum(), inputs)]

expected = run(flex_attention, "cuda:0")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = run(torch.compile(flex_attention, fullgraph=True), "cuda:1")
    with torch.no_grad():
        query = torch.randn(1, 1, 16, 8, device="cuda:1")
        torch.compile(flex_attention)(query, query, query)
for one, other in zip(result, expected):
    assert one.device == torch.device("cuda:1")
    torch.testing.assert_close(one.cpu(), other.cpu())
told = [str(each.message) for each in caught if "flex_attention" in str(each.message)]
print(len(told), told[0].partition(";")[0])
"""

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


def _run_with_inductor(text: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return run_script(
        text,
        TORCHINDUCTOR_CACHE_DIR=str(cache),
        TORCHINDUCTOR_COMPILE_THREADS="1",
        TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS="0",
    )


@needs_inductor
def test_flex_attention_is_compiled_as_plain_operations_with_one_warning(tmp_path: Path) -> None:
    for _ in range(2):  # the second process finds what the first has compiled
        ended = _run_with_inductor(_FLEX_ATTENTION, tmp_path)
        told = "1 compiled flex_attention: this is a virtual GPU, which runs no Triton kernels\n"
        assert ended.stdout == told, ended.stderr


@needs_inductor
def test_the_default_backend_writes_code_for_the_cpu(tmp_path: Path) -> None:
    ended = _run_with_inductor(_BY_THE_DEFAULT_BACKEND, tmp_path)
    assert ended.stdout.split("\n") == ["gradients", "cuda:1 [3.0, 3.0, 3.0]", "True", ""], ended.stderr
