"""The certification kit for authors: `redhost.testing`; see `redhost.testing.certify`.

pytest finds its fixtures automatically; see `redhost.pytest_plugin`.
"""

from .certify import assert_bus_laws, assert_same_answers, tiny_backbone
from .environment import Environment
from .fault_injection import fail_at, kill_at

__all__ = [
    "Environment",
    "assert_bus_laws",
    "assert_same_answers",
    "fail_at",
    "kill_at",
    "tiny_backbone",
]
