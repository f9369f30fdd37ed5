"""What all tests share: a site-packages folder of their own, with real dist-info folders."""

from __future__ import annotations

import pytest

from redhost.testing import Environment


@pytest.fixture
def environment(redhost_environment: Environment) -> Environment:
    """Return an empty environment beside the real one."""
    return redhost_environment
