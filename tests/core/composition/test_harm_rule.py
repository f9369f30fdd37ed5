"""The rule by which gate rows refuse a composition, on figures alone."""

from __future__ import annotations

import msgspec
import pytest

from redhost.core.composition.gates import COPIED, OVERLAP, harm
from redhost.core.composition.refusal import Code, accepted
from redhost.core.receipt import Accuracy, ExcessHarm
from redhost.errors import HarmError
from redhost.registry.errors import HijackError


def fallen(fall: float, rows: int, **known: float) -> Accuracy:
    plain = {
        "reference": 0.0,
        "error": 0.0,
        "overlap": 0.0,
        "blur": 0.0,
        "taken": 0.0,
        "mass": 0.0,
        **known,
    }
    excess = ExcessHarm(fall=fall, excess=fall - plain["reference"], **plain)
    return Accuracy(
        before={"red": 0.9},
        after={"red": 0.9 - fall},
        overall=None,
        oracle=None,
        rows={"red": rows},
        excess={"red": excess},
    )


@pytest.mark.parametrize(
    ("fall", "known", "tolerance"),
    [
        (0.04, {"reference": 0.03}, None),
        (0.02, {"error": 0.00625}, None),
        (0.04, {"error": 0.1}, None),  # three points, however much noise there is
        (0.035, {"reference": 0.03}, 0.5),
        (0.0, {"mass": 0.2}, None),  # more labels share what there is
        (0.04, {"reference": 0.03, "overlap": 0.7, "blur": 0.41}, None),  # within its error
        (0.04, {"reference": 0.03, "taken": 0.115}, None),  # a standard error is .0095
    ],
)
def test_what_the_reference_loses_is_excused(fall, known, tolerance) -> None:
    assert harm(fallen(fall, 1000, **known), tolerance=tolerance) is None


@pytest.mark.parametrize(
    ("fall", "known", "tolerance"),
    [
        (0.045, {"reference": 0.03}, None),
        (0.02, {"reference": -0.03}, None),  # its gain excuses nothing, and costs nothing
        (0.045, {"error": 0.1}, None),
        (0.02, {"error": 0.1}, 1.0),  # a tolerance that is given is exact
        (0.04, {"reference": 0.03, "overlap": OVERLAP}, None),
        (0.04, {"reference": 0.03, "overlap": 0.7, "blur": 0.39}, None),
        (0.04, {"reference": 0.03, "taken": 0.116}, None),
        (0.0, {"mass": 0.04, "overlap": OVERLAP}, None),
    ],
)
def test_anything_beyond_is_refused(fall, known, tolerance) -> None:
    with pytest.raises(HarmError, match="domain 'red' would fall"):
        accepted(harm(fallen(fall, 1000, **known), tolerance=tolerance))


@pytest.mark.parametrize(("fall", "by_probability"), [(0.0, True), (-0.02, True), (0.05, False)])
def test_a_fall_that_accuracy_does_not_show_says_of_what_it_is(fall, by_probability) -> None:
    refusal = harm(fallen(fall, 1000, mass=0.04, overlap=0.7), tolerance=None)
    [violation] = refusal.violations
    assert ("probability" in violation.field) == by_probability


@pytest.mark.parametrize(("error", "code"), [(0.019, Code.HIJACK), (0.021, Code.HARM)])
def test_nobody_is_called_a_hijacker_on_figures_within_their_error(error, code) -> None:
    """The fall is refused all the same."""
    accuracy = fallen(0.0, 43, mass=0.0665, mass_error=error, overlap=0.7, blur=0.1)
    assert harm(accuracy, tolerance=None).code is code


@pytest.mark.parametrize(
    ("known", "tolerance", "refused"),
    [
        ({"copied": COPIED}, None, True),
        ({"copied": COPIED - 0.01}, None, False),
        ({"claimed": 0.011}, None, True),
        ({"claimed": 0.009}, None, False),
        ({"claimed": 0.009}, 0.5, True),
        ({"claimed": -0.2}, None, False),
    ],
)
def test_who_brings_what_is_anothers_is_refused_by_name(known, tolerance, refused) -> None:
    accuracy = fallen(0.0, 1000, **known)
    refusal = harm(accuracy, tolerance=tolerance)
    if not refused:
        assert refusal is None
        return
    with pytest.raises(HijackError) as caught:
        accepted(refusal)
    assert "red" in caught.value.problem and caught.value.expected


def test_whose_rows_a_newcomer_brings_to_no_loss_is_no_reason_to_refuse_it() -> None:
    """Rows of a domain that is not harmed by it."""
    one = fallen(0.04, 1000, reference=0.03)
    blue = fallen(0.0, 1000, overlap=1.0).excess["red"]
    accuracy = msgspec.structs.replace(
        one,
        before={**(one.before or {}), "blue": 0.9},
        after={**one.after, "blue": 0.9},
        rows={**one.rows, "blue": 1000},
        excess={"red": one.excess["red"], "blue": blue},
    )
    assert harm(accuracy, tolerance=None) is None
