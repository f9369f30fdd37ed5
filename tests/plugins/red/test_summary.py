"""From single seeds to a page's metrics: what is averaged, paired and counted, and over what."""

from __future__ import annotations

import numpy as np
import pytest
from red_lab.intervals import interval
from red_lab.red.experts import NAMES
from red_lab.red.measure import Plan
from red_lab.red.queries import RULE, Data, Query
from red_lab.red.summary import earlier_rule, key_of, summarise, table, titled

OTHERS = ("MoE, residual", "MoE, mlp", "MoE, linear", "monolith", "global head")
SYSTEMS = ("RED", "oracle, residual", *OTHERS)
TESTS = [
    tuple(Query(f"q {n} {seed}", str(18 + n), "range1", f"c {n // 2}") for n in range(8))
    for seed in range(2)
]
"""Answers 18 … 25, of which 19 … 22 lie within two of a border; clusters of two in each seed."""
DATA = [Data(train=test[:2], valid=(), test=test) for test in TESTS]
HITS = {
    name: np.random.default_rng(k).integers(2, size=(2, 8)).astype(float)
    for k, name in enumerate(SYSTEMS)
}


def system(seed: int) -> dict:
    """Figures of a system in one seed, none of them like another."""
    return {
        "domains": {d: None if d == "range5" else 0.1 * k + seed for k, d in enumerate(NAMES)},
        "macro": 0.2 + seed,
        "worst": 0.3 + seed,
        "boundary": None if seed else 0.4,
        "macro_f1": 0.5 + seed,
        "swap_consistency": None,
        "distances": {"0": 6, "1": 1 + seed, "10": 1 - seed},
    }


def one(seed: int) -> dict:
    """What `measure` returns of a seed, as far as it is summarised."""
    return {
        "hits": {name: hits[seed].tolist() for name, hits in HITS.items()},
        "systems": dict.fromkeys(SYSTEMS, system(seed)),
        "distinct": 70 + seed,
        "router_accuracy": 0.6 + 0.2 * seed,
        "relative_size": {d: k + seed for k, d in enumerate(NAMES)},
        "cosine": {d: None if d == "range5" else 0.1 * k + 0.2 * seed for k, d in enumerate(NAMES)},
        "curves": {kind: {"RED": [0.5 + seed, 0.1]} for kind in ("flipped", "worst")},
        "confusion": [[float(seed), 1.0]],
        "parameters": {"residual": 5 + seed},
        "trunk_parameters": 50 + seed,
        "flops": {"residual": 10 + seed},
        "stages": {"base": 2.0 + seed},
        "seconds": {"routers": 3.0 + seed},
        "peak_memory_mb": 9.0 - seed,
    }


@pytest.fixture
def metrics() -> dict:
    plan = Plan(task="addition", protocol="held-out", backbone="smollm2", seeds=2)
    return summarise(plan, [one(seed) for seed in range(2)], DATA)


CLUSTERS = [f"{seed} {q.cluster}" for seed, test in enumerate(TESTS) for q in test]


def paired(values) -> dict:
    low, high = interval(values, CLUSTERS[: len(values)])
    return {"mean": values.mean(), "low": low, "high": high}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_system_is_the_mean_of_its_seeds_with_an_interval_by_cluster(metrics, name) -> None:
    found = titled(metrics["systems"])[name]
    assert found is metrics["systems"][key_of(name)]
    assert found["accuracy"] == {**paired(HITS[name].ravel()), "seeds": 2}
    assert found["domains"] == pytest.approx(
        {d: None if d == "range5" else 0.1 * k + 0.5 for k, d in enumerate(NAMES)}
    )
    figures = [found[k] for k in ("macro", "worst", "boundary", "macro_f1", "swap_consistency")]
    assert figures == pytest.approx([0.7, 0.8, 0.4, 1.0, None])
    assert found["errors"]["wrong"] == 4 and found["errors"]["one"] == 0.75


def test_differences_are_paired_by_question(metrics) -> None:
    red = HITS["RED"].ravel()
    assert metrics["paired"] == {f"RED - {o}": paired(red - HITS[o].ravel()) for o in OTHERS}
    near = np.array([19 <= int(q.label) <= 22 for test in TESTS for q in test])
    clusters = [c for c, here in zip(CLUSTERS, near, strict=True) if here]
    for other in ("MoE, residual", "oracle, residual"):
        difference = (red - HITS[other].ravel())[near]
        low, high = interval(difference, clusters)
        wanted = {"mean": difference.mean(), "low": low, "high": high}
        assert metrics["paired_boundary"][f"RED - {other}"] == wanted
    right = HITS["global head"].ravel() == 1
    assert metrics["base_kept"] == {
        name: HITS[name].ravel()[right].mean() for name in ("RED", "MoE, residual", "MoE, linear")
    }


def test_figures_of_no_questions_are_none() -> None:
    seed = one(0) | {"hits": {name: [0.0] for name in SYSTEMS}}
    plan = Plan(task="addition", protocol="seed", backbone="tiny", seeds=1)
    far = Data(train=TESTS[0], valid=(), test=(Query("q", "10", "range1", "c"),))
    metrics = summarise(plan, [seed], [far])
    assert metrics["paired_boundary"] == {}
    assert set(metrics["base_kept"].values()) == {None}
    assert metrics["split_rule"] is None and metrics["seen"]["pretraining"] == 0.0


def test_the_rest_is_averaged_counted_or_the_first_seeds(metrics) -> None:
    assert metrics["schema"] == "red-lab.red/2" and metrics["plan"]["backbone"] == "smollm2"
    assert (metrics["rows"], metrics["distinct"], metrics["split_rule"]) == (16, 70, RULE)
    assert metrics["seen"] == {"training": 0.25, "rearranged": 0.25, "pretraining": None}
    assert metrics["router_accuracy"] == pytest.approx(0.7)
    assert metrics["relative_size"] == {d: k + 0.5 for k, d in enumerate(NAMES)}
    assert metrics["cosine"] == pytest.approx(
        {d: None if d == "range5" else 0.1 * k + 0.1 for k, d in enumerate(NAMES)}
    )
    assert metrics["curves"] == {key: {"RED": [1.0, 0.1]} for key in ("flipped", "worst")}
    assert metrics["confusion"] == [[0.5, 1.0]]
    assert metrics["parameters"] == {"residual": 5} and metrics["trunk_parameters"] == 50
    assert metrics["flops"] == {"residual": 10}
    assert metrics["seconds"] == {"base": 2.5, "routers": 3.5}
    assert metrics["peak_memory_mb"] == 9.0


def test_settings_of_a_table_are_over_all_seeds() -> None:
    own = [{"D/2": {"RED": HITS["RED"][seed].tolist()}} for seed in range(2)]
    assert table(own, DATA) == {"D/2": {"RED": paired(HITS["RED"].ravel())}}
    single = {"D/2": {"RED": paired(HITS["RED"][0])}}
    assert table(own[:1], DATA[:1]) == single


def test_runs_of_an_earlier_split_are_named() -> None:
    assert earlier_rule({"split_rule": RULE - 1}) == RULE - 1
    assert earlier_rule({"split_rule": RULE}) is None is earlier_rule({})
    assert key_of("MoE, linear") == "moe_linear" and key_of("oracle, residual") == "oracle"
