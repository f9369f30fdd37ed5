"""A refusal is a value: of a composition, or of one expert; only at the edge is it raised."""

from __future__ import annotations

import pytest

from redhost import RedhostError
from redhost.core.composition.refusal import Code, Refusal, accepted, refusal_of
from redhost.errors import CompositionError, ContractError, HarmError, PluginError
from redhost.registry.errors import CardError, HijackError
from redhost.registry.package.checked import Violation

FALL = Violation("harm", "domain 'red' would fall", "at most 1 point", "2 points", "Look.")


def test_what_is_not_refused_is_passed_on() -> None:
    assert accepted(3) == 3 and accepted(None) is None


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (Code.HARM, HarmError),
        (Code.HIJACK, HijackError),
        (Code.NOT_COMPUTABLE, CompositionError),
        (Code.CONTRACT, CompositionError),
    ],
)
def test_a_refusal_of_a_whole_composition_is_raised_as_it_was_found(code: Code, kind: type) -> None:
    with pytest.raises(RedhostError) as e:
        accepted(Refusal(code=code, violations=(FALL,)))
    assert type(e.value) is kind and e.value.reason == FALL.reason and e.value.hint == "Look."
    assert Refusal(code=code, violations=(FALL,)).error(hint="Other.").hint == "Other."


def test_the_same_as_one_experts_fault_says_what_it_does_to_the_whole() -> None:
    refusal = Refusal(code=Code.HARM, violations=(FALL,), retry=True)
    blamed = refusal.of("blue")
    (about,) = blamed.violations
    assert (blamed.expert, blamed.code, blamed.retry) == ("blue", Code.HARM, True)
    assert (about.code, about.field, about.found) == (
        "harm",
        "package",
        f"{FALL.field}: {FALL.found}",
    )
    assert (about.expected, about.hint) == (FALL.expected, FALL.hint)


@pytest.mark.parametrize(
    ("error", "code", "word"),
    [
        (PluginError("no"), Code.CONTRACT, "form_unknown"),
        (CompositionError("no"), Code.NOT_COMPUTABLE, "not_computable"),
        (HarmError("no"), Code.HARM, "harm"),
        (HijackError("no"), Code.HIJACK, "hijack"),
        (CardError("no"), Code.CONTRACT, "card_rows"),
        (ContractError("no"), Code.CONTRACT, "card_rows"),
        (ZeroDivisionError("no"), Code.NOT_COMPUTABLE, "not_computable"),
    ],
)
def test_an_error_is_a_refusal_that_remembers_it(error: Exception, code: Code, word: str) -> None:
    refusal = refusal_of(error)
    assert (refusal.code, refusal.violations[0].code, refusal.retry) == (code, word, False)
    assert refusal.of("blue").violations == refusal.violations and refusal.cause is error
    with pytest.raises(RedhostError) as e:
        accepted(refusal)
    if isinstance(error, RedhostError):
        assert e.value is error
    else:
        assert type(e.value) is CompositionError and e.value.__cause__ is error
        assert e.value.found == "ZeroDivisionError: no"


def test_harm_is_what_can_be_computed_and_costs_somebody() -> None:
    assert {code for code in Code if code.is_harm} == {Code.HARM, Code.HIJACK}
