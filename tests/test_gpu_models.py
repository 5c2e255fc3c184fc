"""The models that virtual GPUs can claim to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.byte_sizes import size_in_bytes
from phalanx.errors import UsageError
from phalanx.gpu_models import GPU_MODELS, PLAIN, find_gpu_model, limits_of

_PAGE = Path(__file__).parent.parent / "docs" / "virtual-gpus.md"


@pytest.mark.parametrize("key", GPU_MODELS)
def test_every_model_is_complete(key: str) -> None:
    model = find_gpu_model(key, "gpu")
    assert model.key == key == key.lower()
    assert size_in_bytes(model.memory, "memory") >= 16 << 30
    assert limits_of(model).max_threads % 32 == 0
    assert model.architecture == f"sm_{model.capability[0]}{model.capability[1]}"


def test_the_plain_model_has_bfloat16_and_nothing_of_later_gpus() -> None:
    assert (8, 0) <= find_gpu_model(PLAIN, "gpu").capability < (8, 9)


def test_a_model_is_found_in_small_or_capital_letters() -> None:
    h100 = find_gpu_model("H100", "gpu")
    assert (h100.capability, h100.memory, h100.num_multiprocessors) == ((9, 0), "80GiB", 132)


def test_an_unknown_model_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(UsageError) as failure:
        find_gpu_model("h1000", "--virtual-gpu")
    assert str(failure.value) == f"--virtual-gpu is 'h1000'; give one of {', '.join(GPU_MODELS)}"


@pytest.mark.parametrize(("number", "given_as"), [("8", "--virtual-gpu"), (8, "spawn: virtual_gpu")])
def test_a_number_is_no_model(number: object, given_as: str) -> None:
    with pytest.raises(UsageError, match=r"; the number of GPUs is another setting(, --virtual-gpus)?$"):
        find_gpu_model(number, given_as)


def test_the_page_lists_every_model() -> None:
    rows = [
        line for line in _PAGE.read_text().splitlines() if line.startswith(tuple(f"| `{key}` |" for key in GPU_MODELS))
    ]
    expected = []
    for key in GPU_MODELS:
        model = find_gpu_model(key, "gpu")
        capability = ".".join(map(str, model.capability))
        memory = model.memory.replace("GiB", " GiB")
        expected.append(f"| `{key}` | {model.name} | {capability} | {memory} | {model.num_multiprocessors} |")
    assert rows == expected
