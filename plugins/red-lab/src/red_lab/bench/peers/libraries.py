"""Find the other libraries: PEFT in this environment, AdapterHub in its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import redhost

__all__ = ["ADAPTERS", "adapters_python", "peft"]

ADAPTERS = Path("build/peers-adapters")
"""AdapterHub requires an older transformers, so it has its own virtual environment."""

HINT = "Run 'make .venv/peers', or name other sections: 'redhost lab bench profile scale'."


def peft() -> Any:
    """Import PEFT.

    Raises:
        MissingError: If it is not installed.
    """
    try:
        return importlib.import_module("peft")
    except ImportError as e:
        raise redhost.MissingError(
            "the peers are not installed", expected="peft 0.21", found="none", hint=HINT
        ) from e


def adapters_python(folder: Path = ADAPTERS) -> Path:
    """Return the Python interpreter of the environment that has AdapterHub's `adapters`.

    Raises:
        MissingError: If there is none.
    """
    python = folder / "bin" / "python"
    if not python.exists() or not list(folder.glob("lib/*/site-packages/adapters")):
        raise redhost.MissingError(
            "the peers are not installed",
            expected=f"AdapterHub's adapters in {folder}",
            found="none",
            hint=HINT,
        )
    return python.absolute()
