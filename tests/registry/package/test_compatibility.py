from __future__ import annotations

from typing import Any

import pytest

from redhost.registry.errors import ContractError
from redhost.registry.package.manifest import (
    Base,
    DenseRef,
    ExpertManifest,
    Features,
    FileRef,
    parse_expert,
)
from redhost.registry.package.readers import read_expert
from redhost.registry.package.rules import (
    check_backbone,
    check_compatible,
    check_question,
    check_valid,
    classes_in,
    expected_tensors,
)
from redhost.registry.package.safetensors_check import TensorInfo


def manifest(make_expert: Any, **change: Any) -> ExpertManifest:
    return parse_expert(make_expert("a", change=change)["expert.json"]).unwrap("it")


CORRECT = "Correct the manifest."
ROWS = "Set aside other rows of the domain; a small sample is enough for a router."
SHA = "a" * 64
NONE = "card: expected no file and no rows for the kind 'none', found some"
NOISE = "card.noise: expected a card of the kind 'statistics', found 'texts'"
NO_FILE = "card: expected a file and its sha256 for the kind 'texts', found none"
PAIRS = [str(n // 2) for n in range(12)]

SEVERAL: dict[str, Any] = {
    "labels": ["2", "3"],
    "thresholds": [0.5, 0.25],
    "writes.space": "labels",
}
"""What an expert says that answers any number of labels of its own."""

PORTED: dict[str, Any] = {
    "ported": {
        "file": "author.json",
        "sha256": SHA,
        "digest": SHA,
        "width": 24,
        "map": {"file": "map.safetensors", "sha256": SHA},
    },
    "writes.space": "labels",
}
"""What an expert says that was ported."""

AT_ODDS: list[tuple[dict[str, Any], str, str]] = [
    (
        {"id": "backbone"},
        "id: expected another id: the router's own column has this name, found 'backbone'",
        CORRECT,
    ),
    (
        {"bus_api": "newest"},
        "bus_api: expected a version range such as '>=1,<2', found 'newest'",
        CORRECT,
    ),
    ({"form": "linear"}, "rank: expected 0 for the form 'linear', found 4", CORRECT),
    ({"rank": 0}, "rank: expected at least 1 for the form 'residual', found 0", CORRECT),
    (
        {"form": "mlp", "rank": 0},
        "rank: expected at least 1 for the form 'mlp', found 0",
        CORRECT,
    ),
    (
        {"tensors": {"U": [4, 16]}},
        "tensors: expected no such key for the form 'residual', found shapes",
        CORRECT,
    ),
    ({"labels": []}, "labels: expected at least one label, found none", CORRECT),
    (
        {"labels": ["2", "3", "2", "3", "4"]},
        "labels: expected every label once, found '2', '3' twice",
        CORRECT,
    ),
    (
        {"labels": PAIRS},
        "labels: expected every label once, found '0', '1', '2', '3', '4' and 1 more twice",
        CORRECT,
    ),
    (
        {"labels": PAIRS[:10]},
        "labels: expected every label once, found '0', '1', '2', '3', '4' twice",
        CORRECT,
    ),
    ({"card": {"kind": "none", "file": "x"}}, NONE, CORRECT),
    ({"card": {"kind": "none", "sha256": SHA}}, NONE, CORRECT),
    ({"card": {"kind": "none", "fit": 1}}, NONE, CORRECT),
    ({"card": {"kind": "none", "gate": 1}}, NONE, CORRECT),
    ({"card.noise": {"epsilon": 1.0, "delta": 1e-5, "clip": 4.0}}, NOISE, CORRECT),
    ({"card.file": None}, NO_FILE, CORRECT),
    ({"card.sha256": None}, NO_FILE, CORRECT),
    ({"card.fit": 257}, "card.fit: expected at most 256 rows, found 257", ROWS),
    ({"card.gate": 257}, "card.gate: expected at most 256 rows, found 257", ROWS),
    ({"card.fit": 0}, "card.fit: expected at least one row, found 0", ROWS),
    (
        {"canary.file": "Card.jsonl"},
        "file: expected a file of its own for each part, found 'card.jsonl' twice",
        CORRECT,
    ),
    (
        {"weights.file": "canary.safetensors"},
        "file: expected a file of its own for each part, found 'canary.safetensors' twice",
        CORRECT,
    ),
    (
        {"card.file": "expert.json"},
        "file: expected a file of its own for each part, found 'expert.json' twice",
        CORRECT,
    ),
    (
        {"writes.vocabulary": SHA},
        "reads.causal: expected true, since it names a vocabulary, found nothing",
        CORRECT,
    ),
    (
        {**SEVERAL, "thresholds": [0.5]},
        "thresholds: expected one for each label, found 1 for 2",
        CORRECT,
    ),
    (
        {**SEVERAL, "span_rules": [{"threshold": 0.5, "cost": 1}]},
        "span_rules: expected one for each threshold, found 1 for 2",
        CORRECT,
    ),
    (
        {"labels": ["2", "3"], "thresholds": [0.5, 0.5]},
        "thresholds: expected labels of its own to have them, found 'hidden'",
        CORRECT,
    ),
    ({"labels": ["2", ""]}, "labels: expected labels that are not empty, found ''", CORRECT),
    (
        {"labels": ["caf\u00e9", "cafe\u0301"]},
        "labels: expected labels in Unicode's composed form (NFC), found 'cafe\\u0301'",
        CORRECT,
    ),
    (
        {**SEVERAL, "card.kind": "statistics"},
        "card.kind: expected rows, or none, where a row has any number of labels, found "
        "'statistics'",
        CORRECT,
    ),
    (
        {**PORTED, "writes.space": "hidden"},
        "writes.space: expected 'labels' where it is ported, found 'hidden'",
        CORRECT,
    ),
    (
        {**PORTED, "reads.tap": "1"},
        "reads.tap: expected 'final' where it is ported, found '1'",
        CORRECT,
    ),
    (
        {"temperature": 0.00099},
        "temperature: expected between 0.001 and 1000, found 0.00099",
        CORRECT,
    ),
    (
        {"temperature": 1000.5},
        "temperature: expected between 0.001 and 1000, found 1000.5",
        CORRECT,
    ),
]


@pytest.mark.parametrize(("change", "reason", "hint"), AT_ODDS)
def test_fields_at_odds_with_each_other(
    make_expert: Any, change: dict[str, Any], reason: str, hint: str
) -> None:
    (found,) = check_valid(manifest(make_expert, **change))
    assert (found.reason, found.hint) == (reason, hint)
    assert found.code == ("card_rows" if hint == ROWS else "manifest_field")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"card": {"kind": "none"}},
        {"card.fit": 256, "card.gate": 256},
        {"card.gate": 0},
        {"form": "dist:name", "rank": 0},
        {"form": "dist:name", "rank": 7},
        {"form": "linear", "rank": 0},
        {"rank": 1},
        {"labels": ["2"]},
        SEVERAL,
        {**SEVERAL, "card.kind": "vectors"},
        PORTED,
        {"temperature": 0.001},
        {"temperature": 1000.0},
    ],
)
def test_fields_that_agree(make_expert: Any, change: dict[str, Any]) -> None:
    assert check_valid(manifest(make_expert, **change)) == ()


def ref(name: str) -> FileRef:
    return FileRef(file=name, sha256=SHA)


DENSE = DenseRef(file="dense.safetensors", sha256=SHA, activation="tanh")

BACKBONES: list[tuple[dict[str, Any], str]] = [
    ({"bus_api": "newest"}, "bus_api: expected a version range such as '>=1,<2', found 'newest'"),
    (
        {"base": Base(kind="carried")},
        "base.files: expected one for the kind 'carried', found none",
    ),
    (
        {"base": Base(kind="carried", files={"b.py": SHA, "a.bin": SHA, "c.json": SHA})},
        "base.files: expected only .codes, .jinja, .json, .model, .safetensors, .spm, .tiktoken, "
        ".tokenizer, .txt, "
        "found 'a.bin', 'b.py'",
    ),
    (
        {"base": Base(kind="hub", id="", revision="1")},
        "base.id: expected one for the kind 'hub', found none",
    ),
    (
        {"base": Base(kind="hub", id="a/b", revision="1", files={"a.json": SHA})},
        "base.files: expected none for the kind 'hub', found some",
    ),
    ({"base": Base(kind="file")}, "base.id: expected one for the kind 'file', found none"),
    (
        {"base": Base(kind="hub", id="a/b")},
        "base.revision: expected one for the kind 'hub', found none",
    ),
    (
        {"base": Base(kind="dist", id="a/b", files={"a.json": SHA})},
        "base.revision: expected one for the kind 'dist', found none",
    ),
    (
        {"base": Base(kind="dist", id="a/b", revision="==1")},
        "base.files: expected one for the kind 'dist', found none",
    ),
    (
        {"task": "regression", "labels": ("a", "b")},
        "labels: expected only 'value' where numbers are answered, found 'a', 'b'",
    ),
    (
        {"task": "generation", "labels": ("a",)},
        "labels: expected no labels and no classifier where text is generated, found some",
    ),
    (
        {"labels": (), "classifier": ref("c.safetensors")},
        "labels: expected at least one label, found none",
    ),
    ({"labels": ("a", "a")}, "labels: expected every label once, found 'a' twice"),
    (
        {"classifier": ref("x.safetensors"), "delta": ref("X.safetensors")},
        "file: expected a file of its own for each part, found 'x.safetensors' twice",
    ),
    (
        {"base": Base(kind="carried", files={"Backbone.json": SHA})},
        "file: expected a file of its own for each part, found 'backbone.json' twice",
    ),
    (
        {"features": Features(layers=(0, 4, 4), tokens=1), "width": 16},
        "features.layers: expected different layers that fill 16 numbers with the hashed tokens, "
        "found 0, 4, 4",
    ),
    (
        {"features": Features(layers=(0, 4), tokens=3), "width": 16},
        "features.layers: expected different layers that fill 16 numbers with the hashed tokens, "
        "found 0, 4",
    ),
    (
        {"features": Features(layers=(0, 4), tokens=16), "width": 16},
        "features.layers: expected different layers that fill 16 numbers with the hashed tokens, "
        "found 0, 4",
    ),
    (
        {"features": Features(layers=(0,)), "task": "generation", "labels": ()},
        "features: expected nothing where text is generated: its head reads the last states, "
        "found 0",
    ),
    (
        {"features": Features(layers=(0,)), "task": "spans", "labels": ()},
        "features: expected nothing where experts answer spans, found 0",
    ),
    (
        {"dense": (DENSE,), "task": "spans", "labels": ()},
        "dense: expected nothing where experts answer spans, found 0",
    ),
]


@pytest.mark.parametrize(("change", "reason"), BACKBONES)
def test_a_backbone_at_odds_with_itself(
    make_backbone: Any, change: dict[str, Any], reason: str
) -> None:
    (found,) = check_backbone(make_backbone(**change))
    assert (found.code, found.reason, found.hint) == ("manifest_field", reason, CORRECT)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"labels": ()},
        {"labels": ("a",), "classifier": ref("c.safetensors")},
        {"task": "regression", "labels": ("value",)},
        {"task": "regression", "labels": ()},
        {"base": Base(kind="file", id="x.gguf")},
        {"base": Base(kind="carried", files={"tokenizer.json": SHA, "model.safetensors": SHA})},
        {"classifier": ref("x.safetensors"), "delta": ref("y.safetensors")},
        {"features": Features(layers=(0, 4), tokens=2), "width": 16},
        {"features": Features(layers=(0, 2, 4), tokens=2), "width": 16, "dense": (DENSE,)},
        {"features": Features(layers=(0,)), "task": "of-a-plugin"},
    ],
)
def test_a_backbone_that_agrees(make_backbone: Any, change: dict[str, Any]) -> None:
    assert check_backbone(make_backbone(**change)) == ()


def test_a_backbone_of_another_bus(make_backbone: Any) -> None:
    (found,) = check_backbone(make_backbone(bus_api=">=2"))
    assert found.code == "bus_api"
    assert found.reason == "bus_api: expected bus API >=2, found bus API 1.0 on this host"
    assert found.hint == (
        "Upgrade with 'pip install -U redhost', or install an older version of the backbone."
    )


@pytest.mark.parametrize(
    ("form", "space", "tensor", "classes"),
    [
        ("residual", "logits", "V", 9),
        ("linear", "logits", "W", 9),
        ("residual", "logits", "W", None),
        ("residual", "hidden", "V", None),
        ("dist:name", "logits", "V", None),
    ],
)
def test_classes_are_the_rows_that_write_logits(
    make_expert: Any, form: str, space: str, tensor: str, classes: int | None
) -> None:
    parsed = manifest(make_expert, **{"form": form, "writes.space": space})
    assert classes_in(parsed, {tensor: TensorInfo("F32", (9, 4), 0, 144)}) == classes
    assert classes_in(parsed, {tensor: TensorInfo("F32", (), 0, 4)}) is None


def test_an_expert_fits_its_backbone(make_expert: Any, make_backbone: Any) -> None:
    assert check_compatible(manifest(make_expert), make_backbone()) == ()


RETRAIN = "Retrain it on this backbone."
HINTS = {
    "bus_api": "Upgrade with 'pip install -U redhost', or install an older version of the expert.",
    "backbone_mismatch": "Install the build for sha256:eeeeeeeeeeee…, carry it over with "
    "'redhost port', or retrain it on this backbone.",
    "width_mismatch": RETRAIN,
    "labels_unknown": "Write to the space 'labels' to bring labels of its own.",
    "tap_unknown": CORRECT,
    "tap_order": CORRECT,
    "manifest_field": CORRECT,
    "causal_mismatch": RETRAIN,
    "vocabulary_mismatch": RETRAIN,
}

CAUSAL: dict[str, Any] = {"reads.causal": True, "writes.vocabulary": SHA, "labels": []}
GENERATES: dict[str, Any] = {"task": "generation", "labels": ()}


@pytest.mark.parametrize(
    ("change", "backbone", "code", "reason"),
    [
        (
            {"bus_api": ">=2"},
            {},
            "bus_api",
            "bus_api: expected bus API >=2, found bus API 1.0 on this host",
        ),
        (
            {},
            {"fingerprint": "e" * 64},
            "backbone_mismatch",
            "backbone.fingerprint: expected sha256:ffffffffffff… (tiny), "
            "found sha256:eeeeeeeeeeee… (tiny)",
        ),
        (
            {"reads": {"tap": "final", "width": 512}},
            {},
            "width_mismatch",
            "reads.width: expected 16, the bus of backbone 'tiny', found 512",
        ),
        (
            {"labels": ["2", "nine"]},
            {},
            "labels_unknown",
            "labels: expected some of the 3 labels of backbone 'tiny', found 'nine'",
        ),
        (
            {"reads": {"tap": "block3", "width": 16}},
            {},
            "tap_unknown",
            "reads.tap: expected 'final', a block's number, or its name such as 'layers.2', "
            "found 'block3'",
        ),
        (
            {"writes": {"space": "hidden", "tap": "2x"}, "reads": {"tap": "1", "width": 16}},
            {},
            "tap_unknown",
            "writes.tap: expected 'final', a block's number, or its name such as 'layers.2', "
            "found '2x'",
        ),
        (
            {
                "writes": {"space": "logits", "tap": "2"},
                "reads": {"tap": "1", "width": 16},
            },
            {},
            "tap_order",
            "writes.tap: expected the space 'hidden' and a reads.tap of its own for a block to "
            "write to, found space 'logits', reads.tap '1'",
        ),
        (
            {"writes": {"space": "hidden", "tap": "2"}},
            {},
            "tap_order",
            "writes.tap: expected the space 'hidden' and a reads.tap of its own for a block to "
            "write to, found space 'hidden', reads.tap 'final'",
        ),
        (
            SEVERAL,
            {},
            "manifest_field",
            "thresholds: expected no thresholds: the task is 'classification', found some",
        ),
        (
            {"labels": ["2", "3"], "writes.space": "labels"},
            {"task": "multi-label"},
            "manifest_field",
            "thresholds: expected thresholds: the task is 'multi-label', found none",
        ),
        (
            {},
            {**GENERATES, "labels": ("2", "3", "4")},
            "causal_mismatch",
            "reads.causal: expected a causal expert: the backbone generates, found one vector for "
            "a whole text",
        ),
        (
            CAUSAL,
            {},
            "causal_mismatch",
            "reads.causal: expected no causal expert, found causal",
        ),
        (
            CAUSAL,
            {**GENERATES, "tokenizer": "c" * 64},
            "vocabulary_mismatch",
            "writes.vocabulary: expected sha256:cccccccccccc…, found sha256:aaaaaaaaaaaa…",
        ),
    ],
)
def test_misfits(
    make_expert: Any,
    make_backbone: Any,
    change: dict[str, Any],
    backbone: dict[str, Any],
    code: str,
    reason: str,
) -> None:
    (found,) = check_compatible(manifest(make_expert, **change), make_backbone(**backbone))
    assert (found.code, found.reason) == (code, reason)
    assert found.hint == HINTS[code]


@pytest.mark.parametrize(
    ("reads", "writes"), [("2", "final"), ("layers.2", "3"), ("encoder.layer.0", "encoder.layer.1")]
)
def test_blocks_are_named_by_number_or_name(
    make_expert: Any, make_backbone: Any, reads: str, writes: str
) -> None:
    change = {"reads": {"tap": reads, "width": 16}, "writes": {"space": "hidden", "tap": writes}}
    assert check_compatible(manifest(make_expert, **change), make_backbone()) == ()


@pytest.mark.parametrize(
    ("change", "backbone"),
    [
        (SEVERAL, {"task": "multi-label"}),
        ({}, {"task": "multi-label"}),  # only labels of its own need thresholds
        (SEVERAL, {"task": "of-a-plugin"}),
        (CAUSAL, {**GENERATES, "tokenizer": SHA}),
        (CAUSAL, {"task": "of-a-plugin", "labels": (), "tokenizer": SHA}),
        ({}, {"task": "of-a-plugin"}),
    ],
)
def test_what_fits(make_expert: Any, make_backbone: Any, change: Any, backbone: Any) -> None:
    assert check_compatible(manifest(make_expert, **change), make_backbone(**backbone)) == ()


@pytest.mark.parametrize(
    ("answered", "question", "reason", "hint"),
    [
        (None, None, None, None),
        ("who", "who", None, None),
        (
            "who",
            None,
            "question: expected none, the default question, found 'who'",
            "Join it there: --question who.",
        ),
        (
            None,
            "what",
            "question: expected 'what', found none, the default question",
            "Join it without --question.",
        ),
        ("who", "what", "question: expected 'what', found 'who'", "Join it there: --question who."),
    ],
)
def test_an_expert_answers_the_question_of_its_composition(
    make_expert: Any, answered: str | None, question: str | None, reason: str, hint: str
) -> None:
    change = {} if answered is None else {"question": answered}
    found = [*check_question(manifest(make_expert, **change), question)]
    assert [(v.code, v.reason, v.hint) for v in found] == (
        [] if reason is None else [("question_mismatch", reason, hint)]
    )


def test_own_labels_need_not_be_known(make_expert: Any, make_backbone: Any) -> None:
    own = manifest(make_expert, **{"labels": ["nine"], "writes.space": "labels"})
    assert check_compatible(own, make_backbone()) == ()


def test_logits_have_the_classes_of_the_backbone(make_expert: Any, make_backbone: Any) -> None:
    logits = manifest(make_expert, **{"writes.space": "logits"})
    (found,) = check_compatible(logits, make_backbone(), classes=9)
    assert (found.code, found.hint) == ("weights_tensors", RETRAIN)
    assert found.reason == "logits: expected 3 rows, the classes of backbone 'tiny', found 9"
    assert check_compatible(logits, make_backbone(), classes=3) == ()
    with pytest.raises(ContractError) as raised:
        expected_tensors(logits, classes=None)
    assert str(raised.value) == (
        "expert 'a' writes logits: expected the number of classes, found none"
    )
    assert expected_tensors(logits, classes=9) == {"U": (4, 16), "V": (9, 4)}
    assert expected_tensors(logits, classes=0) == {"U": (4, 16), "V": (0, 4)}


def test_an_expert_cannot_take_the_name_of_the_backbone_column(make_expert) -> None:
    found = read_expert(make_expert("backbone")).violations
    assert [(v.code, v.field) for v in found] == [("manifest_field", "id")]


def test_a_ported_expert_has_tensors_of_the_width_it_was_trained_on(make_expert: Any) -> None:
    labels = ["x", "y"]
    own = manifest(make_expert, **{"labels": labels, "writes.space": "labels"})
    ported = manifest(make_expert, **PORTED, labels=labels)
    shapes = [expected_tensors(m, classes=None) for m in (own, ported)]
    assert [s["U"] for s in shapes] == [(4, 16), (4, 24)]
    assert [s["V"] for s in shapes] == [(16, 4), (24, 4)]
    assert [s["W"] for s in shapes] == [(2, 16), (2, 24)]
