"""Modules are imported from checked files, and no others are touched."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from redhost.registry.environment.importing import import_digested
from redhost.registry.environment.trust import agreed, find, trust
from redhost.registry.errors import IntegrityError
from redhost.testing import Environment


@pytest.fixture
def waiting(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a loaded module that would fail if anything of it were looked at."""
    (tmp_path / "waits_for_its_use.py").write_text("raise ImportError('used')")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = importlib.util.find_spec("waits_for_its_use")
    assert spec is not None and spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    loader.exec_module(module)
    return spec.name


class Pretender:
    """What a C library puts in sys.modules: it has no attributes, and seems to be a module."""

    __slots__ = ()
    __class__ = ModuleType  # type: ignore[assignment]


@pytest.fixture
def looked_at(waiting: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check, after the fixtures that came later, what they left of the other modules."""
    monkeypatch.setitem(sys.modules, "pretender", Pretender())
    yield
    assert "brought" not in sys.modules
    assert type(sys.modules[waiting]).__name__ == "_LazyModule"


def test_the_fixture_for_authors_removes_its_own_modules_alone(
    looked_at: None, redhost_environment: Environment
) -> None:
    redhost_environment.install_code("brought", {"__init__.py": "x = 1"}, {})
    assert importlib.import_module("brought").x == 1


def digests_of(dist: str, folder: Any) -> dict[str, str]:
    trust(dist, folder=folder)
    agreement = agreed(find(dist), folder=folder)
    assert agreement is not None
    return agreement.contents.by_path


def test_modules_that_wait_for_their_use_go_on_waiting(
    site: Any, waiting: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "digested_one", raising=False)
    site.install("digested-one", {}, group="redhost.plugins", code="x = 1\n")
    digests = digests_of("digested-one", tmp_path)
    for _ in range(2):
        assert import_digested("digested_one", digests, dist="digested-one").x == 1
    assert type(sys.modules[waiting]).__name__ == "_LazyModule"


def test_other_bytes_of_an_imported_module_need_another_process(
    site: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.install("digested-two", {}, group="redhost.plugins", code="x = 1\n")
    digests = digests_of("digested-two", tmp_path)
    import_digested("digested_two", digests, dist="digested-two")
    changed = dict.fromkeys(digests, "0" * 64)
    with pytest.raises(IntegrityError, match="imported 'digested_two'"):
        import_digested("digested_two", changed, dist="digested-two")
    del sys.modules["digested_two"]
    (folder / "__init__.py").write_text("x = 2\n")
    site.seal(site.folder / "digested_two-0.1.0.dist-info", folder)
    digests = digests_of("digested-two", tmp_path)
    assert import_digested("digested_two", digests, dist="digested-two").x == 2
    del sys.modules["digested_two"]
