"""Forms: what each ships, in every space; and what every form must be able to say of itself."""

from __future__ import annotations

import pytest

from redhost.registry.package.forms import FORMS, FormSpec

SPACES = ("hidden", "labels", "logits")
D, R, OUT = 8, 3, 5


@pytest.mark.parametrize(
    ("form", "space", "shapes"),
    [
        ("residual", "hidden", {"U": (R, D), "V": (OUT, R)}),
        ("residual", "logits", {"U": (R, D), "V": (OUT, R)}),
        ("residual", "labels", {"U": (R, D), "V": (D, R), "W": (OUT, D), "b": (OUT,)}),
        ("linear", "hidden", {"W": (OUT, D), "b": (OUT,)}),
        ("linear", "labels", {"W": (OUT, D), "b": (OUT,)}),
        ("mlp", "logits", {"U": (R, D), "u": (R,), "V": (OUT, R), "v": (OUT,)}),
        ("mlp", "labels", {"U": (R, D), "u": (R,), "V": (OUT, R), "v": (OUT,)}),
    ],
)
def test_a_form_fixes_names_and_shapes(form: str, space: str, shapes: dict) -> None:
    assert FORMS[form].shapes(space, width=D, rank=R, out=OUT) == shapes


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_the_written_matrix_has_a_row_for_each_number_written(form: FormSpec, space: str) -> None:
    shapes = form.shapes(space, width=D, rank=R, out=OUT)
    assert shapes[form.written(space)] in {(OUT, D), (OUT, R)}


def test_a_form_has_a_rank_where_a_tensor_has() -> None:
    assert FORMS["residual"].ranked and FORMS["mlp"].ranked and not FORMS["linear"].ranked
