"""What all test cases on ranks have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.testing.unittest.torch_case import TestCase
from phalanx.testing.unittest.world_sizes import DEFAULT_WORLD_SIZE


class RankedTestCase(TestCase):  # type: ignore[misc]
    """A test case that replaces the test's method with its own."""

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        name = methodName if methodName != "runTest" else method_name
        super().__init__(name)
        test = getattr(self, name, None)
        if test is not None:
            setattr(self, name, self.join_or_run(test))
        elif methodName != "runTest":
            raise ValueError(f"no such test method in {self.__class__}: {methodName}")

    @property
    def world_size(self) -> int:
        """How many ranks a test gets."""
        return DEFAULT_WORLD_SIZE

    def join_or_run(self, fn: Callable[[], None]) -> Any:
        """Make a method that waits for the ranks in the main process, and runs the test on a rank."""
        raise NotImplementedError
