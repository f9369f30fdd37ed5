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
    judge_expert,
    tiny_backbone,
)
from .registry.faults import (
    Kill,
    dying,
    failing,
    kill_at_every_step,
    kill_at_random,
    striking,
)

__all__ = [
    "Environment",
    "Kill",
    "assert_bus_laws",
    "assert_expert_contract",
    "assert_same_answers",
    "backbone_project",
    "dying",
    "expert_project",
    "failing",
    "judge_expert",
    "kill_at_every_step",
    "kill_at_random",
    "striking",
    "tiny_backbone",
]
