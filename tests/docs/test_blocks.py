"""What pages show can be read: their commands, programs and data."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from pages.commands import commands_of, shows
from pages.page import Block, Page, all_pages, read_page
from pages.python import unbound

from .conftest import is_listed

PYTHON = [block for page in all_pages() for block in page.blocks("python")]


def test_what_is_listed_is_there(allowed: dict[str, Any]) -> None:
    every = [step for page in all_pages() for step in (*commands_of(page), *page.blocks("python"))]
    for entry in allowed["not_run"]:
        assert entry["why"]
        only = {"not_run": [entry]}
        assert any(is_listed(step, only) for step in every), entry


def test_most_of_what_pages_show_is_run(allowed: dict[str, Any]) -> None:
    for name in ("README.md", "docs/tutorial.md", "docs/generation.md"):
        assert not [c for c in commands_of(read_page(name)) if is_listed(c, allowed)]


@pytest.mark.parametrize("block", PYTHON, ids=lambda b: f"{b.page}:{b.line}")
def test_a_block_of_python_is_python(block: Block) -> None:
    compile(block.text, block.page, "exec")


def test_a_block_of_data_can_be_read() -> None:
    for page in all_pages():
        for block in page.blocks("toml"):
            assert tomllib.loads(block.text), f"{page.name}:{block.line}"
        for block in page.blocks("json"):
            assert [json.loads(line) for line in block.text.splitlines()], block


@pytest.mark.parametrize("option", ["--max-tokens", "--temperature", "--seed", "--explain"])
def test_the_page_on_generation_names_its_options(option: str) -> None:
    assert f"`{option}" in read_page("docs/generation.md").text


def test_a_command_goes_on_to_the_end_of_its_quote() -> None:
    text = '```console\n$ python -c "\nprint(1)\n" # x\n1\n\n$ echo a \\\n  b\na b\n```\n'
    first, second = commands_of(Page("x.md", text))
    assert (first.line, first.text, first.output) == (2, 'python -c "\nprint(1)\n" # x', ("1",))
    assert (second.line, second.text, second.output) == (7, "echo a \\\n  b", ("a b",))


def test_another_output_than_the_page_shows_is_noticed() -> None:
    assert shows("noise\nrange3 1.00 ███\n", ("range3 … ███",))
    assert not shows("range3 0.99 ███\n", ("range3 1.00 ███",))
    assert not shows("b\na\n", ("a", "b"))


def test_a_block_is_complete_when_it_binds_what_it_uses() -> None:
    assert not unbound("import redhost\nwith redhost.Host.open() as h:\n    print(h)\n")
    assert unbound("host.recompose()\n") == {"host"}
