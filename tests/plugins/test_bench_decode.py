"""The bench's section `decode`: a small real run, its page, what it calls met and missed."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from red_lab.bench import decode
from red_lab.bench.section import SECTIONS, write_page
from red_lab.bench.trunks import open_trunk
from redhost_generate.decode import DecodingSession

import redhost

SYSTEMS = (("causal", 1), ("causal", 4), ("robust", 4))


@pytest.fixture(scope="module")
def trunk() -> redhost.authoring.TextEncoder:
    return open_trunk("tiny")


@pytest.fixture(scope="module")
def measured(trunk) -> dict:
    found = decode.measure_on(trunk, rounds=1, systems=SYSTEMS, contexts=(4, 9))
    return {"threads": 1, "backbones": {"smollm2": found}}


def test_every_system_is_timed_at_every_context(measured) -> None:
    rows = measured["backbones"]["smollm2"]["rows"]
    cells = [(r["router"], r["experts"], r["context"]) for r in rows]
    assert sorted(cells) == sorted((k, n, c) for k, n in SYSTEMS for c in (4, 9))
    for row in rows:
        ratio = row["seconds"]["median"] / row["backbone_seconds"]["median"] - 1
        assert row["overhead"]["ratio"] == pytest.approx(ratio)  # of one round


def test_memory_grows_with_experts_and_a_mixture_holds_a_row_for_each(measured) -> None:
    figures = measured["backbones"]["smollm2"]
    size = {(r["router"], r["experts"]): r for r in figures["rows"]}
    width, rank = figures["width"], figures["width"] // 4
    one = (size["causal", 4]["kept_bytes"] - size["causal", 1]["kept_bytes"]) / 3
    assert 4 * 2 * width * rank <= one <= 2 * 4 * 2 * width * rank + 16 * (3 * width + rank)
    # Of a model this small, other allocations of a step may be larger than the difference.
    assert abs(size["causal", 4]["step_bytes"]) < 2**20


def test_both_systems_decode_what_the_bus_says(trunk) -> None:
    for kind in ("causal", "robust"):
        walk = DecodingSession(decode.compose(trunk, kind, 2))
        walk.step([5, 6, 7])
        p, alpha = walk.step([8])
        assert float(p.sum()) == pytest.approx(1, abs=1e-5)
        assert torch.allclose(alpha, torch.full((3,), 1 / 3))


def test_the_page_says_whether_the_aim_is_met(measured, tmp_path) -> None:
    assert "decode" in SECTIONS
    good, bad = copy.deepcopy(measured), copy.deepcopy(measured)
    for found, ratio in ((good, 0.04), (bad, 0.06)):
        for row in found["backbones"]["smollm2"]["rows"]:
            row["overhead"]["ratio"] = ratio
    assert decode.page(good).count(": met.") == 2 and "**missed**" not in decode.page(good)
    assert decode.page(bad).count("**missed**") == 2
    (tmp_path / "decode.json").write_text(json.dumps(measured))
    write_page(tmp_path)
    assert f"## {decode.TITLE}" in (tmp_path / "README.md").read_text("utf-8")
