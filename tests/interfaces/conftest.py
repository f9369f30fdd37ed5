"""Libraries that a host is plugged into: they are not among what `make test` installs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import redhost

LIBRARIES = "datasets", "mlflow", "narwhals", "pandas", "polars", "sentence_transformers", "sklearn"

for library in LIBRARIES:
    pytest.importorskip(library, reason="`make .venv/interfaces` installs it")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped experts, composed; it may decline."""
    home = tmp_path_factory.mktemp("interfaces") / "home"
    redhost.Host.open(home, backbone="tiny").recompose(decline=0.05)
    return home


@pytest.fixture(scope="session")
def sums() -> Callable[[int], list[str]]:
    """Return the function from a number to so many texts that are answered."""
    return lambda count: [f"What is {n % 48 + 1} plus {n % 7 + 1}?" for n in range(count)]
