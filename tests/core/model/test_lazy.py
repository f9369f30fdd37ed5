"""Experts that wait in the store: read when picked, checked then, and only they."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import redhost
from redhost.core.model import build as assemble
from redhost.core.model import stored
from redhost.core.model.lazy import Lazy, LazyCards, LazyExpert
from redhost.registry.errors import IntegrityError
from redhost.registry.home.store import Store
from redhost.registry.package import readers as files_module
from redhost.registry.package.manifest import parts_of

TEXTS = ["red 61 b", "green 62 c", "blue 63 f", "nothing 4"]
COPIES = 3


@pytest.fixture(scope="session")
def many(
    backbone_folder: Path, expert_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A home whose one generation has twelve experts under a router that picks one."""
    root = tmp_path_factory.mktemp("many")
    folders = list(expert_folders.values())
    for name, folder in expert_folders.items():
        for n in range(COPIES):
            copy = root / f"{name}{n}" / folder.name
            shutil.copytree(folder, copy)
            manifest = json.loads((copy / "expert.json").read_text())
            manifest |= {"id": f"{name}{n}", "off_domain": None}
            (copy / "expert.json").write_text(json.dumps(manifest))
            folders.append(copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(root / "site"))
        site = redhost_site(root / "site")
        site.install(backbone_folder.parents[1])
        for folder in folders:
            install(site, folder)
        host = redhost.Host.open(root / "home", backbone="toy", plugins=redhost.plugins.Plugins(()))
        receipt = host.recompose(router="hard")
    assert len(receipt.experts) == 3 * (COPIES + 1)
    return root / "home"


def redhost_site(folder: Path) -> Any:
    from redhost.testing import Environment

    folder.mkdir()
    return Environment(folder)


def install(site: Any, package: Path) -> None:
    """Install a package's folder under its expert's id."""
    expert_id = json.loads((package / "expert.json").read_text())["id"]
    module = f"red_expert_{expert_id}"
    shutil.copytree(package, site.folder / module)
    points = {"redhost.experts": f"{expert_id} = {module}"}
    site.write_info(module.replace("_", "-"), "1.0", module, points)


@pytest.fixture
def home(many: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(many, tmp_path / "home"))


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The digests of which every file is read from a store."""
    found: list[str] = []
    get = Store.get

    def noted(self: Store, digest: str) -> dict[str, bytes]:
        found.append(digest)
        return get(self, digest)

    monkeypatch.setattr(Store, "get", noted)
    yield found


def members(host: redhost.Host) -> dict[str, str]:
    return host.generations.load(1).members()


def picked(answers: list[redhost.Answer]) -> set[str]:
    return {c for a in answers for c, weight in a.weights.items() if weight and c != "backbone"}


def damage(home: Path, digest: str) -> None:
    """Change one number of an expert's stored weights."""
    path = home / "store" / digest / "expert.safetensors"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


def test_predict_reads_the_experts_that_are_picked_and_no_others(
    home: Path, reads: list[str]
) -> None:
    host = open_host(home)
    digests, backbone = members(host), host.generations.load(1).backbone.digest
    first = host.predict(TEXTS[:1])
    assert reads == [backbone, *(digests[i] for i in sorted(picked(first)))]
    assert len(picked(first)) == 1
    everything = host.predict(TEXTS)
    ever = picked(first) | picked(everything)  # equal copies tie, batch by batch
    assert set(reads) == {backbone, *(digests[i] for i in ever)}
    before = len(reads)
    host.predict(TEXTS)
    assert len(reads) == before  # what is loaded stays loaded
    assert len(ever) < len(digests)


def test_control_that_may_not_wait_reads_them_all(
    home: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "can_load_lazily", lambda *_, **__: False)
    host = open_host(home)
    host.predict(TEXTS[:1])
    assert set(members(host).values()) <= {*reads}


def test_answers_are_those_of_a_generation_read_in_full_bit_for_bit(home: Path) -> None:
    lazily, whole = open_host(home).predict(TEXTS), open_host(home).composed.answer(TEXTS)
    assert lazily == whole


def test_what_is_held_in_full_answers_predict_too(home: Path) -> None:
    host = open_host(home)
    whole = host.composed
    assert host.load(1) is whole
    host.predict(TEXTS)
    assert host._model is whole
    assert not any(isinstance(e, LazyExpert) for e in whole.bus.parts())


def loaded(host: redhost.Host) -> set[str]:
    model = host._model
    assert model is not None
    parts = zip(model.bus.ids, model.bus.parts(), strict=True)
    return {i for i, e in parts if isinstance(e, LazyExpert) and e.is_loaded}


def test_a_damaged_expert_is_named_when_it_is_picked_and_nothing_else_is_lost(home: Path) -> None:
    (victim,) = picked(open_host(home).predict(TEXTS[:1]))
    others = [t for t in TEXTS if picked(open_host(home).predict([t])) != {victim}]
    before = open_host(home).predict(others)
    digest = members(open_host(home))[victim]
    good = (home / "store" / digest / "expert.safetensors").read_bytes()
    damage(home, digest)
    host = open_host(home)
    assert host.predict(others) == before
    with pytest.raises(IntegrityError, match=f"stored expert '{victim}'") as e:
        host.predict(TEXTS[:1])
    assert "recompose" in e.value.hint
    assert host.predict(others) == before
    assert victim not in loaded(host)
    (home / "store" / digest / "expert.safetensors").write_bytes(good)
    assert picked(host.predict(TEXTS[:1])) == {victim}  # what failed is tried again


def test_an_expert_that_is_gone_is_named(home: Path) -> None:
    (victim,) = picked(open_host(home).predict(TEXTS[:1]))
    host = open_host(home)
    host.predict(TEXTS[1:2])
    shutil.rmtree(home / "store" / members(host)[victim])
    with pytest.raises(IntegrityError, match=f"stored expert '{victim}'"):
        host.predict(TEXTS[:1])


def test_a_manifest_that_was_changed_is_noticed_before_anything_is_answered(home: Path) -> None:
    digests = members(open_host(home))
    idle = next(i for i in digests if i not in picked(open_host(home).predict(TEXTS)))
    path = home / "store" / digests[idle] / "expert.json"
    path.write_bytes(path.read_bytes().replace(b'"temperature"', b' "temperature"'))
    with pytest.raises(IntegrityError, match=f"stored '{idle}' is damaged"):
        open_host(home).predict(TEXTS)


def test_control_without_digest_and_canary_answers_from_damaged_weights(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = open_host(home)
    before = host.predict(TEXTS[:1])
    (victim,) = picked(before)
    path = home / "store" / members(host)[victim] / "expert.safetensors"
    data = bytearray(path.read_bytes())
    data[-64:] = b"\x00" * 64
    path.write_bytes(data)
    monkeypatch.setattr(
        files_module,
        "_read_parts",
        lambda source, manifest: {part.file: source[part.file] for part in parts_of(manifest)},
    )
    with pytest.raises(IntegrityError, match="cannot be used: stored expert"):
        open_host(home).predict(TEXTS[:1])  # the canary alone still notices
    monkeypatch.setattr(assemble, "check_canary", lambda *_, **__: None)
    assert open_host(home).predict(TEXTS[:1]) != before  # wrong: what both guard


def test_live_reads_everything_before_it_serves(home: Path, reads: list[str]) -> None:
    host = open_host(home)
    live = redhost.Live(host.session)
    assert set(members(host).values()) <= {*reads}
    assert live.predict(TEXTS) == open_host(home).predict(TEXTS)
    idle = next(i for i in members(host) if i not in picked(live.predict(TEXTS)))
    damage(home, members(host)[idle])
    with pytest.raises(redhost.RedhostError, match=idle):
        live.swap(1)
    assert live.generation == 1


def test_cards_are_read_when_they_are_looked_at(home: Path, reads: list[str]) -> None:
    host = open_host(home)
    host.predict(TEXTS[:1])
    before, model = list(reads), host._model
    assert model is not None
    assert isinstance(model.cards, LazyCards)
    assert [*model.cards] == sorted(members(host))
    assert len(model.cards) == len(members(host))
    assert reads == before
    card = model.cards["red0"]
    assert reads == [*before, members(host)["red0"]]
    whole = open_host(home).composed.cards["red0"]
    assert (card.kind, card.rows) == (whole.kind, whole.rows)
    assert model.cards["red0"] is card


def test_a_damaged_card_is_named(home: Path) -> None:
    host = open_host(home)
    host.predict(TEXTS[:1])
    (home / "store" / members(host)["red0"] / "card.jsonl").write_bytes(b"")
    model = host._model
    assert model is not None
    with pytest.raises(IntegrityError, match="stored expert 'red0'"):
        _ = model.cards["red0"]


def test_many_threads_build_a_thing_once() -> None:
    calls: list[int] = []
    gate = threading.Barrier(4)

    def make() -> int:
        calls.append(1)
        return len(calls)

    once = Lazy(make)

    def ask(_: int) -> int:
        gate.wait()
        return once()

    assert not once
    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(ask, range(4))] == [1, 1, 1, 1]
    assert once


def test_threads_that_pick_the_same_expert_first_get_one_answer(home: Path) -> None:
    host, want = open_host(home), open_host(home).predict(TEXTS)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: host.predict(TEXTS), range(8))]
    assert all(answers == want for answers in found)


def test_evaluation_and_leave_one_out_read_what_they_need(home: Path, reads: list[str]) -> None:
    host = open_host(home)
    host.predict(TEXTS[:1])
    result = host.evaluate()
    assert set(members(host).values()) <= {*reads}
    assert result.rows == len(host.composed.evaluation)


def test_a_waiting_expert_has_no_parameters_and_the_labels_of_its_manifest(home: Path) -> None:
    host = open_host(home)
    host.predict(TEXTS[:1])
    model, whole = host._model, open_host(home).composed
    assert model is not None
    assert not [*model.bus.experts.parameters()]
    assert model.bus.labels == whole.bus.labels
    for mine, theirs in zip(model.bus.parts(), whole.bus.parts(), strict=True):
        manifest = (mine.space, mine.labels, mine.temperature)
        assert manifest == (theirs.space, theirs.labels, theirs.temperature)
        z = torch.zeros(1, whole.backbone.width)
        assert torch.equal(mine(z), theirs(z))
