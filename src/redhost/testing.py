"""The certification kit for authors: `redhost.testing`; see `core.testing.certify`.

pytest finds its fixtures automatically; see `redhost.pytest_plugin`.
"""

from .core.testing.certify import (
    assert_bus_laws,
    assert_expert_contract,
    assert_same_answers,
    backbone_project,
    expert_project,
    judge_expert,
    tiny_backbone,
)
from .core.testing.environment import Environment
from .core.testing.fault_injection import (
    Kill,
    fail_at,
    kill_at,
    kill_at_every_step,
    kill_at_random,
    patched,
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
    "patched",
    "tiny_backbone",
]
