"""Fields of a backbone's manifest that contradict each other."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from redhost.registry.package.manifest import BUS_API, BUS_RANGE, Base, Features
from redhost.registry.package.rules import check_backbone

DIGEST = "b" * 64


def fields(found) -> list[str]:
    return [v.field for v in found]


def test_the_range_that_is_not_parsed_has_this_hosts_bus() -> None:
    assert SpecifierSet(BUS_RANGE).contains(BUS_API)


def test_a_sound_backbone_breaks_nothing(make_backbone) -> None:
    assert check_backbone(make_backbone()) == ()
    wide = Features(layers=(0, 4), tokens=8)
    assert check_backbone(make_backbone(width=24, features=wide)) == ()
    least = Features(layers=(0,), tokens=23)
    assert check_backbone(make_backbone(width=24, features=least)) == ()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base": Base(kind="carried")}, "base.files"),
        ({"base": Base(kind="carried", files={"model.bin": DIGEST})}, "base.files"),
        ({"base": Base(kind="file")}, "base.id"),
        ({"base": Base(kind="hub", id="a/b")}, "base.revision"),
        ({"base": Base(kind="file", id="x", files={"config.json": DIGEST})}, "base.files"),
        ({"base": Base(kind="dist", id="x", files={"config.json": DIGEST})}, "base.revision"),
        *(
            (
                {"base": Base(kind="dist", id=name, revision="==1", files={"config.json": DIGEST})},
                "base.id",
            )
            for name in ("x/../y", "x//etc", "x/..", "x/")
        ),
        ({"task": "regression"}, "labels"),
        ({"task": "generation"}, "labels"),
        ({"bus_api": "anything"}, "bus_api"),
        ({"bus_api": ">=99"}, "bus_api"),
        ({"labels": ("2", "2")}, "labels"),
        ({"features": Features(layers=(0, 0))}, "features.layers"),
        ({"features": Features(layers=(0, 1, 2)), "width": 16}, "features.layers"),
        ({"features": Features(layers=(0,), tokens=16), "width": 16}, "features.layers"),
        ({"features": Features(layers=(0,)), "task": "generation"}, "features"),
    ],
)
def test_a_contradiction_is_reported_by_its_field(make_backbone, changes, field) -> None:
    found = check_backbone(make_backbone(**changes))
    assert field in fields(found)
    assert all("\n" not in v.reason for v in found)


def test_files_that_no_package_may_carry_are_listed_a_few(make_backbone) -> None:
    files = {f"{n}.bin": DIGEST for n in range(7)} | {"config.json": DIGEST}
    [violation] = check_backbone(make_backbone(base=Base(kind="carried", files=files)))
    assert "'0.bin'" in violation.found and violation.found.endswith("and 2 more")
