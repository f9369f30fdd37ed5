"""The contract of causal experts, and of the backbones that generate."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redhost.registry.package.manifest import (
    BackboneManifest,
    ExpertManifest,
    FileRef,
    dumps,
    parse_backbone,
    parse_expert,
)
from redhost.registry.package.rules import check_backbone, check_compatible, check_valid

RETRAIN = "Retrain it on this backbone."
VOCABULARY = "a" * 64
CAUSAL = {
    "reads.causal": True,
    "writes.vocabulary": VOCABULARY,
    "labels": [],
}


@pytest.fixture
def expert(make_expert: Any) -> Any:
    """Return the function that parses a causal expert's manifest with changes."""

    def make(**change: Any) -> ExpertManifest:
        return parse_expert(make_expert("a", change={**CAUSAL, **change})["expert.json"]).unwrap(
            "it"
        )

    return make


@pytest.fixture
def generating(make_backbone: Any) -> Any:
    """Return the function that makes the manifest of a backbone that generates."""

    def make(**change: Any) -> BackboneManifest:
        fields = {"task": "generation", "labels": (), "classifier": None, "tokenizer": VOCABULARY}
        made: BackboneManifest = make_backbone(**{**fields, **change})
        return made

    return make


def test_a_causal_expert_fits_a_backbone_that_generates(expert, generating) -> None:
    assert check_valid(expert()) == ()
    assert check_backbone(generating()) == ()
    assert check_compatible(expert(), generating()) == ()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            {"reads.causal": False, "labels": ["2"]},
            "reads.causal: expected true, since it names a vocabulary, found nothing",
        ),
        (
            {"writes": {"space": "hidden"}},
            "writes.vocabulary: expected the digest of the tokenizer it tells, found nothing",
        ),
        (
            {"writes.space": "logits"},
            "writes.space: expected 'hidden' for a causal expert, found 'logits'",
        ),
        (
            {"writes.space": "labels"},
            "writes.space: expected 'hidden' for a causal expert, found 'labels'",
        ),
        ({"reads.tap": "1"}, "reads.tap: expected 'final' for a causal expert, found '1'"),
        (
            {"writes.tap": "layers.1", "reads.tap": "layers.1"},
            "reads.tap: expected 'final' for a causal expert, found 'layers.1'",
        ),
        (
            {"reads.tap": "layers.1"},
            "reads.tap: expected 'final' for a causal expert, found 'layers.1'",
        ),
        (
            {"labels": ["x"]},
            "labels: expected none for a causal expert: its answers are tokens, found some",
        ),
    ],
)
def test_what_a_causal_expert_may_not_say(expert, change, reason) -> None:
    [found] = check_valid(expert(**change))
    assert (found.code, found.reason) == ("manifest_field", reason)
    assert found.hint == "Correct the manifest."


def test_any_other_expert_names_at_least_one_label(make_expert) -> None:
    """Control: labels are spared causal experts alone."""
    found = parse_expert(make_expert("a", change={"labels": []})["expert.json"]).unwrap("it")
    assert [v.field for v in check_valid(found)] == ["labels"]


def test_each_kind_of_expert_needs_its_kind_of_backbone(
    expert, generating, make_expert, make_backbone
) -> None:
    plain = parse_expert(make_expert("a")["expert.json"]).unwrap("it")
    [found, *_] = check_compatible(plain, generating())
    assert (found.code, found.hint) == ("causal_mismatch", RETRAIN)
    assert found.reason == (
        "reads.causal: expected a causal expert: the backbone generates, "
        "found one vector for a whole text"
    )
    [found] = check_compatible(expert(), make_backbone())
    assert (found.code, found.hint) == ("causal_mismatch", RETRAIN)
    assert found.reason == "reads.causal: expected no causal expert, found causal"


def test_another_vocabulary_is_named_with_both_digests(expert, generating) -> None:
    [found] = check_compatible(expert(), generating(tokenizer="b" * 64))
    assert (found.code, found.hint) == ("vocabulary_mismatch", RETRAIN)
    assert found.reason == (
        "writes.vocabulary: expected sha256:bbbbbbbbbbbb…, found sha256:aaaaaaaaaaaa…"
    )


@pytest.mark.parametrize("change", [{"reads.causal": "yes"}, {"writes.vocabulary": "a" * 63}])
def test_values_of_another_type_are_violations(make_expert, change) -> None:
    (found,) = parse_expert(make_expert("a", change={**CAUSAL, **change})["expert.json"]).violations
    assert found.field == next(iter(change))


def test_a_backbone_that_generates_has_no_labels(generating) -> None:
    wanted = "labels: expected no labels and no classifier where text is generated, found"
    [found] = check_backbone(generating(labels=("x",)))
    assert found.reason == f"{wanted} some"
    head = FileRef(file="head.safetensors", sha256="b" * 64)
    [found, _] = check_backbone(generating(classifier=head))
    assert found.reason == f"{wanted} a file"


def test_old_manifests_are_written_as_they_were(make_expert, make_backbone) -> None:
    """No key more: the digests of what is published stand."""
    data = make_expert("a")["expert.json"]
    found = parse_expert(data).unwrap("it")
    assert json.loads(dumps(found))["reads"] == json.loads(data)["reads"]
    assert json.loads(dumps(found))["writes"] == json.loads(data)["writes"]
    assert b"causal" not in dumps(found) and b"vocabulary" not in dumps(found)


def test_shipped_manifests_keep_every_byte() -> None:
    for n in range(1, 6):
        spec = importlib.util.find_spec(f"red_expert_range{n}")
        assert spec is not None and spec.origin is not None
        data = (Path(spec.origin).parent / "expert.json").read_bytes()
        found = parse_expert(data).unwrap("it")
        assert dumps(found) == data


def test_a_causal_manifest_round_trips(expert, generating) -> None:
    made = expert()
    assert parse_expert(dumps(made)).value == made
    assert json.loads(dumps(made))["reads"]["causal"] is True
    assert parse_backbone(dumps(generating())).value == generating()


def test_the_schema_tells_both_fields_and_requests_neither() -> None:
    fields = msgspec.json.schema(ExpertManifest)["$defs"]
    assert fields["Reads"]["properties"]["causal"] == {"type": "boolean"}
    assert fields["Writes"]["properties"]["vocabulary"]["pattern"].startswith("^[0-9a-f]{64}$")
    assert "causal" not in fields["Reads"]["required"]
    assert "vocabulary" not in fields["Writes"]["required"]
    backbone = msgspec.json.schema(BackboneManifest)["$defs"]["BackboneManifest"]
    tasks = backbone["properties"]["task"]
    assert "generation" in tasks["examples"]
