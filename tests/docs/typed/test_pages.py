"""What pages show is typed as it stands, page by page, in an environment of its own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from pages.commands import Command, commands_of, shows
from pages.page import Block, Page, all_pages
from pages.python import unbound
from reference.fits import misfits
from reference.printed import printed_types

from ..conftest import is_listed

PAGES = [page for page in all_pages() if page.blocks("console")]


def steps_of(page: Page) -> list[Command | Block]:
    """Return a page's commands and complete Python blocks, in their order."""
    blocks = [b for b in page.blocks("python") if not unbound(b.text)]
    return sorted([*commands_of(page), *blocks], key=lambda step: step.line)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_can_be_typed(
    page: Page, make_stage: Callable[[str], Any], allowed: dict[str, Any]
) -> None:
    steps = [step for step in steps_of(page) if not is_listed(step, allowed)]
    if not steps:
        pytest.skip("nothing here can be run alone: see allowed.toml")
    stage = make_stage(page.name)
    for step in steps:
        where = f"{page.name}:{step.line}: {step.text}"
        if isinstance(step, Block):
            done = stage.python(step.text)
            assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
            continue
        done = stage.type(step.text)
        assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
        assert shows(done.stdout, step.output), f"{where}\nprints\n{done.stdout}"
        words = shlex.split(step.text, comments=True)
        if words[0] == "redhost" and "--json" in words:
            type_, also = printed_types()[words[1]]
            assert not misfits(json.loads(done.stdout), type_, also=also), where
