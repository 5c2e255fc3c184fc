"""Runs of the suite in processes of their own, put together."""

from __future__ import annotations

import json

import pytest

from tests.dev import run_with_tools

pytest.importorskip("expecttest", reason="torch's tests need expecttest")
pytestmark = pytest.mark.slow

# Not in the process of the tests: its warnings are errors, and the suite's imports warn.
_PROGRAM = """
import json
import torch  # once for all parts
from phalanx_tools.conformance.matrix import Part, run_matrix
from phalanx.errors import UsageError

parts = (
    Part("gloo", 2, names=("test_all_reduce_sum", "test_all_reduce_group_sum")),
    Part("gloo", 3, is_rest=True),
)
done = []
def note(part, report):
    done.append((str(part), [outcome.name for outcome in report.outcomes]))
union = run_matrix(parts, when_done=note)
try:
    run_matrix([Part("plain", 2, names=("test_of_nothing",))])
except UsageError as error:
    print(json.dumps({"done": done, "passed": union.passed(), "rest": union.rest(), "refused": str(error)}))
"""


def test_parts_run_for_themselves_and_are_put_together() -> None:
    ended = run_with_tools(_PROGRAM)
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["done"] == [
        ["gloo world 2", ["test_all_reduce_sum", "test_all_reduce_group_sum"]],
        ["gloo world 3", ["test_all_reduce_group_sum"]],
    ]
    assert told["passed"] == ["test_all_reduce_sum"]
    assert told["rest"] == [["test_all_reduce_group_sum", "Skipped due to small world size."]]
    assert told["refused"] == "the suite has no test test_of_nothing"
