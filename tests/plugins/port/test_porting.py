"""What a port keeps, and that what it does not keep is refused with the figures."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
import torch
from redhost_author import (
    ExpertSettings,
    open_for_training,
    split_rows,
    train_package,
    write_project,
)
from redhost_author.project import ExpertPlan, package_in, write_plan
from redhost_author.testing import judge_expert
from redhost_author.training.context import AuthoringContext
from redhost_port.affine_map import fit_affine
from redhost_port.porting import port_expert
from redhost_port.sums import moved, plus
from torch import Tensor

import redhost
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.composition.recompose import compose
from redhost.core.routers.cards import read_card
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import CardRow, write_rows
from redhost.registry.errors import BackboneMismatchError
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import ExpertFiles, read_expert

TINY = Path("plugins/red-backbone-tiny/src/red_backbone_tiny").resolve()
Encode = Callable[[Sequence[str]], Tensor]


def sums(count: int, *, seed: int) -> list[redhost.Row]:
    """Return sums, each with how large it is."""
    draw, rows = random.Random(seed), dict[str, str]()
    while len(rows) < count:
        a, b = draw.randint(1, 50), draw.randint(1, 50)
        size = "low" if a + b <= 40 else "middle" if a + b <= 60 else "high"
        rows[f"What is {a} plus {b}?"] = size
    return [redhost.Row(text=text, label=label) for text, label in rows.items()]


def perturbed(context: AuthoringContext, *, scale: float) -> AuthoringContext:
    """Return the backbone with noise on every matrix: a next version, or next to a random one."""
    import copy

    trunk = copy.copy(context.backbone.trunk)
    trunk.model = copy.deepcopy(trunk.model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in trunk.model.parameters():
            if p.dim() > 1:
                p.add_(scale * p.std() * torch.randn(p.shape, generator=generator))
    backbone = replace(context.backbone, trunk=trunk)
    manifest = msgspec.structs.replace(
        context.manifest, id="next", fingerprint=backbone.fingerprint()
    )
    cache = FeatureCache(context.cache, backbone=backbone, fingerprint=manifest.fingerprint)
    return replace(context, backbone=backbone, manifest=manifest, encode=cache.encode)


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """An expert and the backbone it was trained on."""

    expert: ExpertFiles
    old: AuthoringContext
    next: AuthoringContext


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("port")
    project, old = folder / "red-expert-size", open_for_training(TINY, cache=folder / "cache")
    plan = ExpertPlan(id="size", backbone="tiny", form="residual", card="texts")
    write_project(project, kind="expert", package_id="size", summary="how large a sum is")
    write_plan(project, plan)
    how = ExpertSettings(space="labels", rank=16, epochs=30)
    train_package(project, plan, split_rows(sums(600, seed=1)), context=old, settings=how)
    expert = read_expert(from_folder(project)).unwrap("the expert")
    return Setting(expert=expert, old=old, next=perturbed(old, scale=0.1))


def test_an_affine_relation_is_found_from_few_texts() -> None:
    generator = torch.Generator().manual_seed(0)
    x, A, c = (torch.randn(s, generator=generator) for s in ((60, 8), (5, 8), (5,)))
    fitted = fit_affine(x, x @ A.T + c)
    torch.testing.assert_close(fitted.A, A, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(fitted.c, c, atol=1e-4, rtol=1e-4)
    assert fitted.unexplained < 1e-8
    unrelated = fit_affine(x, torch.randn((60, 5), generator=generator))
    assert unrelated.unexplained > 0.9


def test_few_texts_suffice_where_vectors_hardly_moved() -> None:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn((40, 256), generator=generator)
    nearby = x + 0.1 * torch.randn((40, 256), generator=generator)
    assert fit_affine(x, nearby).unexplained < 0.02
    assert fit_affine(x, nearby[:, :255]).unexplained > 0.7  # of another width: nothing to start at
    turned = fit_affine(x, nearby @ torch.linalg.qr(torch.randn(256, 256, generator=generator)).Q)
    assert turned.unexplained > 0.7


def test_the_error_of_texts_left_out_is_what_leaving_them_out_gives() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn((12, 3), generator=generator)
    y = x[:, :2] + 0.5 * torch.randn((12, 2), generator=generator)
    fitted = fit_affine(x, y)
    X, missed = torch.cat([x, torch.ones(12, 1)], 1).double(), 0.0
    for n in range(12):
        others = [k for k in range(12) if k != n]
        solved = torch.linalg.lstsq(X[others], y[others].double()).solution
        missed += float((y[n].double() - X[n] @ solved).square().sum())
    plain = missed / float((y - y.mean(0)).square().sum())
    assert fitted.unexplained <= plain * (1 + 1e-4)  # no penalty is one that is tried


def test_an_expert_survives_a_next_version_byte_for_byte(setting) -> None:
    ported = port_expert(setting.expert, old=setting.old, new=setting.next)
    report, manifest = ported.report, ported.manifest
    assert report.share >= report.bound == 0.95
    assert report.own > report.nothing + 0.3
    assert report.rows == setting.expert.manifest.card.gate
    own = setting.expert
    assert ported.files[manifest.weights.file] == own.weights
    assert ported.files[manifest.card.file] == own.files[str(own.manifest.card.file)]
    assert ported.files[manifest.ported.file] == own.files["expert.json"]
    assert manifest.ported.digest == own.digest == report.ported_from
    assert manifest.backbone.fingerprint == setting.next.manifest.fingerprint
    assert isinstance(judge_expert(ported.files), str)


def test_labelled_rows_carry_over_an_expert_whose_card_holds_none(setting) -> None:
    bare = msgspec.structs.replace(
        setting.expert.manifest,
        card=type(setting.expert.manifest.card)(kind="none"),
    )
    expert = msgspec.structs.replace(setting.expert, manifest=bare)
    with pytest.raises(redhost.UsageError, match="--rows"):
        port_expert(expert, old=setting.old, new=setting.next)
    rows = sums(200, seed=7)
    ported = port_expert(expert, old=setting.old, new=setting.next, rows=rows)
    assert (ported.manifest.card.kind, ported.manifest.card.gate) == ("vectors", 100)
    with pytest.raises(redhost.UsageError, match="'other'"):
        foreign = [redhost.Row(text="a", label="other")]
        port_expert(expert, old=setting.old, new=setting.next, rows=foreign)


def test_a_row_that_is_given_twice_counts_once(setting) -> None:
    rows = sums(80, seed=7)
    once, twice = (
        port_expert(setting.expert, old=setting.old, new=setting.next, rows=given, bound=-9.0)
        for given in (rows, [row for row in rows for _ in range(2)])
    )
    assert once.files == twice.files and once.report.rows == 40


def test_without_a_text_to_fit_on_it_is_refused_and_says_what_to_bring(setting) -> None:
    files, gate = setting.expert, "What is 1 plus 1?"
    rows = [CardRow(text=f"{gate[:-1]}{' ' * n}?", label="low", part="gate") for n in range(40)]
    card = write_rows([CardRow(text=rows[0].text, label="low", part="fit"), *rows])
    ref = msgspec.structs.replace(files.manifest.card, fit=1, gate=len(rows))
    bare = msgspec.structs.replace(
        files,
        manifest=msgspec.structs.replace(files.manifest, card=ref),
        files={**files.files, ref.file: card},
    )
    with pytest.raises(redhost.UsageError, match=r"found 0\. Bring texts with"):
        port_expert(bare, old=setting.old, new=setting.next, texts=[rows[1].text])


def test_the_sums_of_a_card_go_through_the_map(setting, tmp_path) -> None:
    rows, project = sums(900, seed=1), tmp_path / "red-expert-size"
    plan = ExpertPlan(id="size", backbone="tiny", form="linear", card="vectors")
    write_project(project, kind="expert", package_id="size", summary="how large a sum is")
    write_plan(project, plan)
    how = ExpertSettings(space="labels", epochs=5)
    train_package(project, plan, split_rows(rows), context=setting.old, settings=how)
    expert = read_expert(from_folder(project)).unwrap("the expert")
    given = sums(100, seed=7)
    ported = port_expert(expert, old=setting.old, new=setting.next, rows=given, bound=-9.0)
    before, after = (
        read_card(f.manifest, f.files).statistics
        for f in (expert, read_expert(ported.files).unwrap("the port"))
    )
    assert float(after.counts.sum()) == float(before.counts.sum()) + ported.manifest.card.fit
    # As near to the true sums as a map from so few texts comes: far nearer than the old sums.
    summed = [*split_rows(rows).summed, *sorted_rows(given)[: ported.manifest.card.fit * 2 : 2]]
    h = setting.next.encode([r.text for r in summed])
    z = torch.nn.functional.layer_norm(h, h.shape[-1:])
    true = Statistics.of_rows(z, [r.label for r in summed])
    assert torch.equal(true.counts, after.counts) and ported.report.sums
    away, old = ((s.means - true.means).norm() for s in (after, before))
    assert away < 0.5 * old


def sorted_rows(rows: Sequence[redhost.Row]) -> list[redhost.Row]:
    """Return rows in the order in which every second one is judged on."""
    return sorted(rows, key=lambda r: hashlib.sha256(r.text.encode()).hexdigest())


def test_sums_that_are_moved_are_those_of_moved_rows() -> None:
    generator = torch.Generator().manual_seed(3)
    z, more = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (40, 9))
    A, c = (torch.randn(s, generator=generator, dtype=torch.float64) for s in ((7, 5), (7,)))
    labels = ["ab"[n % 2] for n in range(40)]
    sums, none = Statistics.of_rows(z, labels), torch.zeros(7, 7, dtype=torch.float64)
    mapped, true = moved(sums, A, c, spread=none), Statistics.of_rows(z @ A.T + c, labels)
    for name in ("counts", "sums", "scatter"):
        torch.testing.assert_close(getattr(mapped, name), getattr(true, name))
    both = plus(sums, more, ["c"] * 9)
    every = Statistics.of_rows(torch.cat([z, more]), [*labels, *["c"] * 9])
    assert both.labels == every.labels == ("a", "b", "c")
    for name in ("counts", "sums", "scatter"):
        torch.testing.assert_close(getattr(both, name), getattr(every, name))


def noise(seed: int, width: int = 128) -> Encode:
    """Return an encoder that gives every text a random vector of its own."""

    def encode(texts: Sequence[str]) -> Tensor:
        rows = []
        for text in texts:
            digest = hashlib.sha256(f"{seed} {text}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
            rows.append(torch.randn(width, generator=generator))
        return torch.stack(rows)

    return encode


def shuffled(encode: Encode, seed: int) -> Encode:
    """Return an encoder that gives every text the vector of another."""

    def read(texts: Sequence[str]) -> Tensor:
        generator = torch.Generator().manual_seed(seed + len(texts))
        return encode(texts)[torch.randperm(len(texts), generator=generator)]

    return read


def narrowed(encode: Encode, dimensions: int) -> Encode:
    """Return an encoder of which all but a few dimensions are noise."""
    other = noise(dimensions)

    def read(texts: Sequence[str]) -> Tensor:
        h = other(texts)
        h[:, :dimensions] = encode(texts)[:, :dimensions]
        return h

    return read


def test_no_bad_pair_passes(setting) -> None:
    """Random encoders, vectors of other texts, and backbones of which hardly anything is left."""
    encode = setting.old.encode
    bad: dict[str, Encode] = {
        **{f"random {n}": noise(n) for n in range(8)},
        **{f"shuffled {n}": shuffled(encode, n) for n in range(8)},
        **{f"narrowed to {n}": narrowed(encode, n) for n in (0, 1, 2, 3, 4)},
        "wrecked": perturbed(setting.old, scale=3.0).encode,
        "lengths": lambda texts: torch.tensor([[float(len(t))] * 64 + [1.0] * 64 for t in texts]),
        "constant": lambda texts: torch.arange(128.0).repeat(len(texts), 1),
    }
    assert len(bad) >= 20
    for name, read in bad.items():
        new = replace(setting.next, encode=read)
        with pytest.raises(redhost.errors.HarmError, match="does not survive"):
            port_expert(setting.expert, old=setting.old, new=new)
            pytest.fail(name)


def test_what_a_map_cannot_carry_is_refused_by_name(setting) -> None:
    old, new = setting.old, setting.next
    ported = port_expert(setting.expert, old=old, new=new)
    again = read_expert(ported.files).unwrap("the port")
    with pytest.raises(redhost.UsageError, match="a port"):
        port_expert(again, old=new, new=old)
    with pytest.raises(BackboneMismatchError):
        port_expert(setting.expert, old=new, new=old)
    with pytest.raises(redhost.UsageError, match="as it is"):
        port_expert(setting.expert, old=old, new=old)
    folder = Path("plugins/red-expert-range1/src/red_expert_range1").resolve()
    writes_h = read_expert(from_folder(folder)).unwrap("range1")
    with pytest.raises(redhost.UsageError, match="labels of its own"):
        port_expert(writes_h, old=old, new=new)


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("temperature", 3.0, "ported_misfit"),
        ("id", "other", "ported_misfit"),
        ("labels", ("low", "high", "middle"), "ported_misfit"),
    ],
)
def test_a_port_is_the_expert_its_author_wrote(setting, field, value, code) -> None:
    ported = port_expert(setting.expert, old=setting.old, new=setting.next)
    forged = msgspec.structs.replace(ported.manifest, **{field: value})
    files = ported.files | {"expert.json": msgspec.json.encode(forged)}
    wrong = judge_expert(files)
    assert code in {v.code for v in wrong}


def test_ported_and_native_experts_compose_and_the_receipt_tells_which_is_which(
    setting, tmp_path
) -> None:
    from redhost_author.testing import backbone_project, expert_project

    old_backbone = backbone_project(tmp_path / "red-backbone-old", seed=0)
    new_backbone = backbone_project(tmp_path / "red-backbone-new", seed=1)
    old, new = (open_for_training(package_in(p)) for p in (old_backbone, new_backbone))
    expert = expert_project(tmp_path / "red-expert-moved", "moved", old_backbone)
    native = expert_project(
        tmp_path / "red-expert-native", "native", new_backbone, labels=("c", "d")
    )
    files = read_expert(from_folder(expert)).unwrap("moved")
    rows = [redhost.Row(text=f"moved {n}", label="ab"[n % 4 // 2 == 1]) for n in range(80)]
    ported = port_expert(files, old=old, new=new, rows=rows, bound=-9.0)
    ported.save(tmp_path / "ported")
    options = {"backbone": package_in(new_backbone)}
    folders = [tmp_path / "ported", package_in(native)]
    first = compose(experts=folders, **options)
    second = compose(experts=folders[::-1], **options)
    assert first.receipt.ported == {"moved": files.digest}
    assert first.receipt.experts.keys() == {"moved", "native"}
    assert all(d.before == d.after for d in first.receipt.experts.values())
    assert first.router_bytes == second.router_bytes
    h = new.encode([f"native {n}" for n in range(6)])
    redhost.testing.assert_bus_laws(first.composed.bus, h)
