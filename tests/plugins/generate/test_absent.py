"""Where the plugin is not installed: one line that says what to install."""

from __future__ import annotations

import pytest
from redhost_author.verifying import Verifier

import redhost
from redhost import MissingError
from redhost.core.model.build import read_package
from redhost.core.tasks import HEADS, make_task
from redhost.errors import PluginError
from redhost.registry.environment.extras import how_to_install
from redhost.registry.package.discover import from_folder

RUN = how_to_install("generate")


@pytest.fixture
def nothing(monkeypatch) -> redhost.plugins.Plugins:
    """No plugins, and no task that one has registered."""
    monkeypatch.delitem(HEADS, "vocabulary")
    return redhost.plugins.Plugins(entry_points=())


def test_a_backbone_of_text_names_the_extra(nothing, speaker_folder) -> None:
    [wrong] = Verifier(plugins=nothing).backbone(read_package(from_folder(speaker_folder)))
    assert (wrong.code, wrong.found, wrong.hint) == ("task_unknown", "generation", RUN)
    with pytest.raises(PluginError) as e:
        nothing.task("generation")
    assert e.value.hint == RUN


def test_so_does_the_task_alone(nothing) -> None:
    with pytest.raises(MissingError) as e:
        make_task("generation")
    assert str(e.value) == f"task 'generation' is part of redhost-generate. {RUN}"
