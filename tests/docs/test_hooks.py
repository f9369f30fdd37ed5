"""Every hook is on its page, and some test has a plugin that implements it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages.page import ROOT, read_page
from reference.hooks import hook_names


def implemented(source: str) -> Iterator[str]:
    """Yield the hooks that a file implements, or that a plugin does which it holds as a string."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef(name=name, decorator_list=marks):
                if any(ast.unparse(m).endswith("hookimpl") for m in marks):
                    yield name
            case ast.Constant(value=str(text)) if "hookimpl" in text:
                try:
                    yield from implemented(text)
                except SyntaxError:
                    continue  # a sentence about hooks, or a part of a plugin


@pytest.fixture(scope="module")
def tested() -> frozenset[str]:
    files = [p for p in (ROOT / "tests").rglob("*.py") if p != Path(__file__)]
    return frozenset(name for p in files for name in implemented(p.read_text("utf-8")))


@pytest.mark.parametrize("hook", hook_names())
def test_a_hook_is_documented_and_tested(hook: str, tested: frozenset[str]) -> None:
    assert f"## {hook}\n" in read_page("docs/reference/hooks.md").text
    assert hook in tested


def test_a_plugin_in_a_string_counts_and_a_sentence_does_not() -> None:
    plugin = '"""import redhost\n\n@redhost.hookimpl\ndef redhost_a():\n    pass\n"""'
    assert list(implemented(f"X = {plugin}\nY = 'hookimpl redhost_b'\n")) == ["redhost_a"]
    assert list(implemented("@hookimpl\ndef redhost_c(): pass\ndef redhost_d(): pass\n")) == [
        "redhost_c"
    ]
