"""The canary: what an expert's author saw is what every host computes."""

from __future__ import annotations

import msgspec
import pytest
import safetensors.torch
import torch
from redhost_author.training.packaging import make_canary

import redhost
from redhost.core.bus.experts import LowRank, build_expert
from redhost.core.model.canary import check_canary
from redhost.registry.package.readers import ExpertFiles, read_expert


@pytest.fixture(scope="module")
def files(expert_folders) -> ExpertFiles:
    return read_expert({p.name: p.read_bytes() for p in expert_folders["red"].iterdir()}).unwrap(
        "it"
    )


@pytest.fixture(scope="module")
def expert(files) -> redhost.Expert:
    expert = build_expert(files.manifest, safetensors.torch.load(files.weights))
    assert expert is not None
    return expert


def test_the_authors_own_weights_sing(files, expert) -> None:
    assert check_canary(files.manifest, expert, files.canary) is None


def test_a_canary_is_the_experts_delta_on_the_vectors_given(expert) -> None:
    z = torch.randn(3, 16)
    written = safetensors.torch.load(make_canary(expert, z))
    assert torch.equal(written["z"], z) and torch.equal(written["delta"], expert(z))


@pytest.mark.parametrize(("shift", "sings"), [(0.9, True), (1.1, False)])
def test_the_tolerance_is_the_largest_deviation_of_any_entry(files, expert, shift, sings) -> None:
    tensors = safetensors.torch.load(files.canary)
    tensors["delta"][2, 5] += shift * files.manifest.canary.tolerance
    found = check_canary(files.manifest, expert, safetensors.torch.save(tensors))
    assert (found is None) == sings


def test_weights_that_compute_something_else_are_reported_by_how_much(files, expert) -> None:
    other = LowRank(
        U=expert.U.clone(), V=2 * expert.V, activation="gelu", space="hidden", labels=("a", "b")
    )
    found = check_canary(files.manifest, other, files.canary)
    assert found.code == "canary_values" and found.found.startswith("a deviation of ")


@pytest.mark.parametrize(("share", "holds"), [(1.0, True), (0.9, False)])
def test_a_norm_its_author_promises_is_measured_on_the_canary(files, expert, share, holds) -> None:
    loudest = float(safetensors.torch.load(files.canary)["delta"].norm(dim=-1).max())
    promised = msgspec.structs.replace(files.manifest, norm_bound=share * loudest)
    found = check_canary(promised, expert, files.canary)
    assert (found is None) == holds
    if found is not None:
        assert found.code == "norm_bound" and found.found == f"{loudest:.4g} on its canary"


@pytest.mark.parametrize(
    "tensors",
    [
        {"z": torch.zeros(2, 16)},
        {"z": torch.zeros(2, 9), "delta": torch.zeros(2, 16)},
        {"z": torch.zeros(2, 16), "delta": torch.zeros(2, 5)},
    ],
)
def test_a_canary_of_another_shape_is_a_violation_and_not_a_crash(files, expert, tensors) -> None:
    found = check_canary(files.manifest, expert, safetensors.torch.save(tensors))
    assert found.code == "canary_values"


def test_a_canary_that_computes_nan_does_not_pass(files, expert) -> None:
    tensors = safetensors.torch.load(files.canary)
    tensors["delta"][0, 0] = torch.nan
    assert check_canary(files.manifest, expert, safetensors.torch.save(tensors)) is not None
