"""The certify kit for authors: `redhost.testing`; see `core.testing`."""

from .core.testing import (
    assert_bus_laws,
    assert_expert_contract,
    assert_same_answers,
    tiny_backbone,
)

__all__ = ["assert_bus_laws", "assert_expert_contract", "assert_same_answers", "tiny_backbone"]
