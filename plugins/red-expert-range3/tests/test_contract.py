"""The contract of red-expert-range3, as any host will check it."""

from pathlib import Path

from redhost_author.testing import assert_expert_contract


def test_the_package_keeps_its_contract() -> None:
    assert_expert_contract(Path(__file__).parents[1])
