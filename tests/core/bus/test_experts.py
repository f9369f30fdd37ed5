"""Experts: training one alone, writing it, reading the same bits back, checking what it says."""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
import redhost_author
import safetensors.torch
import torch
from redhost_author.training.context import open_backbone
from redhost_author.training.expert import ExpertRows, init_expert, train_expert
from redhost_author.training.packaging import ExpertDraft, save_expert, texts_card
from redhost_author.verifying import Verifier

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.evidence import off_domain_norm
from redhost.core.bus.experts import (
    ClassifierExpert,
    Linear,
    LowRank,
    build_expert,
    expert_from_tensors,
    linear,
)
from redhost.core.model.canary import check_canary
from redhost.core.model.verify import measure_off_domain
from redhost.core.types import CardRow
from redhost.registry.errors import ContractError, UsageError
from redhost.registry.package.forms import FORMS
from redhost.registry.package.manifest import BackboneRef, SpanRule, Training
from redhost.registry.package.readers import read_backbone, read_expert

LABELS = tuple("abcdef")
OUT = {"hidden": 16, "logits": 6, "labels": 2}


@pytest.fixture(scope="module")
def world(backbone):
    """Features of one domain and of another."""
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    h = backbone.encode([f"red {n}" for n in range(30)])
    others = backbone.encode([f"green {n}" for n in range(30)])
    return norm, h, ["ab"[n % 2] for n in range(30)], others, backbone.classifier


def train(world, **settings) -> redhost.Expert:
    norm, h, answers, others, classifier = world
    return train_expert(
        ExpertRows(h=h, z=norm(h), answers=answers),
        Readout(classifier=classifier, labels=LABELS),
        labels=("a", "b"),
        settings=redhost_author.ExpertSettings(
            **{"rank": 8, "epochs": 200, "learning_rate": 1e-2, **settings}
        ),
        background=norm(others),
    ).expert


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("space", ["hidden", "logits"])
def test_an_untrained_expert_changes_nothing(world, form, space) -> None:
    norm, h, _, _, classifier = world
    settings = redhost_author.ExpertSettings(form=form, space=space)
    out = 16 if space == "hidden" else len(LABELS)
    expert = init_expert(settings, width=16, out=out, labels=LABELS)
    assert torch.equal(expert.logits(h, norm(h), classifier), h @ classifier.T)


@pytest.mark.parametrize("space", OUT)
def test_alone_it_answers_in_the_space_that_it_writes_to(space: str) -> None:
    g = torch.Generator().manual_seed(3)
    h, z, classifier = (torch.randn(n, 16, generator=g, dtype=torch.float64) for n in (5, 5, 6))
    W, b = (torch.randn(OUT[space], *d, generator=g, dtype=torch.float64) for d in ((16,), ()))
    expert = Linear(W=W, b=b, space=space, labels=("a", "b") if space == "labels" else ())
    delta = z @ W.T + b
    logits = expert.logits(h, z, classifier)
    if space == "hidden":
        assert torch.allclose(logits, (h + delta) @ classifier.T)
    else:
        assert torch.allclose(logits, delta if space == "labels" else h @ classifier.T + delta)
    if space == "hidden":  # a lower precision of W_c is that of the product alone
        low = expert.logits(h, z, classifier.bfloat16())
        assert low.dtype == torch.float64
        assert torch.equal(low, ((h + delta).bfloat16() @ classifier.bfloat16().T).double())


def test_rank_defaults_to_a_quarter_of_the_width() -> None:
    assert init_expert(
        redhost_author.ExpertSettings(), width=64, out=64, labels=LABELS
    ).U.shape == (
        16,
        64,
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("space", ["hidden", "logits"])
def test_every_form_learns_its_domain(world, form, space) -> None:
    norm, h, answers, _, classifier = world
    expert = train(world, form=form, space=space, off_domain=0.0)
    best = expert.logits(h, norm(h), classifier).argmax(-1)
    assert (
        sum(LABELS[int(i)] == y for i, y in zip(best, answers, strict=True)) >= 20
    )  # ten would be chance
    assert not any(p.requires_grad for p in expert.parameters())


def test_training_is_deterministic_for_a_seed(world) -> None:
    one, two, other = train(world, noise=0.1), train(world, noise=0.1), train(world, seed=1)
    assert torch.equal(one.V, two.V) and not torch.equal(one.V, other.V)


def test_the_penalty_makes_an_expert_leave_others_alone(world) -> None:
    norm, _, _, others, classifier = world
    free, tame = train(world, off_domain=0.0), train(world, off_domain=1.0)
    z = norm(others)
    with torch.inference_mode():
        assert off_domain_norm(tame, z, classifier) < 0.2 * off_domain_norm(free, z, classifier)


def test_a_label_the_backbone_cannot_answer_is_refused(world) -> None:
    norm, h, _, _, classifier = world
    with pytest.raises(UsageError, match="found z"):
        train_expert(
            ExpertRows(h=h, z=norm(h), answers=["z"] * len(h)),
            Readout(classifier=classifier, labels=LABELS),
            labels=("z",),
            settings=redhost_author.ExpertSettings(),
        )


def forms() -> dict[str, redhost.Expert]:
    """One expert of each form for each space, with weights out of thin air."""
    made = {}
    for (name, form), space in itertools.product(FORMS.items(), OUT):
        g = torch.Generator().manual_seed(0)
        shapes = form.shapes(space, width=16, rank=4, out=OUT[space])
        tensors = {n: torch.randn(shape, generator=g) for n, shape in shapes.items()}
        temperature = 2.5 if space == "labels" else 1.0
        made[f"{name} {space}"] = expert_from_tensors(
            tensors, space=space, activation="silu", labels=("a", "b"), temperature=temperature
        )
        assert made[f"{name} {space}"].state_dict().keys() == tensors.keys()
    return made


@pytest.mark.parametrize("name", forms())
def test_saving_and_reading_changes_nothing(name, tmp_path) -> None:
    expert = forms()[name]
    z = torch.randn(5, 16, generator=torch.Generator().manual_seed(9))
    draft = ExpertDraft(
        expert=expert,
        id="x",
        backbone=BackboneRef(name="toy", fingerprint="0" * 64),
        domain="d",
        card=texts_card([CardRow(text="t", label="a", part="fit")]),
        canary=z,
        training=Training(data="0", seed=0, epochs=0),
    )
    manifest = save_expert(tmp_path, draft)
    files = read_expert({p.name: p.read_bytes() for p in tmp_path.iterdir()}).unwrap("it")
    again = build_expert(files.manifest, safetensors.torch.load(files.weights))
    assert again is not None and torch.equal(again(z), expert(z))
    assert (again.space, again.labels, again.temperature) == (
        expert.space,
        expert.labels,
        expert.temperature,
    )
    assert check_canary(manifest, again, files.canary) is None
    assert Verifier().expert(files, backbone=None) == ()


def activated(name: str, x: torch.Tensor) -> torch.Tensor:
    return {"silu": x * torch.sigmoid(x), "relu": x.clamp(min=0), "identity": x}[name]


@pytest.mark.parametrize("activation", ["silu", "relu", "identity"])
def test_what_each_set_of_tensors_computes(activation: str) -> None:
    """Against the formulas at the head of the module, written out."""
    g = torch.Generator().manual_seed(1)
    z, U, V = (torch.randn(s, generator=g) for s in ((3, 16), (4, 16), (16, 4)))
    u, v, W, b = (torch.randn(s, generator=g) for s in ((4,), (16,), (2, 16), (2,)))

    def of(**tensors: torch.Tensor) -> torch.Tensor:
        return expert_from_tensors(tensors, space="hidden", activation=activation, labels=())(z)

    torch.testing.assert_close(of(U=U, V=V), activated(activation, z @ U.T) @ V.T)
    torch.testing.assert_close(of(U=U, u=u, V=V), activated(activation, z @ U.T + u) @ V.T)
    torch.testing.assert_close(of(U=U, u=u, V=V, v=v), activated(activation, z @ U.T + u) @ V.T + v)
    torch.testing.assert_close(of(W=W, b=b), z @ W.T + b)
    torch.testing.assert_close(
        of(U=U, V=V, W=W, b=b), (z + activated(activation, z @ U.T) @ V.T) @ W.T + b
    )


@pytest.mark.parametrize("name", forms())
def test_units_are_folded_into_what_is_written(name: str) -> None:
    expert, other = forms()[name], forms()[name]
    other.to_units(scale=3.0, shift=-2.0)
    z = torch.randn(5, 16, generator=torch.Generator().manual_seed(9))
    shift = -2.0 if {"v", "b"} & expert.state_dict().keys() else 0.0  # without a bias, scale alone
    torch.testing.assert_close(other(z), 3.0 * expert(z) + shift, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("names", ["U V", "W b", "U V W b"])
def test_the_temperature_is_1_unless_it_was_fitted(names: str) -> None:
    shapes = {"U": (4, 16), "V": (16, 4), "W": (2, 16), "b": (2,)}
    tensors = {name: torch.zeros(shapes[name]) for name in names.split()}
    made = expert_from_tensors(tensors, space="labels", activation="relu", labels=("a", "b"))
    kind, parts = type(made), dict(made.named_parameters())
    assert made.temperature == 1.0
    options = {} if kind is Linear else {"activation": "relu"}
    options |= {} if kind is ClassifierExpert else {"space": "labels"}
    assert kind(**parts, **options, labels=("a", "b")).temperature == 1.0


def test_biases_that_a_form_lacks_are_zeros_of_their_size() -> None:
    bare, full = forms()["residual hidden"], forms()["mlp hidden"]
    assert isinstance(bare, LowRank) and isinstance(full, LowRank)
    assert [bias.tolist() for bias in bare.biases()] == [[0.0] * 4, [0.0] * 16]
    for bias, expected in zip(full.biases(), (full.u, full.v), strict=True):
        assert torch.equal(bias, expected) and not bias.requires_grad


def test_an_expert_inside_the_trunk_hands_on_what_it_reads() -> None:
    from redhost.core.bus.experts import InTrunkExpert

    step = forms()["residual hidden"]
    grafted, z = InTrunkExpert(step), torch.randn(2, 16)
    assert grafted(z) is z and grafted.step is step
    assert (grafted.space, grafted.labels) == ("hidden", ("a", "b"))
    assert grafted.precision == torch.float32
    assert InTrunkExpert(step.to(torch.float64)).precision == torch.float64


@pytest.mark.parametrize("name", ["residual hidden", "linear labels"])
def test_a_mapped_expert_reads_its_own_backbone(name: str) -> None:
    """Δ(A z + c), from 24 dimensions here to the 16 that it was trained on."""
    from redhost.core.bus.experts import MappedExpert

    step = forms()[name]
    A, c = torch.linspace(-1, 1, 16 * 24).view(16, 24), torch.linspace(0, 3, 16)
    mapped, z = MappedExpert(step, A=A, c=c), torch.linspace(-2, 2, 48).view(2, 24)
    torch.testing.assert_close(mapped(z), step(z @ A.T + c))
    assert (mapped.space, mapped.labels, mapped.temperature) == (
        *(step.space, step.labels, step.temperature),
    )
    own = name.endswith("labels")
    assert mapped.labels_among(["x", "y"]) == (("a", "b") if own else ["x", "y"])


def test_an_expert_says_its_labels_and_its_temperature() -> None:
    expert = redhost.Expert(space="labels", labels=["a", "b"])
    assert (expert.labels, expert.temperature, expert.precision) == (("a", "b"), 1.0, torch.float32)
    for name, made in forms().items():
        assert (made.labels, made.space) == (("a", "b"), name.split()[1])
        assert made.temperature == (2.5 if made.space == "labels" else 1.0)
    for call in (lambda: expert(torch.zeros(1, 16)), lambda: expert.to_units(scale=1.0, shift=0.0)):
        with pytest.raises(NotImplementedError):
            call()


def test_weights_of_another_precision_are_read_as_float32(expert_folders) -> None:
    files = read_expert({p.name: p.read_bytes() for p in expert_folders["red"].iterdir()}).unwrap(
        "it"
    )
    tensors = safetensors.torch.load(files.weights)
    made = build_expert(files.manifest, {n: t.to(torch.float64) for n, t in tensors.items()})
    assert made is not None and made.precision == torch.float32
    assert made.labels == files.manifest.labels


def test_tensors_of_other_shapes_are_refused(expert_folders) -> None:
    files = read_expert({p.name: p.read_bytes() for p in expert_folders["red"].iterdir()}).unwrap(
        "it"
    )
    with pytest.raises(ContractError) as found:
        build_expert(files.manifest, {"U": torch.zeros(3, 16), "V": torch.zeros(16, 3)})
    assert str(found.value) == (
        "expert 'red': expected {'U': (8, 16), 'V': (16, 8)}, found {'U': (3, 16), 'V': (16, 3)}"
    )
    for tensors in ({}, {"V": torch.tensor(1.0)}):
        with pytest.raises(ContractError, match=r"expected \{'U': \(8, 16\), 'V': \(16, 8\)\}"):
            build_expert(files.manifest, tensors)


def test_what_is_done_off_the_domain_is_measured_again(expert_folders, backbone_folder, tmp_path):
    folder = expert_folders["red"]
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    backbone = read_backbone({p.name: p.read_bytes() for p in backbone_folder.iterdir()}).unwrap(
        "it"
    )
    manifest = json.loads(files["expert.json"])
    _, live, background = open_backbone(backbone_folder)
    loaded = read_expert(files).unwrap("it")
    expert = build_expert(loaded.manifest, safetensors.torch.load(loaded.weights))
    norm = LayerNorm(width=live.width, eps=live.eps)
    measured = measure_off_domain(
        expert, "red", live, background, read=lambda texts: norm(live.encode(texts))
    )
    for options, codes in ((measured, []), (measured / 2, ["off_domain"])):
        text = json.dumps({**manifest, "off_domain": options}).encode()
        checked = read_expert({**files, "expert.json": text}).unwrap("it")
        assert [v.code for v in Verifier().expert(checked, backbone=backbone)] == codes


def test_evidence_is_loud_at_home_and_silent_away(world) -> None:
    from redhost.core.bus.evidence import confidence_of

    norm, h, _, others, classifier = world
    expert = train(world, off_domain=1.0)
    home = confidence_of(expert, expert(norm(h)), classifier)
    away = confidence_of(expert, expert(norm(others)), classifier)
    delta = expert(norm(h)) @ classifier.T
    torch.testing.assert_close(home, delta.norm(dim=1))
    assert home.mean() > 3 * away.mean()


def test_evidence_of_own_labels_is_the_energy_score() -> None:
    from redhost.core.bus.evidence import confidence_of

    expert = forms()["linear labels"]
    z = torch.randn(5, 16)
    expected = torch.logsumexp(expert(z) / 2.5, -1)
    torch.testing.assert_close(confidence_of(expert, expert(z), None), expected)


@pytest.mark.parametrize(("rank", "labels", "shorter"), [(8, 3, True), (3, 8, False)])
def test_products_are_multiplied_out_where_that_is_less_to_read(rank, labels, shorter) -> None:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    generator = torch.Generator().manual_seed(0)
    expert = ClassifierExpert(
        U=random(rank, 16),
        V=random(16, rank),
        W=random(labels, 16),
        b=random(labels),
        activation="gelu",
        labels=[str(n) for n in range(labels)],
        temperature=2.0,
    )
    z, folded = random(20, 16), expert.folded()
    assert (folded is not expert) is shorter
    assert folded.labels == expert.labels and folded.temperature == expert.temperature
    assert folded.space == expert.space == "labels" and folded.writes.own_labels
    assert folded.state_dict().keys() == (set() if shorter else expert.state_dict().keys())
    torch.testing.assert_close(folded(z), expert(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
def test_stacked_weights_are_as_many_products(biased: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, W, b = (torch.randn(*s, generator=generator) for s in ((4, 3), (5, 2, 3), (5, 2)))
    found = linear(x, W, b if biased else None)
    expected = [x @ w.T + (bias if biased else 0) for w, bias in zip(W, b, strict=True)]
    assert found.shape == (5, 4, 2)
    torch.testing.assert_close(found, torch.stack(expected))


def test_what_an_author_fitted_is_taken_from_the_manifest(expert_folders) -> None:
    files = {p.name: p.read_bytes() for p in expert_folders["red"].iterdir()}
    manifest = read_expert(files).unwrap("it").manifest
    expert = Linear(W=torch.zeros(2, 4), b=torch.zeros(2), space="labels", labels=("a", "b"))
    expert.described_by(manifest)
    assert expert.thresholds == expert.rules == ()
    rules = (SpanRule(threshold=0.3, cost=2.0), SpanRule(threshold=0.4))
    fitted = msgspec.structs.replace(manifest, thresholds=(0.3, 0.4), span_rules=rules)
    expert.described_by(fitted)
    assert expert.thresholds == (0.3, 0.4)
    assert [(r.threshold, r.cost) for r in expert.rules] == [(0.3, 2.0), (0.4, 0.0)]
