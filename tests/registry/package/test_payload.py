"""Cards, canaries and classifiers hold exactly what the manifest promises, tensor by tensor."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from redhost.registry.package import payload as contents
from redhost.registry.package.manifest import Base, FileRef, dumps, parse_expert
from redhost.registry.package.readers import read_backbone, read_expert
from redhost.registry.package.safetensors_check import sha256_hex

D, L, F, G, R = 16, 3, 5, 2, 4
Tensors = dict[str, Any]


def zeros(*shape: int) -> Any:
    return np.zeros(shape, "f4")


def ones(*shape: int) -> Any:
    return np.ones(shape, "f4")


TRIANGLE = np.eye(D, dtype="f4")[np.triu_indices(D)]


def statistics() -> Tensors:
    return {"counts": np.full(L, 9), "sums": zeros(L, D), "scatter": TRIANGLE}


def vectors() -> Tensors:
    return {
        "fit_z": zeros(F, D),
        "fit_label": np.arange(F) % L,
        "gate_z": zeros(G, D),
        "gate_label": np.arange(G),
        "gate_shift": zeros(G, 1),
        "gate_scale": np.ones((G, 1), "f4"),
    }


def with_card(make_expert: Any, kind: str, tensors: Tensors | bytes) -> Any:
    data = tensors if isinstance(tensors, bytes) else save(tensors)
    change = {"card.kind": kind, "card.fit": F, "card.gate": G if kind == "vectors" else 0}
    return read_expert(make_expert("a", card=data, change=change))


def test_good_cards_of_every_kind_are_valid(make_expert: Any) -> None:
    assert with_card(make_expert, "statistics", statistics()).value
    assert with_card(make_expert, "vectors", vectors()).value
    both = vectors() | statistics()
    assert with_card(make_expert, "vectors", both).value


def test_a_card_of_vectors_says_of_each_label_whether_a_row_has_it(make_expert) -> None:
    """So it is where a row has any number of labels; then there are no sums."""
    rows = {
        "fit_label": np.eye(L, dtype="i8")[np.arange(F) % L],
        "gate_label": np.ones((G, L), "i8"),
    }
    good = {**vectors(), **rows}
    change = {
        "form": "linear",
        "rank": 0,
        "writes.space": "labels",
        "labels": ["a", "b", "c"],
        "thresholds": [0.5] * L,
        "card.kind": "vectors",
        "card.fit": F,
        "card.gate": G,
    }

    def codes(tensors: Tensors) -> list[str]:
        weights = {"W": ones(L, D), "b": zeros(L)}
        files = make_expert("a", weights=weights, card=save(tensors), change=change, out=L)
        return [v.code for v in read_expert(files).violations]

    assert codes(good) == []
    assert codes(vectors()) == ["card_tensors"] * 2
    assert codes({**good, "fit_label": 2 * rows["fit_label"]}) == ["card_tensors"]
    assert codes({**good, **statistics()}) != []


CARDS: dict[str, tuple[str, Tensors | bytes, str]] = {
    "not tensors": ("vectors", b'{"text": "x"}\n', "card_header"),
    "duplicate header": ("statistics", b"\x0c" + bytes(7) + b'{"U":1,"U":2}', "card_header"),
    "a tensor missing": ("vectors", {k: v for k, v in vectors().items() if k != "fit_z"}, "t"),
    "a tensor more": ("vectors", {**vectors(), "x": zeros(1)}, "t"),
    "half of the sums": ("vectors", {**vectors(), "counts": np.full(L, 9)}, "t"),
    "another width": ("vectors", {**vectors(), "fit_z": zeros(F, D + 1)}, "t"),
    "fewer rows": ("vectors", {**vectors(), "fit_z": zeros(F - 1, D)}, "t"),
    "labels as floats": ("vectors", {**vectors(), "fit_label": zeros(F)}, "t"),
    "a label too high": ("vectors", {**vectors(), "fit_label": np.full(F, L)}, "t"),
    "a negative label": ("vectors", {**vectors(), "gate_label": np.full(G, -1)}, "t"),
    "NaN": ("vectors", {**vectors(), "gate_z": np.full((G, D), np.nan, "f4")}, "card_not_finite"),
    "a label without rows": ("statistics", {**statistics(), "counts": np.arange(L)}, "t"),
    "sums of other labels": ("statistics", {**statistics(), "sums": zeros(L + 1, D)}, "t"),
    "infinite scatter": (
        "statistics",
        {**statistics(), "scatter": np.full_like(TRIANGLE, np.inf)},
        "card_not_finite",
    ),
    "vectors from no norm": ("vectors", {**vectors(), "fit_z": ones(F, D) * 5}, "card_range"),
    "huge vectors": ("vectors", {**vectors(), "gate_z": ones(G, D) * 1e37}, "card_range"),
    "a huge scale": ("vectors", {**vectors(), "gate_scale": ones(G, 1) * 1e30}, "card_range"),
    "huge sums": ("statistics", {**statistics(), "sums": ones(L, D) * 1e30}, "card_range"),
    "a huge scatter": ("statistics", {**statistics(), "scatter": TRIANGLE * 1e30}, "card_range"),
    "negative squares": ("statistics", {**statistics(), "scatter": -TRIANGLE}, "card_range"),
    "no scatter of rows": ("statistics", {**statistics(), "scatter": 2 - TRIANGLE}, "card_range"),
}


@pytest.mark.parametrize(("kind", "tensors", "code"), CARDS.values(), ids=CARDS)
def test_refuses_a_card(make_expert: Any, kind: str, tensors: Tensors | bytes, code: str) -> None:
    found = with_card(make_expert, kind, tensors).violations
    assert found[0].code == ("card_tensors" if code == "t" else code)
    assert found[0].field.startswith("card.jsonl")


@pytest.mark.parametrize("attack", ["a tensor missing", "NaN", "a label too high"])
def test_control_that_leaves_cards_to_safetensors_lets_them_in(
    make_expert: Any, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.setattr(contents, "_card", lambda *_: ())
    kind, tensors, _ = CARDS[attack]
    assert with_card(make_expert, kind, tensors).value


CANARIES: dict[str, tuple[Tensors | bytes, str]] = {
    "not tensors": (b"{}", "canary_header"),
    "no delta": ({"z": zeros(2, D)}, "canary_tensors"),
    "a tensor more": ({"z": zeros(2, D), "delta": zeros(2, D), "x": zeros(1)}, "canary_tensors"),
    "no rows": ({"z": zeros(0, D), "delta": zeros(0, D)}, "canary_tensors"),
    "many rows": ({"z": zeros(257, D), "delta": zeros(257, D)}, "canary_tensors"),
    "whole numbers": ({"z": np.zeros((2, D), "i8"), "delta": zeros(2, D)}, "canary_tensors"),
    "one dimension": ({"z": zeros(D), "delta": zeros(D)}, "canary_tensors"),
    "other rows": ({"z": zeros(2, D), "delta": zeros(3, D)}, "canary_tensors"),
    "NaN": ({"z": zeros(2, D), "delta": np.full((2, D), np.nan, "f4")}, "canary_not_finite"),
    "huge": ({"z": ones(2, D), "delta": ones(2, D) * 1e37}, "canary_range"),
    "all zeros": ({"z": zeros(2, D), "delta": zeros(2, D)}, "canary_power"),
    "nothing answered": ({"z": ones(2, D), "delta": zeros(2, D)}, "canary_power"),
    "nothing read": ({"z": zeros(2, D), "delta": ones(2, D)}, "canary_power"),
    "less than rounding": ({"z": ones(2, D), "delta": ones(2, D) * 1e-5}, "canary_power"),
}


@pytest.mark.parametrize(("tensors", "code"), CANARIES.values(), ids=CANARIES)
def test_refuses_a_canary(make_expert: Any, tensors: Tensors | bytes, code: str) -> None:
    data = tensors if isinstance(tensors, bytes) else save(tensors)
    found = read_expert(make_expert("a", canary=data)).violations
    assert (found[0].code, found[0].field.split()[0]) == (code, "canary.safetensors")


@pytest.mark.parametrize(
    ("size", "tolerance", "passes"),
    [
        (1.0, 1e-3, True),
        (1.0, 1.1e-3, False),
        (1.0, 1e300, False),
        (40.0, 0.04, True),
        (40.0, 0.041, False),
        (1e-3, 1e-4, True),
        (1e-3, 1e-3, False),  # an expert that says nothing would pass
        (1e-3, 1e-300, True),
    ],
)
def test_a_canary_can_fail(make_expert: Any, size: float, tolerance: float, passes: bool) -> None:
    data = save({"z": ones(2, D), "delta": ones(2, D) * np.float32(size)})
    change = {"canary.tolerance": tolerance}
    found = read_expert(make_expert("a", canary=data, change=change)).violations
    assert [v.code for v in found] == ([] if passes else ["canary_power"])


@pytest.mark.parametrize(
    ("size", "code"), [(1e6, None), (2e6, "weights_range"), (1e37, "weights_range")]
)
def test_no_weight_is_larger_than_the_contract_says(
    make_expert: Any, size: float, code: str | None
) -> None:
    weights = {"U": ones(R, D), "V": ones(D, R) * np.float32(-size)}
    found = read_expert(make_expert("a", weights=weights)).violations
    assert [v.code for v in found] == ([] if code is None else [code])


@pytest.mark.parametrize("temperature", [1e-300, 1e-4, 2e3, 1e300])
def test_no_temperature_makes_logits_that_are_no_numbers(make_expert: Any, temperature) -> None:
    [found] = read_expert(make_expert("a", change={"temperature": temperature})).violations
    assert (found.code, found.field) == ("manifest_field", "temperature")
    assert read_expert(make_expert("b", change={"temperature": 20.0})).value


def carried(make_backbone: Any, weight: Any, names: tuple[str, ...] = ("config.json",)) -> Any:
    head = save(weight)
    files = {**dict.fromkeys(names, b"{}"), "head.safetensors": head}
    manifest = make_backbone(
        base=Base(kind="carried", files={name: sha256_hex(b"{}") for name in names}),
        classifier=FileRef(file="head.safetensors", sha256=sha256_hex(head)),
    )
    return read_backbone({**files, "backbone.json": dumps(manifest)})


def test_a_classifier_has_a_row_for_each_label(make_backbone: Any) -> None:
    assert carried(make_backbone, {"weight": zeros(L, D)}).value
    for weight in ({"weight": zeros(L + 1, D)}, {"w": zeros(L, D)}, {}):
        found = carried(make_backbone, weight).violations
        assert found[0].code == "classifier_tensors"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pkl", "modeling.py", "model.pt"])
def test_a_carried_base_holds_neither_code_nor_pickles(make_backbone: Any, name: str) -> None:
    found = carried(make_backbone, {"weight": zeros(L, D)}, ("config.json", name)).violations
    assert (found[0].code, found[0].field) == ("manifest_field", "base.files")


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: b'{"labels":[' + b"[]," * (2**20) + b"[]]}",
    "empty objects": lambda: b"[" + b"{}," * (2**20) + b"{}]",
    "keys": lambda: b"{" + b",".join(b'"%x":1' % i for i in range(2**18)) + b"}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_of_many_parts_is_refused_before_it_is_decoded(
    text: Callable[[], bytes],
) -> None:
    data = text()
    assert len(data) <= 4 * 2**20
    tracemalloc.start()
    found = parse_expert(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.violations[0].code == "manifest_json"
    assert peak <= 64 * 2**20


@pytest.mark.parametrize("line", [b"\n", b"1\n", b"\r"])
def test_a_card_of_lines_alone_takes_no_memory(make_expert: Any, line: bytes) -> None:
    files = make_expert("a", card=line * (2**23 // len(line)))
    tracemalloc.start()
    found = read_expert(files)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.violations[0].code == "card_rows"
    assert peak <= 2**24


@pytest.mark.parametrize("rows", [1, 61])
def test_a_card_larger_than_a_host_should_tokenize_is_refused(make_expert: Any, rows: int) -> None:
    line = json.dumps(
        {"text": "a " * (contents.MAX_CARD // 2 // rows), "label": "a", "part": "fit"}
    )
    found = read_expert(make_expert("a", card=f"{line}\n".encode() * rows)).violations
    assert {v.code for v in found} == {"card_rows"}
    assert found[0].expected == "a card of texts of at most 8,388,608 bytes"


def test_what_a_package_says_is_one_line_without_terminal_codes(make_expert: Any) -> None:
    found = read_expert(make_expert("a", change={"x\n\x1b[31m": 1})).violations
    for text in (found[0].reason, str(found[0].error("expert 'a'"))):
        assert text.isprintable() and "\\x1b[31m" in text
