"""Newcomers are excused what any labels would cost the others; who takes another's rows is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_author.training.packaging import CardFile, ExpertDraft, save_expert, vectors_card
from torch import Tensor

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.composition.gates import COPIED, NOISE, OVERLAP, TAKEN
from redhost.core.composition.harm import SURE
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import Previous, load_parts
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose_parts
from redhost.core.composition.refusal import accepted
from redhost.core.composition.select import Selection
from redhost.core.model.build import read_package
from redhost.core.routers.cards import gate_rows
from redhost.core.routers.domain_statistics import Statistics
from redhost.errors import HarmError
from redhost.registry.environment.status import check_packages
from redhost.registry.errors import HijackError
from redhost.registry.package.discover import from_folder
from redhost.registry.package.manifest import BackboneRef, Training

WIDTH, GATE = 16, 200
TEAMS = {"a": "0123", "b": "4567", "c": "89xy"}
SPREAD = 1.1
"""Standard deviation of the labels' means beside 1 of their rows: labels are confused at times."""


Rows = tuple[Tensor, list[str]]
"""Features ``(N, D)`` and their labels."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """What an expert is made of: the rows it learns, and those it shows.

    Each is equal to itself alone: what is made of it is made once.
    """

    rows: Rows
    fit: Rows
    gate: Rows
    sums: Rows
    times: float = 1.0
    loud: float = 1.0

    def shown(self, most: int) -> Material:
        """Return it with at most so many rows on the card."""
        step = -(-len(self.fit[1]) // most)
        fit, gate = ((h[::step], y[::step]) for h, y in (self.fit, self.gate))
        return replace(self, fit=fit, gate=gate)

    def map(self, change: Callable[[Rows], Rows]) -> Material:
        return replace(
            self,
            rows=change(self.rows),
            fit=change(self.fit),
            gate=change(self.gate),
            sums=change(self.sums),
        )


def draw(labels: str, count: int, *, world: int, seed: int, width: float = 1.0) -> Rows:
    """Return rows of labels' Gaussians; every world has means of its own."""
    names = "".join(TEAMS.values())
    generator = torch.Generator().manual_seed(world)
    means = SPREAD * torch.randn(len(names), WIDTH, generator=generator)
    generator.manual_seed(1000 * world + seed)
    index = torch.randint(len(labels), (count,), generator=generator).tolist()
    noise = torch.randn(count, WIDTH, generator=generator)
    at = torch.tensor([names.index(labels[k]) for k in index])
    return means[at] + width * noise, [f"label {labels[k]}" for k in index]


@cache
def honest(team: str, world: int) -> Material:
    seeds = range(10 * ord(team), 10 * ord(team) + 3)
    rows, fit, gate = (
        draw(TEAMS[team], n, world=world, seed=s)
        for n, s in zip((800, 200, GATE), seeds, strict=True)
    )
    return Material(rows=rows, fit=fit, gate=gate, sums=both(rows, fit))


def both(*parts: Rows) -> Rows:
    return torch.cat([h for h, _ in parts]), [y for _, ys in parts for y in ys]


def renamed(rows: Rows) -> Rows:
    return rows[0], [f"new {y}" for y in rows[1]]


def rotated(rows: Rows) -> Rows:
    names = [f"label {y}" for y in TEAMS["a"]]
    return rows[0], [names[(names.index(y) + 1) % len(names)] for y in rows[1]]


def shuffled(rows: Rows) -> Rows:
    order = torch.randperm(len(rows[1]), generator=torch.Generator().manual_seed(3)).tolist()
    return rows[0], [f"new {rows[1][k]}" for k in order]


def with_victims(share: int) -> Callable[[int], Material]:
    """Return honest material with every so-manieth row of team a under labels of its own."""

    def make(world: int) -> Material:
        c, a = honest("c", world), honest("a", world).map(renamed)
        parts = {
            n: both(getattr(c, n), (getattr(a, n)[0][::share], getattr(a, n)[1][::share]))
            for n in ("rows", "fit", "gate", "sums")
        }
        return Material(**parts)

    return make


def sums_of_a(world: int) -> Material:
    """Honest rows, and sums of team a's under the newcomer's own labels."""
    names = dict(zip(TEAMS["a"], TEAMS["c"], strict=True))
    h, ys = honest("a", world).sums
    return replace(honest("c", world), sums=(h, [f"label {names[y[-1]]}" for y in ys]))


def one_label(world: int) -> Material:
    """Team a's rows under one label, beside another of the newcomer's own."""
    c, a = honest("c", world), honest("a", world)
    one = a.map(lambda rows: (rows[0], ["new"] * len(rows[1])))
    names = ("rows", "fit", "gate", "sums")
    return Material(**{n: both(getattr(one, n), _some(getattr(c, n))) for n in names})


def drawn_anew(world: int) -> Material:
    """Rows of team a's domain that team a has not, under labels of its own."""
    sizes = zip((800, 200, GATE), range(7, 10), strict=True)
    rows, fit, gate = (draw(TEAMS["a"], n, world=world, seed=s) for n, s in sizes)
    return Material(rows=rows, fit=fit, gate=gate, sums=both(rows, fit)).map(renamed)


def beside(world: int) -> Material:
    """A neighbour: narrow labels, each two standard deviations off one of team a's."""

    def moved(rows: Rows) -> Rows:
        return rows[0] + 2.0 * torch.eye(WIDTH)[0], [f"next to {y}" for y in rows[1]]

    sizes = zip((800, 200, GATE), range(7, 10), strict=True)
    rows, fit, gate = (draw(TEAMS["a"], n, world=world, seed=s, width=0.4) for n, s in sizes)
    return Material(rows=rows, fit=fit, gate=gate, sums=both(rows, fit)).map(moved)


def _some(rows: Rows) -> Rows:
    return rows[0][::4], rows[1][::4]


HIJACKS: Mapping[str, Callable[[int], Material]] = {
    "rows of another's domain": lambda w: honest("a", w).map(renamed),
    "other rows of another's domain": drawn_anew,
    "labels of another's domain, rotated": lambda w: honest("a", w).map(rotated),
    "another's rows, labels at random": lambda w: honest("a", w).map(shuffled),
    "another's rows, one label": one_label,
    "half of another's rows among its own": with_victims(2),
    "a third of another's rows among its own": with_victims(3),
    "loud, on another's rows": lambda w: replace(honest("a", w).map(renamed), loud=30.0),
    "quiet, on another's rows": lambda w: replace(honest("a", w).map(renamed), loud=0.1),
    "everybody's rows": lambda w: Material(
        **{
            n: both(getattr(honest("a", w), n), getattr(honest("b", w), n))
            for n in ("rows", "fit", "gate", "sums")
        }
    ).map(renamed),
}


@cache
def hijack(name: str, world: int) -> Material:
    return HIJACKS[name](world)


def card_of(given: Material, norm: LayerNorm, labels: tuple[str, ...]) -> CardFile:
    summed = Statistics.of_rows(norm(given.sums[0]), given.sums[1])
    return vectors_card(
        fit_z=norm(given.fit[0]),
        fit_labels=given.fit[1],
        gate_h=given.gate[0],
        gate_labels=given.gate[1],
        labels=labels,
        eps=norm.eps,
        statistics=replace(
            summed,
            counts=summed.counts * given.times,
            sums=summed.sums * given.times,
            scatter=summed.scatter * given.times,
        ),
    )


@pytest.fixture(scope="module")
def package(backbone, manifest, tmp_path_factory) -> Callable[[str, Material], Path]:
    """Return what makes an expert's package of material."""
    norm = LayerNorm(width=WIDTH, eps=backbone.eps)

    @cache
    def build(expert_id: str, given: Material) -> Path:
        given = given.shown(250)
        labels = tuple(sorted({*given.rows[1]}))
        expert = train_expert(
            ExpertRows(h=given.rows[0], z=norm(given.rows[0]), answers=given.rows[1]),
            Readout(),
            labels=labels,
            settings=redhost_author.ExpertSettings(
                space="labels", form="linear", epochs=30, learning_rate=2e-2, weight_decay=0.0
            ),
        ).expert
        expert.temperature = 1 / given.loud
        card = card_of(given, norm, labels)
        project = tmp_path_factory.mktemp("expert")
        folder = redhost_author.write_project(
            project, kind="expert", package_id=expert_id, summary="labels of its own"
        )
        where = BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint)
        draft = ExpertDraft(
            expert=expert,
            id=expert_id,
            backbone=where,
            domain="rows of Gaussians",
            card=card,
            canary=norm(given.rows[0][:4]),
            training=Training(data="0" * 64, seed=0, epochs=30),
        )
        save_expert(folder, draft)
        return folder

    return build


Join = Callable[..., RecomposeResult]


@pytest.fixture(scope="module")
def join(backbone_folder) -> Join:
    """Return what composes folders beside a composition, as a host would, in memory."""
    where = from_folder(backbone_folder)
    files, plugins = read_package(where), redhost.plugins.Plugins(())

    def compose(folders: Sequence[Path], previous: redhost.ComposedModel | None = None, **options):
        statuses = check_packages(map(from_folder, folders), backbone=files.manifest)
        inputs = load_parts(
            Selection(package=where, files=files, statuses=statuses),
            plugins=plugins,
            cache=None,
            device="cpu",
            previous=Previous(model=previous),
        )
        wanted = RecomposeOptions(**{"router": "evidence", **options})
        return accepted(compose_parts(inputs, wanted))

    return compose


@pytest.fixture(scope="module")
def pairs(package, join) -> Callable[..., tuple[list[Path], redhost.ComposedModel]]:
    """Return what teams a and b have composed in a world, made once."""
    made: dict[tuple[int, str], tuple[list[Path], redhost.ComposedModel]] = {}

    def pair(world: int, router: str = "evidence") -> tuple[list[Path], redhost.ComposedModel]:
        if (world, router) not in made:
            folders = [package(team, honest(team, world)) for team in "ab"]
            made[world, router] = folders, join(folders, router=router).composed
        return made[world, router]

    return pair


@pytest.fixture(scope="module")
def newcomer(package, join, pairs) -> Callable[..., RecomposeResult]:
    """Return what lets material join teams a and b of a world."""

    def attempt(given: Material, world: int, **options) -> RecomposeResult:
        folders, before = pairs(world, options.get("router", "evidence"))
        return join([*folders, package("c", given)], before, **options)

    return attempt


def test_honest_newcomers_are_accepted_though_the_others_lose_by_them(newcomer) -> None:
    falls, tolerated = list[float](), max(0.01, 2 / GATE)
    for world in range(6):
        receipt = newcomer(honest("c", world), world, router="statistics").receipt
        accuracy = receipt.accuracy
        assert set(accuracy.excess) == {"a", "b"}
        for domain, found in accuracy.excess.items():
            assert accuracy.before is not None
            assert found.fall == pytest.approx(accuracy.before[domain] - accuracy.after[domain])
            assert found.excess == pytest.approx(found.fall - found.reference)
            assert 0 <= found.error < 0.05 and found.overlap < OVERLAP and found.taken < TAKEN
            # Of whole numbers d, E d² ≥ |E d|: no sample of them has a smaller standard error.
            least = abs(found.excess) - found.excess**2
            assert found.error >= (least / GATE) ** 0.5 - 1e-9
            falls.append(found.fall)
    assert sum(f > tolerated for f in falls) >= 4  # a gate without a reference would refuse these


@pytest.mark.parametrize("world", range(4))
def test_a_neighbour_in_the_midst_of_a_domain_is_let_in(newcomer, world) -> None:
    """Its rows lie where the domain's are densest, and it costs what the cards alone would."""
    result = newcomer(beside(world), world, router="statistics")
    excess = result.receipt.accuracy.excess["a"]
    assert excess.fall > max(0.01, 2 / GATE)  # without an excuse it would be refused
    assert excess.excess <= NOISE * excess.error < excess.fall
    assert excess.overlap - excess.blur < OVERLAP
    # Each of its rows is closer to a point of the domain's than four fifths of the domain's rows.
    points, _ = draw(TEAMS["a"], 400, world=world, seed=0, width=0.0)
    own, _ = draw(TEAMS["a"], 400, world=world, seed=0)
    densest = (own - points).norm(dim=1).quantile(0.2)
    beside_it = torch.cdist(beside(world).gate[0], points).min(dim=1).values
    assert (beside_it < densest).double().mean() > 3 * 0.2


@pytest.mark.parametrize("world", [0, 2])
@pytest.mark.parametrize("name", HIJACKS)
def test_who_takes_anothers_rows_is_refused(newcomer, name, world) -> None:
    material = hijack(name, world)
    with pytest.raises(HijackError) as caught:
        newcomer(material, world)
    assert "excess" in caught.value.reason and "overlap" in caught.value.reason
    found = newcomer(material, world, accept=True).receipt.accuracy.excess
    worst = max(found.values(), key=lambda e: max(e.fall, e.mass))
    assert max(worst.fall, worst.mass) > 0.02


@pytest.mark.parametrize("world", [0, 2])
def test_what_is_taken_and_its_mass_are_those_of_the_answers(pairs, newcomer, world) -> None:
    """By hand: rows surely right before that are wrong now, where the newcomer has most weight."""
    _, before = pairs(world)
    result = newcomer(hijack("loud, on another's rows", world), world, accept=True)
    after, taken = result.composed, []
    for domain, found in result.receipt.accuracy.excess.items():
        h, rows = gate_rows([after.cards[domain]], encode=before.backbone.encode)
        with torch.inference_mode():
            p, (now, alpha) = before.bus(h)[0], after.bus(h)
        each = torch.arange(len(rows))
        own = torch.tensor([before.bus.labels.index(r.label) for r in rows])
        then = torch.tensor([after.bus.labels.index(r.label) for r in rows])
        sure = (p.argmax(-1) == own) & (p.amax(-1) >= SURE)
        lost = (now.argmax(-1) != then) & (alpha.argmax(-1) == after.bus.columns.index("c"))
        taken.append(float((sure & lost).double().mean()))
        # Without those that the reference loses as well.
        assert taken[-1] - max(0.0, found.reference) - 0.05 <= found.taken <= taken[-1]
        drop = float((p[each, own].double() - now[each, then].double()).mean())
        assert found.mass == pytest.approx(drop, abs=1e-6)
    assert max(taken) > 0


@pytest.mark.parametrize("world", [0, 2])
@pytest.mark.parametrize("times", [1.0, 6.0])
def test_who_claims_anothers_sums_beside_its_own_rows_is_left_out(newcomer, times, world) -> None:
    [left] = newcomer(replace(sums_of_a(world), times=times), world).receipt.left_out
    assert left.id == "c" and "sums of rows like those it shows" in left.reason


def test_who_shows_rows_of_a_members_card_is_refused_though_nobody_loses(newcomer) -> None:
    copy = replace(honest("a", 0).map(renamed), loud=0.001)
    with pytest.raises(HijackError, match="shows rows of domain 'a'"):
        newcomer(copy, 0)
    found = newcomer(copy, 0, accept=True).receipt.accuracy.excess
    assert found["a"].copied == 1 and found["b"].copied == 0
    assert newcomer(drawn_anew(0), 0, accept=True).receipt.accuracy.excess["a"].copied == 0
    alike = replace(honest("a", 0), loud=0.001)  # under the labels that the member has for them
    assert newcomer(alike, 0, accept=True).receipt.accuracy.excess["a"].copied == 0


@pytest.mark.parametrize("world", [0, 2])
def test_who_says_it_has_several_times_as_many_rows_is_refused(newcomer, world) -> None:
    plain = newcomer(honest("c", world), world, router="ridge").receipt.accuracy.excess
    assert {e.claimed for e in plain.values()} == {0}  # as many as the others
    many = replace(honest("c", world), times=6.0)
    with pytest.raises(HijackError, match="the number of rows that a newcomer's card claims"):
        newcomer(many, world, router="ridge")
    found = newcomer(many, world, router="ridge", accept=True).receipt.accuracy.excess
    assert max(e.claimed for e in found.values()) > 0.02
    assert {i: e.reference for i, e in found.items()} == {
        i: pytest.approx(e.reference, abs=0.005) for i, e in plain.items()
    }


def test_a_prior_that_the_host_gives_leaves_nothing_to_claim(newcomer) -> None:
    many = replace(honest("c", 0), times=6.0)
    receipt = newcomer(many, 0, router="ridge", prior="uniform", accept=True).receipt
    assert {e.claimed for e in receipt.accuracy.excess.values()} == {0}


def test_the_domains_own_rows_overlap_wholly(newcomer) -> None:
    found = newcomer(drawn_anew(2), 2, accept=True).receipt.accuracy.excess
    assert found["a"].overlap == pytest.approx(1.0, abs=0.35) and found["b"].overlap < OVERLAP


def test_without_newcomers_there_is_no_excuse(pairs, join) -> None:
    folders, before = pairs(0)
    assert join(folders, before).receipt.accuracy.excess == {}
    assert join(folders[:1], before).receipt.accuracy.excess == {}
    assert join(folders).receipt.accuracy.excess == {}


# -- members that change -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def trios(package, join, pairs) -> Callable[[int], tuple[list[Path], redhost.ComposedModel]]:
    """Return what teams a, b and an honest c have composed in a world, made once."""
    made: dict[int, tuple[list[Path], redhost.ComposedModel]] = {}

    def trio(world: int) -> tuple[list[Path], redhost.ComposedModel]:
        if world not in made:
            folders = [*pairs(world)[0], package("c", honest("c", world))]
            made[world] = folders, join(folders, accept=True).composed
        return made[world]

    return trio


@pytest.fixture(scope="module")
def update(package, join, trios) -> Callable[..., RecomposeResult]:
    """Return what replaces team c's expert in a composition of all three."""

    def attempt(given: Material, world: int, **options) -> RecomposeResult:
        folders, before = trios(world)
        return join([*folders[:2], package("c", given)], before, **options)

    return attempt


@pytest.mark.parametrize("world", [0, 2])
@pytest.mark.parametrize("name", HIJACKS)
def test_who_takes_anothers_rows_by_an_update_is_refused(update, name, world) -> None:
    with pytest.raises(HijackError):
        update(hijack(name, world), world)


def test_an_update_that_shows_rows_of_a_members_card_is_refused_though_nobody_loses(update) -> None:
    copy = replace(honest("a", 0).map(renamed), loud=0.001)
    with pytest.raises(HijackError, match="shows rows of domain 'a'"):
        update(copy, 0)


def test_an_update_may_not_claim_several_times_as_many_rows(package, join, pairs) -> None:
    folders, _ = pairs(0)
    plain = [*folders, package("c", honest("c", 0))]
    before = join(plain, router="ridge", accept=True).composed
    many = [*folders, package("c", replace(honest("c", 0), times=6.0))]
    with pytest.raises(HijackError, match="the number of rows that a newcomer's card claims"):
        join(many, before, router="ridge")
    larger = join(many, before, router="ridge", accept=True).composed
    fewer = [*folders, package("c", replace(honest("c", 0), times=5.9))]
    found = join(fewer, larger, router="ridge", accept=True).receipt.accuracy.excess
    assert {e.claimed for e in found.values()} == {0}  # it had as many before


def retrained(world: int) -> Material:
    """Other rows of team c's domain, under its labels."""
    sizes = zip((800, 200, GATE), range(17, 20), strict=True)
    rows, fit, gate = (draw(TEAMS["c"], n, world=world, seed=s) for n, s in sizes)
    return Material(rows=rows, fit=fit, gate=gate, sums=both(rows, fit))


def with_a_new_label(world: int) -> Material:
    """Team c's rows, one label of which is split into two."""

    def split(rows: Rows) -> Rows:
        return rows[0], [
            f"{y} {'n' if h[0] > 0 else 's'}" if y[-1] == "8" else y
            for h, y in zip(*rows, strict=True)
        ]

    return honest("c", world).map(split)


def with_other_weights(world: int) -> Material:
    return replace(honest("c", world), loud=1.05)


@pytest.mark.parametrize("world", range(6))
@pytest.mark.parametrize("change", [retrained, with_a_new_label, with_other_weights])
def test_an_honest_update_is_accepted_and_excused_nothing(update, change, world) -> None:
    accuracy = update(change(world), world, tolerance=4.0).receipt.accuracy
    assert set(accuracy.excess) == {"a", "b"}
    for found in accuracy.excess.values():
        assert (found.reference, found.error) == (0, 0) and found.excess == found.fall
        assert found.copied == 0 and found.claimed == 0


def relabelled_half(world: int) -> Material:
    """Team c's rows, two labels of which are drawn at random; its gate rows too."""

    def change(rows: Rows) -> Rows:
        generator = torch.Generator().manual_seed(len(rows[1]))
        drawn = torch.randint(2, (len(rows[1]),), generator=generator).tolist()
        names = ("label 8", "label 9")
        return rows[0], [names[n] if y in names else y for y, n in zip(rows[1], drawn, strict=True)]

    return honest("c", world).map(change)


def with_easy_gate(world: int) -> Material:
    """A worse expert of team c's domain, whose card shows only rows that it answers right."""
    half = relabelled_half(world)
    gate = honest("c", world).gate
    easy = [n for n, y in enumerate(gate[1]) if y not in {"label 8", "label 9"}]
    return replace(half, gate=(gate[0][easy], [gate[1][n] for n in easy]))


@pytest.mark.parametrize("world", [0, 1])
def test_an_update_that_loses_rows_of_the_card_before_is_refused(update, world) -> None:
    with pytest.raises(HarmError, match="of its former card") as refused:
        update(with_easy_gate(world), world)
    assert not isinstance(refused.value, HijackError)
    accuracy = update(with_easy_gate(world), world, accept=True).receipt.accuracy
    assert accuracy.updated["c"].rows == GATE and accuracy.rows["c"] < GATE
    assert accuracy.updated["c"].before - accuracy.updated["c"].after > 0.1
    assert accuracy.withdrawn == {}


def test_labels_that_an_update_gives_up_are_a_warning(update, trios, join) -> None:
    receipt = update(with_a_new_label(0), 0, tolerance=4.0).receipt
    assert receipt.accuracy.updated["c"].rows < GATE
    assert receipt.health is not None
    (warning,) = (w for w in receipt.health.warnings if w.startswith("labels given up"))
    assert "'c'" in warning and "'label 8'" in warning and "'label 9'" not in warning
    folders, before = trios(0)
    again = join(folders, before).receipt
    assert again.accuracy.updated == {} and again.health is not None
    assert not any(w.startswith("labels given up") for w in again.health.warnings)


def test_a_member_that_did_not_change_is_nobodys_newcomer(trios, join) -> None:
    folders, before = trios(0)
    assert join(folders, before).receipt.accuracy.excess == {}


# -- many small falls ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def falling(package, backbone_folder, trios) -> Callable[..., RecomposeResult]:
    """Return what composes team c's next version, after what others have lost to earlier ones."""
    where, plugins = from_folder(backbone_folder), redhost.plugins.Plugins(())
    files = read_package(where)

    def attempt(fallen: dict[str, float], **options) -> RecomposeResult:
        folders, before = trios(2)
        changed = [*folders[:2], package("c", with_victims(12)(2))]
        statuses = check_packages(map(from_folder, changed), backbone=files.manifest)
        inputs = load_parts(
            Selection(package=where, files=files, statuses=statuses),
            plugins=plugins,
            cache=None,
            device="cpu",
            previous=Previous(model=before, fallen=fallen),
        )
        wanted = RecomposeOptions(router="evidence", **options)
        return accepted(compose_parts(inputs, wanted))

    return attempt


def test_falls_below_the_tolerance_add_up_until_they_are_accepted(falling) -> None:
    """Each version of c brings a few rows of a's domain, too few to be refused for it."""
    accuracy = falling({}, tolerance=4.0).receipt.accuracy
    fall = accuracy.before["a"] - accuracy.after["a"]
    assert 0 < fall <= 0.04 and accuracy.excess["a"].copied < COPIED
    assert accuracy.fallen == {"a": pytest.approx(fall), "b": 0}  # c's own expert changed
    with pytest.raises(HarmError, match="domain 'a' would have fallen by"):
        falling({"a": 0.0401 - fall}, tolerance=4.0)
    later = falling({"a": 0.0401 - fall, "c": 1.0}, tolerance=8.0).receipt.accuracy
    assert later.fallen == {"a": pytest.approx(0.0401), "b": 0}
    assert falling({"a": 0.0401 - fall}, accept=True).receipt.accuracy.fallen == {}
