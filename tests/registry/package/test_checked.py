"""A violation becomes the exception under which callers will look for it."""

from __future__ import annotations

import pytest

from redhost.registry import errors
from redhost.registry.package.checked import (
    Checked,
    Refused,
    Violation,
    checked,
    refuse,
    violations_in,
)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("backbone_mismatch", errors.BackboneMismatchError),
        ("canary_values", errors.CanaryError),
        ("card_rows", errors.CardError),
        ("manifest_field", errors.ManifestError),
        ("archive_size", errors.IntegrityError),
        ("record_row", errors.IntegrityError),
        ("signature_missing", errors.IntegrityError),
        ("weights_digest", errors.IntegrityError),
        ("width_mismatch", errors.ContractError),
    ],
)
def test_every_code_has_its_place_in_the_tree(code, kind) -> None:
    error = Violation(code, "field", "one", "two", "Do this.").error("expert 'a'")
    assert type(error) is kind
    assert str(error) == "expert 'a': field: expected one, found two. Do this."


def test_what_a_package_wrote_stays_on_one_line() -> None:
    reason = Violation("width_mismatch", "field", "one", "a\nb\x1b[31m", "").reason
    assert reason.isprintable() and "\\n" in reason


WRONG = (
    Violation("weights_digest", "a", "one", "two", "Do this."),
    Violation("card_rows", "b", "three", "four", "Do that."),
)


def test_a_checked_value_goes_on_and_violations_stay() -> None:
    good, bad = Checked(3), Checked[int](None, WRONG)
    assert good.unwrap("it") == 3 and good.then(lambda n: Checked(n + 1)) == Checked(4)
    assert good.then(lambda _: bad) == bad == bad.then(lambda n: Checked(n + 1))
    with pytest.raises(errors.IntegrityError) as raised:
        bad.unwrap("it")
    assert str(raised.value) == str(WRONG[0].error("it"))


def test_a_function_that_refuses_returns_all_that_is_wrong() -> None:
    @checked
    def half(n: int) -> int:
        refuse(WRONG if n % 2 else ())
        return n // 2

    @checked
    def quarter(n: int) -> int:
        return half(half(n).or_refuse()).or_refuse()

    assert quarter(8) == Checked(2)
    assert quarter(6) == Checked(None, WRONG) == half(3)
    with pytest.raises(Refused):
        refuse(WRONG)


def test_what_nobody_turns_into_a_value_is_the_error_of_the_first() -> None:
    with pytest.raises(errors.ContractError) as refused:
        refuse(WRONG)
    first, given = WRONG[0], refused.value
    assert (given.problem, given.expected, given.found, given.hint) == (
        first.field,
        first.expected,
        first.found,
        first.hint,
    )
    assert violations_in(given, code="not_computable", field="form") == WRONG


def test_any_other_error_is_a_violation_of_the_code_that_its_place_has() -> None:
    error = errors.ContractError("no rows", expected="two", hint="Bring them.")
    [wrong] = violations_in(error, code="not_computable", field="form")
    assert (wrong.code, wrong.reason) == (
        "not_computable",
        "form: expected two, found no rows",
    )
    assert wrong.hint == "Bring them."
