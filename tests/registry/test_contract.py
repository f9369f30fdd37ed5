from __future__ import annotations

from typing import Any

import pytest

from redhost.registry.contract import check_compatible, expected_tensors
from redhost.registry.errors import ContractError
from redhost.registry.files import read_expert
from redhost.registry.manifest import ExpertManifest, parse_expert


def manifest(make_expert: Any, **change: Any) -> ExpertManifest:
    found = parse_expert(make_expert("a", change=change)["expert.json"])
    assert isinstance(found, ExpertManifest)
    return found


def test_an_expert_fits_its_backbone(make_expert: Any, make_backbone: Any) -> None:
    assert check_compatible(manifest(make_expert), make_backbone()) == ()


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
            "labels: expected labels of backbone 'tiny', which knows 3, found 'nine'",
        ),
        (
            {"reads": {"tap": "block3", "width": 16}},
            {},
            "tap_unknown",
            "reads.tap: expected 'final', a block's number, or its name such as 'layers.2', "
            "found 'block3'",
        ),
        (
            {"writes": {"space": "hidden", "tap": "2"}},
            {},
            "tap_order",
            "writes.tap: expected the space 'hidden' and a reads.tap of its own for a block to "
            "write to, found space 'hidden', reads.tap 'final'",
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
    assert found.hint.endswith(".")


@pytest.mark.parametrize(
    ("reads", "writes"), [("2", "final"), ("layers.2", "3"), ("encoder.layer.0", "encoder.layer.1")]
)
def test_blocks_are_named_by_number_or_name(
    make_expert: Any, make_backbone: Any, reads: str, writes: str
) -> None:
    change = {"reads": {"tap": reads, "width": 16}, "writes": {"space": "hidden", "tap": writes}}
    assert check_compatible(manifest(make_expert, **change), make_backbone()) == ()


def test_own_labels_need_not_be_known(make_expert: Any, make_backbone: Any) -> None:
    own = manifest(make_expert, **{"labels": ["nine"], "writes.space": "labels"})
    assert check_compatible(own, make_backbone()) == ()


def test_logits_have_the_classes_of_the_backbone(make_expert: Any, make_backbone: Any) -> None:
    logits = manifest(make_expert, **{"writes.space": "logits"})
    (found,) = check_compatible(logits, make_backbone(), classes=9)
    assert found.code == "weights_tensors"
    assert check_compatible(logits, make_backbone(), classes=3) == ()
    with pytest.raises(ContractError):
        expected_tensors(logits, classes=None)


def test_an_expert_cannot_take_the_name_of_the_backbone_column(make_expert) -> None:
    found = read_expert(make_expert("backbone"))
    assert isinstance(found, tuple)
    assert [(v.code, v.field) for v in found] == [("manifest_field", "id")]
