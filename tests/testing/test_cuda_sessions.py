"""Sessions whose own process has initialised CUDA: its ranks must be able to use the GPU all the same."""

from __future__ import annotations

import pytest

from tests.gpus import needs_gpu

pytestmark = [needs_gpu, pytest.mark.slow]

_SESSION = """
    import pytest
    import torch

    torch.zeros(1, device="cuda")  # as many a conftest does

    @pytest.mark.ranks(2)
    def test_ranks_use_the_gpu(group, rank):
        assert torch.cuda.current_device() == 0
        value = torch.full((3,), rank + 1.0, device="cuda").sum().cpu()
        group.all_reduce(value)
        assert value == 9

    @pytest.mark.ranks(2)
    def test_a_failure_is_shown(rank):
        assert torch.ones(1, device="cuda").item() == rank

    @pytest.fixture
    def weights():
        return torch.ones(2, device="cuda")

    @pytest.mark.ranks(2)
    def test_fixture_on_the_gpu(weights, rank):
        pass

    @pytest.mark.ranks(1, device="cuda")
    def test_device_is_the_gpu(device):
        assert device == torch.device("cuda", 0)

    @pytest.mark.ranks(64, backend="nccl")
    def test_more_ranks_than_gpus(device):
        pass
"""


@pytest.mark.parametrize("kind", ["process", "pool"])
def test_ranks_never_inherit_a_cuda_context(pytester: pytest.Pytester, kind: str) -> None:
    pytester.makepyfile(_SESSION)
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio", "--ranks-kind", kind)
    result.assert_outcomes(passed=2, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            '*64 ranks with backend="nccl" need 64 GPUs*',
            "rank 0 of 2: AssertionError: assert 1.0 == 0*",
            "fixture 'weights' holds a tensor on cuda:0*",
        ]
    )


def test_ranks_can_run_backward_after_pytests_own_process_has(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        import torch

        def test_backward_here():
            torch.ones(2, requires_grad=True).sum().backward()

        @pytest.mark.ranks(2)
        def test_backward_on_ranks(group):
            weights = torch.ones(2, requires_grad=True)
            weights.sum().backward()
            group.all_reduce(weights.grad)
            assert weights.grad.tolist() == [2, 2]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-p", "no:asyncio")
    result.assert_outcomes(passed=2)


def test_a_world_of_ranks_works_after_cuda_was_initialised(pytester: pytest.Pytester) -> None:
    script = pytester.makepyfile(
        """
        import torch
        from phalanx.testing import ranks

        def on_gpu():
            return torch.ones(2, device="cuda").sum().item()

        torch.zeros(1, device="cuda")
        with ranks(2) as world:
            print(world.run(on_gpu), world.run(on_gpu))
        """
    )
    result = pytester.runpython(script)
    result.stdout.fnmatch_lines(["[[]2.0, 2.0] [[]2.0, 2.0]"])
