from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import phalanx.testing.unittest as ours
from phalanx.errors import UsageError

_COMPARE = """
import inspect, types
import torch.testing._internal.common_distributed as theirs
import phalanx.testing.unittest as ours
for name, value in sorted(vars(theirs).items()):
    if name.startswith("__") or isinstance(value, types.ModuleType):
        continue
    found = getattr(ours, name, None)
    defined_there = getattr(value, "__module__", "") == theirs.__name__
    if found is None and value is not None:
        print("missing", name)
    elif defined_there and found is value:
        print("torch's", name)
"""


@pytest.mark.slow
def test_every_name_of_torchs_module_is_here_and_its_own_are_ours() -> None:
    asked = subprocess.run([sys.executable, "-c", _COMPARE], capture_output=True, text=True, check=True, timeout=120)
    # torchcomms is a package of its own, which these two serve.
    assert asked.stdout.split("\n")[:-1] == ["torch's C10dTorchCommsTestBase", "torch's setup_torchcomms_pg"]


def test_names_that_nobody_has_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"phalanx\.testing\.unittest.*has no attribute 'nothing_like_it'"):
        _ = ours.nothing_like_it


def test_all_is_complete() -> None:
    public = {
        name
        for name, value in vars(ours).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("phalanx.testing.unittest.")
    }
    assert public <= set(ours.__all__)
    assert all(hasattr(ours, name) for name in ours.__all__)


@pytest.mark.slow
def test_pytest_is_not_needed() -> None:
    code = "import sys; sys.modules['pytest'] = sys.modules['_pytest'] = None\nimport phalanx.testing.unittest"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.slow
def test_a_missing_expecttest_is_named() -> None:
    code = "import sys; sys.modules['expecttest'] = None\nimport phalanx.testing.unittest"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120).stderr
    assert "UsageError" in text
    assert "pip install expecttest" in text


def test_torchs_place_can_not_be_taken_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.testing._internal.common_distributed", sys)
    with pytest.raises(UsageError, match="imported already"):
        ours.take_torchs_place()


def test_classes_have_torchs_parameters() -> None:
    for case in (ours.MultiProcessTestCase, ours.MultiThreadedTestCase, ours.MultiProcContinuousTest):
        assert list(inspect.signature(case).parameters) == ["method_name", "methodName"]
