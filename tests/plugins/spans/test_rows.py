"""Spans in files of rows, and backbones that have none to read."""

from __future__ import annotations

import json

import pytest
from redhost_author.backbone.making import BackbonePlan, new_backbone

import redhost
from redhost.core.training.rows import read_rows

DECOMPOSED, COMPOSED = "cafe\u0301", "caf\u00e9"


def test_labels_of_spans_are_composed(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "x y", "label": [[0, 1, DECOMPOSED]]}) + "\n")
    assert [r.label for r in read_rows(path, task="spans")] == [f"0:1:{COMPOSED}"]


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("2:3:y|0:1:x", "0:1:x|2:3:y"),
        ('[[2, 3, "y"], [0, 1, "x"]]', "0:1:x|2:3:y"),
        ("0:9:x", None),
    ],
)
def test_what_people_write_has_one_spelling(given, written) -> None:
    assert redhost.plugins.make_task("spans").head.canonical(given, "a b") == written


def test_spans_are_not_read_from_dense_layers(tmp_path, encoder) -> None:
    task = redhost.plugins.make_task("spans")
    with pytest.raises(redhost.UsageError, match=r"that answers spans.*--pooling"):
        new_backbone(
            tmp_path / "p",
            BackbonePlan(id="x", source=f"hf:{encoder}", task=task),
        )
