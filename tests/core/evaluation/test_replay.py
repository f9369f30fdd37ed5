"""Gate rows are answered here as where a generation was composed, or it is not served."""

from __future__ import annotations

import msgspec
import pytest

from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.replay import replay_gates
from redhost.registry.errors import CompositionError


@pytest.fixture(scope="module")
def result(backbone_folder, expert_folders) -> RecomposeResult:
    return compose(backbone_folder, list(expert_folders.values()))


def test_what_was_published_is_found_again(result) -> None:
    published = result.receipt.accuracy
    assert replay_gates(result.composed, published) == published.after


def test_a_generation_that_answers_worse_here_is_refused(result) -> None:
    rows = result.receipt.accuracy.rows
    fewer = {i: share - 4 / rows[i] for i, share in result.receipt.accuracy.after.items()}
    other = msgspec.structs.replace(result.receipt.accuracy, after=fewer)
    replay_gates(result.composed, other)  # better here is no harm
    router = result.composed.bus.router
    for parameter in router.parameters():  # as if another library had made its numbers
        parameter.zero_()
    with pytest.raises(CompositionError):
        replay_gates(result.composed, result.receipt.accuracy)
