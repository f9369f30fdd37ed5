"""A violation becomes the exception under which callers will look for it."""

from __future__ import annotations

import pytest

from redhost.registry import errors
from redhost.registry.violations import Violation


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("backbone_mismatch", errors.BackboneMismatchError),
        ("canary_values", errors.CanaryError),
        ("card_rows", errors.CardError),
        ("manifest_field", errors.ManifestError),
        ("archive_size", errors.IntegrityError),
        ("record_rows", errors.IntegrityError),
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
