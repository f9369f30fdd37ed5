"""An expert of several ranks: what its manifest and its canary have to say of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from redhost.registry.package.readers import read_expert

D, R = 16, 4
RANKS = [1, R]


def canary(**deltas: float) -> bytes:
    """Return a canary whose Δ at each rank is one number everywhere."""
    tensors = {name.replace("_", "."): np.full((2, D), x, "f4") for name, x in deltas.items()}
    return save({"z": np.ones((2, D), "f4"), **tensors})


def codes(make_expert: Any, data: bytes, **change: Any) -> list[str]:
    change = {"schema": "redhost.expert/1.6", "ranks": RANKS, **change}
    found = read_expert(make_expert("a", canary=data, change=change)).violations
    return [v.code for v in found]


def test_a_canary_with_the_delta_of_each_rank_is_valid(make_expert: Any) -> None:
    assert codes(make_expert, canary(delta=1.0, delta_1=0.5)) == []


def test_a_canary_that_lacks_a_rank_or_has_another_is_refused(make_expert: Any) -> None:
    assert "canary_tensors" in codes(make_expert, canary(delta=1.0))
    assert "canary_tensors" in codes(make_expert, canary(delta=1.0, delta_1=1.0, delta_3=1.0))


def test_an_expert_that_says_nothing_at_one_rank_is_refused(make_expert: Any) -> None:
    assert codes(make_expert, canary(delta=1.0, delta_1=0.0)) == ["canary_power"]


@pytest.mark.parametrize("ranks", [[R], [R, 1], [1, 1, R], [1, R - 1], [1, R + 1], [0, R]])
def test_ranks_ascend_to_its_own(make_expert: Any, ranks: list[int]) -> None:
    assert codes(make_expert, canary(delta=1.0, delta_1=1.0), ranks=ranks) == ["manifest_field"]


def test_a_linear_head_has_none(make_expert: Any) -> None:
    weights = {"W": np.ones((D, D), "f4"), "b": np.ones(D, "f4")}
    change = {"schema": "redhost.expert/1.6", "form": "linear", "rank": 0, "ranks": [1, 2]}
    found = read_expert(make_expert("a", weights=weights, change=change)).violations
    assert [(v.code, v.field) for v in found] == [("manifest_field", "ranks")]
