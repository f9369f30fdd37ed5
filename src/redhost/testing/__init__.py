"""The certification kit for authors: `redhost.testing`; see `redhost.testing.certify`.

pytest finds its fixtures automatically; see `redhost.pytest_plugin`.
"""

from .certify import (
    assert_bus_laws,
    assert_expert_contract,
    assert_same_answers,
    backbone_project,
    expert_project,
    judge_expert,
    tiny_backbone,
)
from .environment import Environment
from .fault_injection import (
    Kill,
    fail_at,
    kill_at,
    kill_at_every_step,
    kill_at_random,
)

__all__ = [
    "Environment",
    "Kill",
    "assert_bus_laws",
    "assert_expert_contract",
    "assert_same_answers",
    "backbone_project",
    "expert_project",
    "fail_at",
    "judge_expert",
    "kill_at",
    "kill_at_every_step",
    "kill_at_random",
    "tiny_backbone",
]
