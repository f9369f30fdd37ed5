"""The certify kit for authors: `redhost.testing`; see `core.testing`.

pytest finds the fixtures that go with it by itself; see `redhost.pytest_plugin`.
"""

from .core.testing import (
    Environment,
    assert_bus_laws,
    assert_expert_contract,
    assert_same_answers,
    backbone_project,
    expert_project,
    tiny_backbone,
)

__all__ = [
    "Environment",
    "assert_bus_laws",
    "assert_expert_contract",
    "assert_same_answers",
    "backbone_project",
    "expert_project",
    "tiny_backbone",
]
