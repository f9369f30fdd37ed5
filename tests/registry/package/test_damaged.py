"""A package damaged anywhere fails by name, soon, and alone: nobody else's command stops.

`DAMAGED=10000` is a campaign: that many packages in place of a few.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import packaging.specifiers
import packaging.version
import pytest
from hypothesis import HealthCheck, given, settings
from redhost_author.strict import strict_check
from redhost_author.targets import resolve_targets, static_check
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from safetensors.numpy import save

from redhost.core.composition.select import installed_expert, read_source
from redhost.registry.environment.installed import require_removable
from redhost.registry.environment.installer import find
from redhost.registry.environment.status import PackageStatus
from redhost.registry.errors import RedhostError
from redhost.registry.package.discover import MAX_HEADER, discover
from redhost.registry.package.manifest import dumps
from redhost.registry.queries.inventory import (
    dists_of,
    home_of_expert,
    take_inventories,
    take_status,
)
from redhost.registry.queries.settings import choose_backbone

from ...plugins.peft.peft_files import D, R, files
from .damage import DAMAGES, INFO, Damaged, Edit

assert packaging.specifiers and packaging.version  # imported before the path is narrowed

GOOD = [f"good{n}" for n in range(4)]
COUNT = int(os.environ.get("DAMAGED", "60"))
MOST = 2.0
"""Most seconds of a command, whatever one package has."""


def hashed(data: bytes) -> str:
    return sha256(data).hexdigest()


@dataclass
class Stage:
    """A site of five good packages, where one more is damaged in turn."""

    site: Any
    home: Path
    make: Callable[..., dict[str, bytes]]
    backbone: dict[str, bytes]

    def package(self, number: int) -> Damaged:
        """Return one of four undamaged packages, to be damaged."""
        dist = "red-backbone-x" if number == 3 else "red-expert-x"
        data = self.backbone if number == 3 else [self.plain, self.vectors, self.adapter][number]()
        module, info = dist.replace("-", "_"), f"{dist.replace('-', '_')}-1.dist-info"
        kind = "backbone" if number == 3 else "expert"
        made = {f"{module}/{name}": content for name, content in data.items()}
        made |= {f"{module}/__init__.py": b""} | {f"{info}/{name}": b"" for name in INFO}
        made[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1\n\n".encode()
        made[f"{info}/entry_points.txt"] = f"[redhost.{kind}s]\nx = {module}\n".encode()
        made[f"{info}/direct_url.json"] = b'{"url": "file:///x", "dir_info": {"editable": false}}'
        return Damaged(self.site.folder, dist, made, f"{module}/{kind}.json")

    def plain(self) -> dict[str, bytes]:
        return self.make("x")

    def vectors(self) -> dict[str, bytes]:
        rows, one = np.ones((2, D), "f4"), np.ones((2, 1), "f4")
        labels = np.zeros(2, "i8")
        card = save(
            {"fit_z": rows, "fit_label": labels, "gate_z": rows, "gate_label": labels}
            | {"gate_shift": one, "gate_scale": one}
        )
        return self.make("x", card=card, change={"card.kind": "vectors"})

    def adapter(self) -> dict[str, bytes]:
        config, weights = files(rank_pattern={"query": R}, layers_to_transform=[0, 1])
        rows = {"z": np.ones((2, D), "f4"), "delta": np.ones((2, D), "f4")}
        canary = save(rows | {"tokens": np.ones((2, 5), "i8")})
        change = {
            "form": "lora",
            "activation": "identity",
            "weights": {"file": WEIGHTS, "sha256": hashed(weights)},
            "files": {CONFIG: hashed(config)},
        }
        made = self.make("x", change=change, canary=canary)
        del made["expert.safetensors"]
        return {**made, CONFIG: config, WEIGHTS: weights}

    def use(self) -> list[PackageStatus]:
        """Do what commands do with all packages; return the states of the other experts."""
        seconds = time.process_time()

        def took(what: str) -> None:
            nonlocal seconds
            now = time.process_time()
            assert now - seconds < MOST, f"{what} took {now - seconds:.1f} s"
            seconds = now

        importlib.invalidate_caches()
        inventories = take_inventories(self.home, backbone="undamaged")  # list-experts
        took("list-experts")
        for inventory in inventories.values():
            assert inventory.problem is None
            assert inventory.backbone is not None and inventory.backbone.id == "undamaged"
        status = take_status(self.home)
        took("status")
        assert status.backbone == "undamaged"
        assert not {d.id for d in status.drift} & {*GOOD, "backbone"}, status.drift
        for target in resolve_targets([], home=self.home, backbone="undamaged"):
            static_check(target)
            strict_check(target)
        took("check")
        for package in discover("backbone"):
            with suppress(RedhostError):
                resolve_targets([package.dist], home=self.home, backbone="undamaged")
        with suppress(RedhostError):
            choose_backbone(discover("backbone"), None)
        took("check of backbones")
        backbone = next(iter(inventories.values())).backbone
        assert backbone is not None
        for name in GOOD[:1]:
            assert home_of_expert(self.home, name) == self.home
            assert dists_of(self.home, name) == (f"red-expert-{name}",)
            assert installed_expert(name, self.home).dist == f"red-expert-{name}"
            package_ = find(f"red-expert-{name}")
            assert package_ is not None
            require_removable(package_)
            read_source(name, backbone=backbone, home=self.home)
        took("remove and recompose")
        statuses = [s for i in inventories.values() for s in i.statuses]
        found = {s.id: s for s in statuses if s.package.dist.startswith("red-expert-good")}
        assert sorted(map(str, found)) == GOOD
        assert all((s.state, s.code) == ("attached", None) for s in found.values()), found
        return [s for s in statuses if s not in found.values()]


@pytest.fixture
def stage(
    site: Any,
    home: Path,
    make_expert: Any,
    make_backbone: Any,
    compose: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Stage]:
    rows = b'{"text": "a"}\n'
    backbone = {
        "backbone.json": dumps(make_backbone(id="x")),
        "classifier.safetensors": save({"weight": np.ones((3, D), "f4")}),
        "background.jsonl": rows,
    }
    manifest = json.loads(backbone["backbone.json"])
    manifest["classifier"] = {
        "file": "classifier.safetensors",
        "sha256": hashed(backbone["classifier.safetensors"]),
    }
    manifest["background"] = {"file": "background.jsonl", "sha256": hashed(rows), "rows": 1}
    backbone["backbone.json"] = json.dumps(manifest).encode()
    for name in GOOD:
        site.install(f"red-expert-{name}", make_expert(name))
    site.install(
        "red-backbone-good",
        {"backbone.json": dumps(make_backbone(id="undamaged"))},
        group="redhost.backbones",
    )
    host = site.folder.parent / "host" / "redhost-1.dist-info"
    host.mkdir(parents=True)
    (host / "METADATA").write_text("Name: redhost\nVersion: 1\n")
    found = take_inventories(home, backbone="undamaged")[None].statuses
    compose({s.id: s.digest for s in found if s.id in GOOD})
    monkeypatch.chdir(home)  # which has no settings
    others = [p for p in sys.path if "site-packages" not in p]
    monkeypatch.setattr(sys, "path", [str(site.folder), str(host.parent), *others])
    yield Stage(site, home, make_expert, backbone)


@pytest.fixture
def compose(home: Path) -> Callable[[dict[str, str]], None]:
    """Publish a generation whose members have these digests."""
    from redhost.registry.home.composition import (
        BackboneRecord,
        Composition,
        Member,
        RouterRecord,
    )
    from redhost.registry.home.generations import Generations

    def call(digests: dict[str, str]) -> None:
        generations = Generations(home)
        for name, digest in digests.items():
            generations.store.put({"expert.json": name.encode()}, digest=digest)
        draft = Composition(
            backbone=BackboneRecord(id="undamaged", fingerprint="f" * 64),
            experts=tuple(
                Member(id=i, dist=f"red-expert-{i}", version="1", digest=digest)
                for i, digest in digests.items()
            ),
            router=RouterRecord(
                kind="linear", level="full", digest="d" * 64, seed=0, columns=tuple(sorted(digests))
            ),
            settings={"tolerance": 1.0},
        )
        made = {"router.safetensors": b"router", "receipt.json": b"{}"}
        with generations.writer(timeout=5) as writer:
            generations.publish(draft, made, writer=writer)

    return call


def damage(
    stage: Stage, number: int, edits: list[Edit], *, honest: bool = True, sealed: bool = True
) -> list[PackageStatus]:
    """Use a site with one damaged package; return the status of it, if it is an expert's still."""
    package = stage.package(number)
    try:
        package.write(edits, honest=honest, sealed=sealed)
        others = stage.use()
    finally:
        package.remove()
    for status in others:
        lines = (status.reason or "", status.hint or "", status.name)
        assert all(line.isprintable() for line in lines)
        assert json.dumps(status.to_json(), ensure_ascii=False).encode()
        assert status.package.dist and (status.code or status.state in {"valid", "enabled"})
    return others


def test_undamaged_packages_are_fine(stage: Stage) -> None:
    for number in range(3):
        [status] = damage(stage, number, [], honest=True, sealed=True)
        assert (status.code, status.state) == (None, "enabled"), (number, status.violations)
    assert damage(stage, 3, []) == []


OFFERS = {
    "one module twice": ("x", "x"),
    "long names that begin alike": ("m" * 600, "m" * 601),
    "two that can be read and one that cannot": ("x", "y", "z"),
}


@pytest.mark.parametrize("case", OFFERS)
def test_a_distribution_may_offer_anything_more_than_once(stage: Stage, case: str) -> None:
    package = stage.package(0)
    undamaged = {
        name: data for name, data in package.files.items() if name.startswith("red_expert_x/")
    }
    points = f"{package.module}-1.dist-info/entry_points.txt"
    modules = [f"red_expert_{name}" for name in OFFERS[case]]
    for module in modules:
        if module != "red_expert_z" and len(module) < MAX_HEADER:
            package.files |= {n.replace("red_expert_x", module): d for n, d in undamaged.items()}
    rows = (f"x{n} = {module}\n" for n, module in enumerate(modules))
    package.files[points] = f"[redhost.experts]\n{''.join(rows)}".encode()
    try:
        package.write([], honest=False, sealed=True)
        others = stage.use()
        targets = resolve_targets(["red-expert-x"], home=stage.home, backbone="undamaged")
    finally:
        package.remove()
    assert len(targets) == len(others) == len({s.package for s in others})
    assert all(s.code for s in others) is (case != "one module twice")


def test_a_folder_of_metadata_without_any_name_is_named_as_it_is(stage: Stage) -> None:
    package = stage.package(0)
    del package.files[f"{package.module}-1.dist-info/METADATA"]
    try:
        package.write([("folder", 0, 1, 0)], honest=False, sealed=True)
        [status] = stage.use()
    finally:
        package.remove()
    assert (status.package.dist, bool(status.code)) == ("-1.dist-info", True)


def test_any_damage_of_any_file_fails_that_package_alone(stage: Stage) -> None:
    codes = set[str | None]()

    @settings(
        max_examples=COUNT, deadline=None, suppress_health_check=[*HealthCheck], database=None
    )
    @given(DAMAGES)
    def campaign(drawn: tuple[int, list[Edit], bool, bool]) -> None:
        number, edits, honest, sealed = drawn
        codes.update(s.code for s in damage(stage, number, edits, honest=honest, sealed=sealed))

    campaign()
    assert len(codes) > 5, codes
