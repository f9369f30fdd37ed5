"""What all tests share: a site-packages folder of their own, with real dist-info folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from redhost.testing import Environment


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the browser's tests to those who name them: `make test-full` has a browser."""
    named = any("browser" in str(argument) for argument in config.invocation_params.args)
    return True if collection_path.name == "browser" and not named else None


@pytest.fixture
def environment(redhost_environment: Environment) -> Environment:
    """Return an empty environment beside the real one."""
    return redhost_environment
