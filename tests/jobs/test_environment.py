from __future__ import annotations

import pytest

from phalanx.errors import UsageError
from phalanx.jobs.environment import parse_variables


def test_variables_may_contain_equals_signs_and_nothing() -> None:
    assert parse_variables(["A=b=c", "EMPTY=", "A=last"]) == {"A": "last", "EMPTY": ""}


@pytest.mark.parametrize("text", ["NAME", "=value", "", "A\0=b"])
def test_what_sets_no_variable_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give NAME=VALUE"):
        parse_variables([text])
