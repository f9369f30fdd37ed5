"""What tests of jobs share: their own function, which the table of functions has beside others."""

from __future__ import annotations

import pytest

from redhost.core.jobs.functions import FUNCTIONS

from .echo import echo


@pytest.fixture(autouse=True)
def registered_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FUNCTIONS, echo.name, echo)
