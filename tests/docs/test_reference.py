"""The reference is what the code says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from inspect import ismodule
from typing import Literal

import click
import msgspec
import pytest
import reference
from pages.page import ROOT, Page, all_pages, archived_at
from reference.cli import commands
from reference.docstrings import returns
from reference.printed import LAB, printed_types
from reference.shapes import keys, range_text, shapes_in, type_text

import redhost
from redhost.cli import cli

FOLDER = ROOT / "docs" / "reference"


@pytest.mark.parametrize("name", sorted(reference.PAGES))
def test_a_page_is_what_the_code_says(name: str) -> None:
    written = (FOLDER / name).read_text("utf-8")
    assert written == reference.PAGES[name](), "run `make reference`"


def test_there_is_no_other_page() -> None:
    assert {p.name for p in FOLDER.iterdir()} == set(reference.PAGES)


def test_every_command_and_option_says_what_it_does() -> None:
    silent = [
        f"{path} {'/'.join(p.opts)}"
        for path, command, _ in commands()
        for p in command.params
        if isinstance(p, click.Option) and not p.help
    ]
    assert not silent
    assert not [path for path, command, _ in commands() if not command.help]


def strange(page: Page) -> list[str]:
    """Return what a page's prose calls a command and is none, or names an option that is none."""
    known = {"redhost": cli, **{path: command for path, command, _ in commands()}}
    spans = (
        (n, span)
        for n, line in page.prose.items()
        for span in re.findall(r"`(redhost(?: [^`]+)?)`", line)
    )
    return [f"{page.name}:{n}: {span}" for n, span in spans if not exists(span, known)]


def exists(span: str, known: Mapping[str, click.Command]) -> bool:
    """Tell whether a command, perhaps with arguments and options, is one."""
    words = span.split()
    size = max(n for n in range(1, len(words) + 1) if " ".join(words[:n]) in known)
    command, rest = known[" ".join(words[:size])], words[size:]
    if isinstance(command, click.Group) and rest and re.fullmatch("[a-z][a-z-]*", rest[0]):
        return False
    options = {"--help", *(o for p in command.params for o in p.opts)}
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)) <= options


CURRENT = [page for page in all_pages() if not archived_at(page.path.parent)]


@pytest.mark.parametrize("page", CURRENT, ids=lambda page: page.name)
def test_pages_name_commands_and_options_that_exist(page: Page) -> None:
    assert strange(page) == []


def test_a_command_or_option_that_does_not_exist_is_noticed() -> None:
    text = "`redhost lab bench scale`, `redhost recompse` and `redhost predict --devise x`"
    assert len(strange(Page("x.md", text))) == 2


def test_every_command_of_the_lab_that_prints_json_is_documented() -> None:
    from red_lab.cli import lab

    found = {n for n, c in lab.commands.items() if any("--json" in p.opts for p in c.params)}
    assert found == set(LAB)
    assert all("`" in returns(made) for _, made in LAB.values())


def test_every_json_option_names_a_type() -> None:
    json = {
        name
        for name, command in cli.commands.items()
        if any("--json" in p.opts for p in command.params)
    }
    assert json <= set(printed_types())
    # Commands of plugins name theirs too.
    assert {"merge", "migrate", "port", "sweep", "train-many"} <= set(printed_types()) - json


def test_every_public_name_is_explained() -> None:
    text = (FOLDER / "api.md").read_text("utf-8")
    entries = text.split("\n#### ")[1:]
    assert {e.partition("\n")[0] for e in entries} >= {
        name for name in redhost.__all__ if not ismodule(getattr(redhost, name))
    }
    for entry in entries:
        name, _, rest = entry.partition("\n")
        explanation = rest.split("```")[2].partition("\n#")[0].strip()
        assert explanation and not explanation.startswith("-"), name


class Inner(msgspec.Struct):
    """An example within another.

    Attributes:
        share: A share.
    """

    share: float


class Outer(msgspec.Struct, omit_defaults=True):
    """An example.

    Attributes:
        kind: Which.
        inner: The one within,
            given in two lines.
        count: How many.
    """

    kind: Literal["a", "b"]
    inner: dict[str, Inner] | None = None
    count: int = 3


def test_keys_are_those_of_the_json() -> None:
    kind, inner, count = keys(Outer)
    assert set(msgspec.to_builtins(Outer(kind="a", inner={}, count=4))) == {
        k.name for k in (kind, inner, count)
    }
    assert (kind.default, kind.optional) == (None, False)
    assert (count.default, count.optional) == ("3", True)
    assert inner.text == "The one within, given in two lines."
    assert type_text(inner.type, {Inner: "I"}) == "object, key → I or null"
    assert type_text(kind.type, {}) == '`"a"` or `"b"`'
    assert list(shapes_in(list[Outer])) == [Outer, Inner]


def test_a_range_is_given_in_words() -> None:
    from redhost.registry.package.manifest import ExpertManifest

    by_name = {k.name: k for k in keys(ExpertManifest)}
    assert range_text(by_name["norm_bound"].type) == "> 0"
    assert range_text(by_name["labels"].type) == "at most 1,000; at most 100,000"  # characters
    assert range_text(by_name["domain"].type) == "at most 100,000"
    assert range_text(by_name["activation"].type) == ""


def test_a_key_without_a_meaning_is_an_error() -> None:
    class Silent(msgspec.Struct):
        """An example."""

        key: int

    with pytest.raises(KeyError, match="key"):
        keys(Silent)
