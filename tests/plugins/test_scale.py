"""The bench's family of domains: its rows, its packages, and what the page says of a curve."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from red_lab.arithmetic import pairs_in
from red_lab.bench import load, page
from red_lab.bench.scale.family import SIZES, SumDomain, install, sites
from redhost_author.testing import assert_expert_contract

from redhost.registry.package.discover import from_folder


def backbone() -> Path:
    return Path(find_spec("red_backbone_tiny").origin).parent


def test_no_row_has_two_roles_and_no_text_two_domains() -> None:
    seen: set[str] = set()
    for domain in map(SumDomain, range(0, 1001, 50)):
        rows = domain.rows()
        assert {role: len(found) for role, found in rows.items()} == SIZES
        texts = [r.text for found in rows.values() for r in found]
        assert len(set(texts)) == len(texts) and not seen & set(texts)
        seen.update(texts)


def test_no_row_adds_what_the_seed_adds() -> None:
    for domain in map(SumDomain, range(0, 1001, 100)):
        for row in domain.rows()["train"]:
            assert all(max(pair) > 50 for pair in pairs_in(row.text))


def test_answers_are_the_domains_own() -> None:
    for domain in map(SumDomain, (0, 7, 18, 19, 999, 1000)):
        labels = {r.label for found in domain.rows().values() for r in found}
        assert labels == set(domain.labels)
        shared = domain.settings.space != "labels"
        assert all((2 <= int(y) <= 100) if shared else "/" in y for y in labels)
    assert not set(SumDomain(0).labels) & set(SumDomain(1).labels)  # a neighbour answers otherwise


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scale")
    install(folder, backbone(), count=1)
    return folder


def test_a_package_keeps_its_contract(work) -> None:
    folder = sites(work, 1)[0] / SumDomain(0).module
    assert from_folder(folder).kind == "expert"
    assert_expert_contract(folder)


def test_what_is_finished_is_not_made_again_and_what_is_not_is(work) -> None:
    site = sites(work, 1)[0]
    weights = site / SumDomain(0).module / "expert.safetensors"
    made, data = weights.stat().st_mtime_ns, weights.read_bytes()
    install(work, backbone(), count=1)
    assert weights.stat().st_mtime_ns == made
    next(site.glob("*.dist-info/RECORD")).unlink()  # as a kill between two files leaves it
    install(work, backbone(), count=1)
    assert weights.stat().st_mtime_ns > made and weights.read_bytes() == data
    assert next(site.glob("*.dist-info/RECORD")).exists()


def test_sites_nest() -> None:
    names = [p.name for p in sites(Path("w"), 1001)]
    assert [p.name for p in sites(Path("w"), 100)] == names[:3]
    assert len(names) == 5


def found(same: bool) -> dict:
    """Return a made-up curve of one point."""
    point = {
        "experts": 1000,
        "seconds": {"cold": 60.0, "warm": 12.0, "row": 9.0},
        "cpu": {"cold": 50.0, "warm": 11.0, "row": 8.0},
        "steps": {"cold": {"learn": 30.0, "train": 4.0, "judge": 3.0, "digests": 0.1}},
        "outside_receipt": 22.9,
        "peak_gib": 0.81,
        "unchanged": True,
        "same_answers": same,
        "test": {
            "rows": 2000,
            "own_expert": {"shortlist": {"top1": 0.65, "top2": 0.82}},
            "answers": {"routed": 0.5, "oracle": 0.75, "backbone": 0.01},
        },
        "query_ms": {"1": {"backbone": 40.0, "bus": 1.0}, "64": {"backbone": 130.0, "bus": 13.0}},
    }
    more = {
        "level": "row",
        "moved": 1,
        "same_labels": 0.9995,
        "seconds": {"attach": 4.0, "rollback": 0.05},
        "cpu": {"attach": 3.5, "rollback": 0.01},
        "back_again": same,
    }
    return {"points": {"1000": point}, "one_more": {"row": more}}


def test_the_page_says_what_was_found() -> None:
    text = page("scale", found(True))
    assert (
        "| 1,000 | 60.0 (50.0) | 30.0 | 4.0 | 3.0 | 0.1 | 22.9 | 12.0 (11.0) | 9.0 (8.0) | 0.81 |"
        in text
    )
    assert "| 1,000 | 64 | 130.00 | 13.00 | 0.100 |" in text
    assert "at every point" in text and "NO" not in text
    broken = page("scale", found(False))
    assert "not with [1000] experts" in broken and "NO" in broken


def test_the_figure_is_drawn(tmp_path) -> None:
    draw = load("scale").draw
    assert draw is not None
    folder = Path(__file__).parents[2] / "docs" / "results" / "bench"
    draw(json.loads((folder / "scale.json").read_text("utf-8")), tmp_path)
    assert (tmp_path / "scale.svg").read_bytes() == (folder / "scale.svg").read_bytes()
