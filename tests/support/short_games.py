"""Games of fewer steps, for tests that do not ask how a game ends."""

from __future__ import annotations

import pytest

__all__ = ["shorten", "shorten_in"]

QUICK = (
    "core/backbones/test_bfloat16.py", "core/composition/test_every_router.py",
    "plugins/generate", "plugins/generative", "plugins/peft", "plugins/report/test_mixtures.py",
    "plugins/robust/test_absent.py", "plugins/serve",
)  # fmt: skip
"""Tests of language models and of many kinds of routers, for which a game need not end well."""

LONG = ("plugins/generate/test_causal.py",)
"""Those among them that are about what the usual steps end with."""


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Play games for a fifth of the usual steps over tokens, for a tenth over others."""
    for module in ("redhost_generate.causal", "redhost_robust.routers.robust"):
        patch.setattr(f"{module}.ROUNDS", 1)


def shorten_in(test: str, patch: pytest.MonkeyPatch) -> None:
    """Play short games, if a test is one of `QUICK`.

    Args:
        test: Its file, relative to the folder of all tests.
        patch: What is undone after the test.
    """
    if test.startswith(QUICK) and test not in LONG:
        shorten(patch)
