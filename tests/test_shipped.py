"""The packages that ship: no held-out pair anywhere, and the main job's figures."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest
import torch
from redhost_author.training.context import open_backbone

import redhost
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import evaluate, hits_by_system

RANGES = {
    "range1": (2, 20),
    "range2": (21, 40),
    "range3": (41, 60),
    "range4": (61, 80),
    "range5": (81, 100),
}


def folder_of(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def backbone_folder() -> Path:
    return folder_of("red_backbone_tiny")


def expert_folders() -> list[Path]:
    return [folder_of(f"red_expert_{name}") for name in RANGES]


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def held_out(a: int, b: int) -> bool:
    """The rule, written again: folds 0, 1, 2, but for the sums with one pair each."""
    a, b = min(a, b), max(a, b)
    fold = int(hashlib.sha256(f"{a}+{b}".encode()).hexdigest()[:8], 16) % 10
    within = a >= 1 and b <= 50
    return fold in {0, 1, 2} and not (within and a + b in {2, 3, 99, 100})


def touches_held_out(text: str) -> bool:
    """Any two numbers of a text, as they stand or as a difference, are a held-out pair."""
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    for a, b in itertools.combinations(numbers, 2):
        if held_out(a, b) or ("minus" in text and held_out(min(a, b), abs(a - b))):
            return True
    return False


def test_the_parser_sees_what_it_should() -> None:
    pair = next((a, b) for a in range(1, 50) for b in range(a + 1, 50) if held_out(a, b))
    a, b = pair
    for text in (
        f"What is {a} plus {b}?",
        f"{b}+{a}",
        f"1 and {b} and {a}",
        f"What is {a + b} minus {a}?",
        f"What is {a + b} minus {b}?",
    ):
        assert touches_held_out(text)


def test_no_shipped_text_to_learn_from_contains_a_held_out_pair() -> None:
    """Whatever rows a package carries are learnt from, but for the one file of evaluation rows."""
    folders = [backbone_folder(), *expert_folders()]
    files = [p for f in folders for p in sorted(f.rglob("*.jsonl")) if p.name != "evaluation.jsonl"]
    assert len(files) == 6
    texts = [row["text"] for file in files for row in rows_of(file)]
    assert len(texts) > 800
    assert [t for t in texts if touches_held_out(t)] == []


def test_no_text_to_learn_from_is_an_evaluation_row_and_card_labels_are_right() -> None:
    held = {r["text"] for r in rows_of(backbone_folder() / "evaluation.jsonl")}
    assert held.isdisjoint(r["text"] for r in rows_of(backbone_folder() / "background.jsonl"))
    for folder in expert_folders():
        low, high = RANGES[json.loads((folder / "expert.json").read_text())["id"]]
        for row in rows_of(folder / "card.jsonl"):
            assert row["text"] not in held
            assert sum(map(int, re.findall(r"\d+", row["text"]))) == int(row["label"])
            assert low <= int(row["label"]) <= high


def test_evaluation_rows_are_exactly_the_held_out_pairs_in_both_orders() -> None:
    rows = rows_of(backbone_folder() / "evaluation.jsonl")
    expected = {
        f"What is {a} plus {b}?": a + b
        for a in range(1, 51)
        for b in range(1, 51)
        if held_out(a, b)
    }
    assert {r["text"]: int(r["label"]) for r in rows} == expected
    for r in rows:
        low, high = RANGES[r["domain"]]
        assert low <= int(r["label"]) <= high


def test_the_language_models_text_contains_no_held_out_sum() -> None:
    from red_lab.arithmetic import Split
    from red_lab.corpus import Corpus

    corpus = Corpus.of(Split.numbered(0), seed=0)
    examples = [e for step in range(40) for e in corpus.batch(step * 37, size=128)]
    summed = [e for e in examples if "plus" in e.question or "minus" in e.question]
    assert len(summed) > 4000
    for e in summed:
        a, b = (int(n) for n in re.findall(r"\d+", e.question))
        pair = (a, b) if "plus" in e.question else (b, a - b)
        assert not held_out(*pair), e.question


def test_cards_hold_fit_and_gate_rows_of_different_pairs() -> None:
    for folder in expert_folders():
        parts: dict[str, set[tuple[int, ...]]] = {"fit": set(), "gate": set()}
        for row in rows_of(folder / "card.jsonl"):
            numbers = sorted(int(n) for n in re.findall(r"\d+", row["text"]))
            parts[row["part"]].add(tuple(numbers))
        assert len(parts["fit"]) >= 10 and parts["fit"].isdisjoint(parts["gate"])


def test_the_backbone_is_small() -> None:
    manifest = json.loads((backbone_folder() / "backbone.json").read_text())
    files = [backbone_folder() / n for n in (*manifest["base"]["files"], "classifier.safetensors")]
    assert sum(f.stat().st_size for f in files) <= 4 * 2**20
    _, backbone, _ = open_backbone(backbone_folder())
    parameters = [*backbone.trunk.model.parameters(), backbone.classifier]
    assert sum(p.numel() for p in parameters) < 1_000_000


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def outcome(cache: Path) -> RecomposeResult:
    return compose(backbone_folder(), expert_folders(), cache=cache)


@pytest.fixture(scope="module")
def evaluation(outcome: RecomposeResult) -> redhost.Evaluation:
    composed = outcome.composed
    return evaluate(composed, composed.evaluation, encode=composed.backbone.encode)


def test_the_routers_figures_on_unseen_pairs(evaluation: redhost.Evaluation) -> None:
    assert evaluation.rows == 734
    assert evaluation.overall >= 0.95
    assert evaluation.oracle is not None
    assert evaluation.overall >= 0.97 * evaluation.oracle
    assert evaluation.overall >= evaluation.baselines["backbone"] + 0.10


def test_every_system_that_needs_no_training_is_in_the_table(evaluation) -> None:
    assert set(evaluation.table) == {
        "backbone",
        "best_single",
        "sum",
        "uniform",
        "centroid",
        "statistics",
        "hard",
        "mixture",
        "routed",
        "oracle",
    }


def test_what_is_37_plus_12(outcome: RecomposeResult) -> None:
    [answer] = outcome.composed.answer(["What is 37 plus 12?"])
    assert answer.label == "49"
    assert max(answer.weights, key=lambda c: answer.weights[c]) == "range3"


def test_all_orders_of_discovery_of_four_give_one_router(cache: Path) -> None:
    torch.set_num_threads(1)
    digests = {
        compose(backbone_folder(), order, cache=cache).receipt.router.digest
        for order in itertools.permutations(expert_folders()[:4])
    }
    assert len(digests) == 1


def hits_by_domain(composed: redhost.ComposedModel) -> dict[str, torch.Tensor]:
    """Right or wrong, row by row, of each range."""
    rows = composed.evaluation
    hits = hits_by_system(composed, rows, encode=composed.backbone.encode)["routed"]
    domains = [r.domain for r in rows]
    return {d: hits[torch.tensor([x == d for x in domains])] for d in RANGES}


def test_without_an_expert_its_range_falls_and_no_other_does(cache: Path, outcome) -> None:
    """No other range falls beyond the paired 95 % interval of the difference, row by row."""
    folders = [f for f in expert_folders() if not f.name.endswith("range3")]
    without = hits_by_domain(compose(backbone_folder(), folders, cache=cache).composed)
    whole = hits_by_domain(outcome.composed)
    for name in RANGES:
        difference = without[name] - whole[name]
        half = 1.96 * float(difference.std()) / len(difference) ** 0.5
        if name == "range3":
            assert float(difference.mean()) + half < 0
        else:
            assert float(difference.mean()) + half >= 0, name


def test_manifests_say_how_the_weights_came_to_be() -> None:
    for folder in expert_folders():
        training = json.loads((folder / "expert.json").read_text())["training"]
        assert training["metrics"]["gate"] >= 0.9 and len(training["data"]) == 64
    training = json.loads((backbone_folder() / "backbone.json").read_text())["training"]
    assert training["metrics"]["share"] == 0.2
