"""The packages that ship join one another."""

from __future__ import annotations

from pathlib import Path

import pytest

import redhost
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import Previous, load_parts
from redhost.core.composition.recompose import compose, compose_parts
from redhost.core.composition.refusal import accepted
from redhost.core.composition.select import Selection
from redhost.core.model.build import read_package
from redhost.registry.environment.status import check_packages
from redhost.registry.package.discover import from_folder

PLUGINS = Path(__file__).parents[3] / "plugins"


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """Where features are remembered, for every range."""
    folder: Path = tmp_path_factory.mktemp("cache")
    return folder


@pytest.mark.parametrize("name", ["range1", "range3", "range5"])
def test_ranges_of_sums_join_one_another(name, cache) -> None:
    def folder(kind: str, thing: str) -> Path:
        return PLUGINS / f"red-{kind}-{thing}" / "src" / f"red_{kind}_{thing}"

    others = [folder("expert", f"range{n}") for n in range(1, 6) if f"range{n}" != name]
    tiny = folder("backbone", "tiny")
    before = compose(tiny, others, cache=cache).composed
    package = from_folder(tiny)
    files = read_package(package)
    folders = map(from_folder, [*others, folder("expert", name)])
    inputs = load_parts(
        Selection(
            package=package,
            files=files,
            statuses=check_packages(folders, backbone=files.manifest),
        ),
        plugins=redhost.plugins.Plugins(()),
        cache=cache,
        device="cpu",
        previous=Previous(model=before),
    )
    options = RecomposeOptions(router="evidence")
    accuracy = accepted(compose_parts(inputs, options)).receipt.accuracy
    assert len(accuracy.excess) == 4 and name not in accuracy.excess
    assert all(e.fall <= 0.06 for e in accuracy.excess.values())
    assert accuracy.after[name] > 0.9
