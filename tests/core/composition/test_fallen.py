"""Small falls are held to the tolerance in all."""

from __future__ import annotations

import pytest

from redhost.core.composition.gates import harm
from redhost.core.composition.refusal import accepted
from redhost.core.receipt import Accuracy
from redhost.errors import HarmError


@pytest.mark.parametrize(
    ("fallen", "fall", "refused"),
    [
        (0.009, 0.005, False),
        (0.011, 0.005, True),
        (0.011, -0.001, False),  # it gains: nothing is taken this time
    ],
)
def test_what_has_fallen_in_all_is_held_to_the_tolerance(fallen, fall, refused) -> None:
    accuracy = Accuracy(
        before={"red": 0.9},
        after={"red": 0.9 - fall},
        overall=None,
        oracle=None,
        rows={"red": 1000},
        fallen={"red": fallen},
    )
    refusal = harm(accuracy, tolerance=None)
    if not refused:
        assert refusal is None
        return
    with pytest.raises(HarmError, match="a little each time"):
        accepted(refusal)
