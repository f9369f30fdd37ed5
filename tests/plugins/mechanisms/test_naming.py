"""Messages about unknown names."""

from __future__ import annotations

import pytest
from redhost_mechanisms.naming import check_name, numbered
from torch import nn


def test_an_unknown_name_is_answered_with_the_closest_and_all() -> None:
    with pytest.raises(ValueError) as error:
        check_name("layre1", ["layer1", "head"], what="layer")
    assert str(error.value) == (
        "unknown layer 'layre1'. Did you mean 'layer1'? Known: layer1, head."
    )


def test_a_known_name_passes() -> None:
    check_name("head", ["layer1", "head"], what="layer")


def test_parts_are_numbered_from_0() -> None:
    assert list(numbered([nn.Identity(), nn.ReLU()], what="expert")) == ["expert 0", "expert 1"]
