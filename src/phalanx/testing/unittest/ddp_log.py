"""Check what DDP has logged about an error."""

from __future__ import annotations

from typing import Any


def verify_ddp_error_logged(model_DDP: Any, err_substr: str) -> None:
    """Check that a model has logged an error with this text; a C++ stack trace in the text is ignored.

    Raises:
        AssertionError: It has not logged that error.
    """
    logged = model_DDP._get_ddp_logging_data()
    missing = [name for name in ("iteration", "has_error", "error") if name not in logged]
    if missing:
        raise AssertionError(f"DDP's logging data lacks {', '.join(missing)}")
    expected = err_substr.split("\nException raised from ", maxsplit=1)[0]
    if expected not in logged["error"]:
        raise AssertionError(
            f"DDP has logged another error than expected\n  expected {expected}\n  found    {logged['error']}"
        )
