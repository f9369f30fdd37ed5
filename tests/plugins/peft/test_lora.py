"""An adapter inside the blocks is PEFT's own model, bit for bit."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redhost_peft.lora import Lora, LoraExpert, LoraLayer, adapter_key, build_lora, lora_from_files
from redhost_peft.peft_adapter import CONFIG, WEIGHTS, read_adapter
from redhost_peft.tap import compute_features
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from transformers import AutoConfig, AutoModel

import redhost
from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.interventions import states_with
from redhost.core.backbones.interventions.layout import bus_part, with_layout
from redhost.core.bus.bus import Bus, LayerNorm
from redhost.core.bus.experts import Linear
from redhost.core.bus.signals import BusRouter
from redhost.registry.errors import ContractError, ManifestError
from redhost.registry.package.manifest import Features
from redhost.registry.package.readers import read_expert

from .peft_files import files as peft_files
from .peft_files import heads

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 64}
MODELS: dict[str, dict[str, Any]] = {
    "bert": SIZES,
    "llama": SIZES | {"num_key_value_heads": 2},
    "gpt2": {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64},
}
TARGETS = {
    "bert": ["query", "value", "attention.output.dense", "intermediate.dense"],
    "llama": ["q_proj", "v_proj", "o_proj", "down_proj"],
    "gpt2": ["c_attn", "mlp.c_proj"],
}
SAVED = {  # norms, an embedding, a linear layer, a part of a block with all that is in it
    "bert": ["LayerNorm", "word_embeddings", "output.dense", "layer.1.output", "layer.2"],
    "llama": ["norm", "embed_tokens", "gate_proj", "layers.1.mlp", "layers.2"],
    "gpt2": ["ln_1", "wpe", "mlp.c_fc", "h.1.attn", "h.2"],
}
TEXTS = ["red 1 a", "green 22 c", "blue 3", "red 45 b", "red 1 b", "x", "green 2"]


@pytest.fixture(autouse=True)
def without_warnings() -> Iterator[None]:
    """PEFT warns of settings that have no effect."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def model_of(kind: str, vocabulary: int) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, vocab_size=vocabulary, **MODELS[kind])
    return AutoModel.from_config(config, dtype=torch.float32)


def encoder_of(model: Any, like: redhost.Backbone) -> TextEncoder:
    return TextEncoder(model=model, tokenizer=like.trunk.tokenizer, pooling="mean")


def save(model: Any, folder: Path, **options: Any) -> tuple[bytes, bytes]:
    """Wrap a model with PEFT, give every weight of the adapter something to do, and save it."""
    from peft import LoraConfig, get_peft_model

    made = get_peft_model(model, LoraConfig(**options))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in made.named_parameters():
            if (
                "lora_" in name
                or ".modules_to_save." in name
                or ("bias" in name and p.requires_grad)
            ):
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    made.save_pretrained(folder)
    return (folder / CONFIG).read_bytes(), (folder / WEIGHTS).read_bytes()


def expert_of(files: tuple[bytes, bytes], **options: Any) -> LoraExpert:
    adapter = read_adapter(*files).unwrap("the adapter")
    options = {"space": "hidden", "labels": ("a", "b"), **options}
    made = LoraExpert(adapter, load_tensors(files[1]), key=adapter_key(*files), **options)
    return made.requires_grad_(False).eval()


def peft_of(model: Any, folder: Path) -> Any:
    """Return PEFT's model of an adapter, without PEFT's wrapper."""
    from peft import PeftModel

    made = PeftModel.from_pretrained(model, folder).eval().base_model.model
    for module in made.modules():  # a block that is saved whole has a copy, which packs do not see
        if hasattr(module, "config"):
            module.config = model.config
    return made


@st.composite
def configs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Any adapter that can be imported."""
    kind = draw(st.sampled_from([*MODELS]))
    names = draw(st.lists(st.sampled_from(TARGETS[kind]), min_size=1, unique=True))
    options: dict[str, Any] = {
        "r": draw(st.integers(1, 9)),
        "lora_alpha": draw(st.integers(1, 40)),
        "use_rslora": draw(st.booleans()),
        "use_dora": draw(st.booleans()),
        "bias": draw(st.sampled_from(["none", "lora_only", "all"])),
        "lora_dropout": draw(st.sampled_from([0.0, 0.3])),
        "fan_in_fan_out": kind == "gpt2",
        "target_modules": draw(st.sampled_from([names, f".*({'|'.join(names)})"])),
    }
    if not options["use_dora"] and draw(st.booleans()):
        options["lora_bias"] = True
    if draw(st.booleans()):
        options["rank_pattern"] = {names[0]: draw(st.integers(1, 9))}
    if draw(st.booleans()):
        options["alpha_pattern"] = {names[-1]: draw(st.integers(1, 40))}
    if isinstance(options["target_modules"], list) and kind == "bert" and draw(st.booleans()):
        options["layers_to_transform"] = draw(st.lists(st.integers(0, 2), min_size=1, unique=True))
    if draw(st.booleans()):
        options["modules_to_save"] = [draw(st.sampled_from(SAVED[kind]))]
    return kind, options


@settings(
    deadline=None, max_examples=32, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=configs())
def test_any_adapter_computes_what_peft_does_to_the_last_bit(bare, tmp_path_factory, case) -> None:
    kind, options = case
    folder = tmp_path_factory.mktemp("adapter")
    vocabulary = len(bare.trunk.tokenizer.get_vocab())
    files = save(model_of(kind, vocabulary), folder, **options)
    trunk = encoder_of(model_of(kind, vocabulary), bare)
    backbone = dataclasses.replace(bare, trunk=trunk)
    acts = expert_of(files).intervention(backbone)
    theirs = encoder_of(peft_of(model_of(kind, vocabulary), folder), bare)
    [(_, ids)] = list(trunk.batches(TEXTS[:1]))
    with torch.no_grad():  # the plain kernels
        plain, ours = trunk.hidden_states(ids), states_with(trunk, ids, acts)
        assert torch.equal(ours, theirs.hidden_states(ids))
        assert not torch.equal(ours, plain)
    rows = compute_features(acts, trunk, TEXTS)  # in tiles, from the lowest block on
    expected = theirs.encode(TEXTS)
    if options["use_dora"]:  # PEFT computes the norms in each pass, of as many rows
        torch.testing.assert_close(rows, expected)
    else:
        assert torch.equal(rows, expected)
    alone = [compute_features(acts, trunk, [text]) for text in TEXTS]
    assert torch.equal(torch.cat(alone), rows)
    assert torch.equal(trunk.hidden_states(ids), plain)


@pytest.fixture(scope="module")
def bert(bare: redhost.Backbone) -> redhost.Backbone:
    """A BERT with a random classifier."""
    trunk = encoder_of(model_of("bert", len(bare.trunk.tokenizer.get_vocab())), bare)
    classifier = torch.randn(2, trunk.width, generator=torch.Generator().manual_seed(1))
    return dataclasses.replace(bare, trunk=trunk, classifier=classifier, labels=("a", "b"))


@pytest.fixture(scope="module")
def top(bert: redhost.Backbone, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """An adapter of its last block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = tmp_path_factory.mktemp("top")
        model = copy.deepcopy(bert.trunk.model)
        return save(model, folder, target_modules=["query"], layers_to_transform=[2], bias="all")


class Fixed(BusRouter):
    """Weights that a test chooses."""

    def __init__(self, *weights: float) -> None:
        super().__init__()
        self.logits = torch.tensor(weights).log()

    def forward(self, z: torch.Tensor, signals: object = None) -> torch.Tensor:
        return self.logits.expand(len(z), -1)


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_at_weight_one_the_answer_is_pefts_and_at_zero_the_backbones(bert, top, weight) -> None:
    experts = {"a": expert_of(top), "b": Linear(
        W=torch.randn(64, 64), b=torch.zeros(64), space="hidden", labels=("a", "b")
    )}  # fmt: skip
    wide = with_layout(bert, experts)
    bus = Bus(
        bert,
        norm=LayerNorm(width=64, eps=1e-5),
        router=Fixed(weight, 0.0, 1 - weight),
        experts={i: bus_part(e, bert) for i, e in experts.items()},
        backbone_column=True,
        layout=wide.layout,
    )
    with torch.inference_mode():
        h = wide.encode(TEXTS)
        moved = compute_features(experts["a"].intervention(bert), bert.trunk, TEXTS)
        plain = bert.encode(TEXTS)
        # Control: a sum of differences loses last bits.
        assert not torch.equal(plain + (moved - plain), moved)
        right = moved if weight else plain
        assert torch.equal(bus.residual(h, bus.norm(h), bus.weights(bus.norm(h))), right)
        assert torch.equal(bus(h)[0], torch.softmax(right @ bert.classifier.T, -1))


def test_unknown_rows_of_a_card_are_left_as_they_are(bert, top) -> None:
    layout = with_layout(bert, {"a": expert_of(top)}).layout
    h = layout.pad(bert.encode(TEXTS))
    [(_, moved)] = layout.moved(h)
    assert torch.equal(moved, layout.base(h))


def test_blocks_below_the_lowest_are_run_without_it(bert, top) -> None:
    only = expert_of(top)
    assert only.intervention(bert).lowest == 0  # biases of the embeddings
    tensors = {n: t for n, t in load_tensors(top[1]).items() if ".lora_" in n}
    bare_config = top[0].replace(b'"bias": "all"', b'"bias": "none"')
    acts = expert_of((bare_config, save_tensors(tensors))).intervention(bert)
    assert acts.lowest == 2
    with acts.apply(bert.trunk):
        whole = bert.encode(TEXTS)
    assert torch.equal(compute_features(acts, bert.trunk, TEXTS), whole)


def test_the_encoder_is_left_as_it_was_even_if_a_pass_fails(bert, top) -> None:
    before, acts = bert.fingerprint(), expert_of(top).intervention(bert)
    modules = [(set(vars(m)), len(m._forward_hooks)) for m in bert.trunk.model.modules()]
    tiles = bert.trunk.tiles
    with pytest.raises(ZeroDivisionError), acts.apply(bert.trunk):
        assert bert.fingerprint() != before  # its biases
        raise ZeroDivisionError
    assert bert.fingerprint() == before and bert.trunk.tiles is tiles
    assert [(set(vars(m)), len(m._forward_hooks)) for m in bert.trunk.model.modules()] == modules


def test_a_saved_module_that_it_has_not_or_not_all_of_is_refused_by_name(bert, tmp_path) -> None:
    model = copy.deepcopy(bert.trunk.model)
    raw, weights = save(model, tmp_path, target_modules=["query"], modules_to_save=["LayerNorm"])
    assert expert_of((raw, weights)).intervention(bert).lowest == 0  # that of the embeddings
    tensors = load_tensors(weights)
    norm = "base_model.model.embeddings.LayerNorm.weight"
    head = {"base_model.model.final.LayerNorm.weight": torch.ones(64)}
    cases = [
        (tensors | head, "'final.LayerNorm', which is none of them: a head.*comes from the pack"),
        ({n: t for n, t in tensors.items() if n != norm}, "none for 'embeddings.LayerNorm.weight'"),
        (tensors | {norm: torch.ones(65)}, r"a weight of \(65\), found \(64\)"),
        (
            tensors | {norm.replace("weight", "scale"): torch.ones(64)},
            "'embeddings.*' with a scale",
        ),
    ]
    for made, message in cases:
        with pytest.raises(ContractError, match=message):
            expert_of((raw, save_tensors(made))).intervention(bert)


def test_experts_of_one_adapter_share_its_rows_and_others_do_not(bert, top) -> None:
    head = {"W": torch.zeros(2, 64), "b": torch.zeros(2)}
    own = expert_of(top, space="labels", labels=("c", "d"), head=head)
    other = expert_of((top[0] + b"\n", top[1]))
    experts = {"one": expert_of(top), "two": expert_of(top), "own": own, "other": other}
    layout = with_layout(bert, experts).layout
    found = {s.readers: (s.key, s.moved, s.normalised) for s in layout.segments}
    key = adapter_key(*top)
    assert found == {
        ("one", "two"): (key, True, False),
        ("own",): (key, False, True),
        ("other",): (adapter_key(top[0] + b"\n", top[1]), True, False),
    }


def test_an_adapter_of_another_architecture_is_refused_by_name(bare, top) -> None:
    with pytest.raises(ContractError, match=r"encoder\.layer\.2\.attention\.self\.query"):
        expert_of(top).intervention(bare)
    assert isinstance(expert_of(top), LoraExpert) and not issubclass(Lora, LoraExpert)


def test_on_wide_features_it_moves_states_and_no_token_counts(bert, top) -> None:
    trunk = TextEncoder(
        model=bert.trunk.model,
        tokenizer=bert.trunk.tokenizer,
        pooling="mean",
        features=Features(layers=(0, 3), tokens=32),
    )
    wide = dataclasses.replace(bert, trunk=trunk)
    plain, moved = (
        trunk.encode(TEXTS),
        compute_features(expert_of(top).intervention(wide), trunk, TEXTS),
    )
    assert torch.equal(moved[:, -32:], plain[:, -32:]) and plain[:, -32:].any(-1).all()
    assert not torch.equal(moved[:, :-32], plain[:, :-32])


def test_an_adapter_of_a_model_with_a_head_names_modules_below_its_encoder(bert, tmp_path) -> None:
    """Such a model's modules have a prefix that the encoder's have not."""
    model = copy.deepcopy(bert.trunk.model)
    raw, weights = save(
        model, tmp_path, target_modules=["query"], modules_to_save=["LayerNorm"], bias="lora_only"
    )
    start = "base_model.model."
    below = {n.replace(start, f"{start}bert."): t for n, t in load_tensors(weights).items()}
    plain = expert_of((raw, weights)).intervention(bert)
    prefixed = expert_of((raw, save_tensors(below))).intervention(bert)
    assert len(prefixed.own) == len(plain.own) == 17 and prefixed.lowest == plain.lowest == 0
    assert [(id(m), n) for m, n, _ in prefixed.own] == [(id(m), n) for m, n, _ in plain.own]
    rows, expected = (compute_features(a, bert.trunk, TEXTS) for a in (prefixed, plain))
    assert torch.equal(rows, expected)


def test_one_layer_by_hand() -> None:
    """y = x Wᵀ + s (x Aᵀ) Bᵀ for LoRA; DoRA's c = m / ‖W + s B A‖, row by row."""
    A, B = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0], [0.0], [1.0]])
    W = torch.tensor([[0.0, 4.0], [0.0, 2.0], [2.0, 3.0]])
    plain = LoraLayer(A=A, B=B, b=None, m=None, scale=1.5)
    assert (plain.A.bias, plain.B.bias, plain.m) == (None, None, None)
    assert plain.magnitude(W) is None
    x, output = torch.tensor([[1.0, 5.0]]), torch.tensor([[10.0, 20.0, 30.0]])
    assert plain(x, output, None, None).tolist() == [[13.0, 20.0, 31.5]]
    m = torch.tensor([10.0, 6.0, 23.04**0.5])
    dora = LoraLayer(A=A, B=B, b=torch.ones(3), m=m, scale=1.5)
    assert dora.B.bias is not None and dora.B.bias.tolist() == [1, 1, 1]
    without = LoraLayer(A=A, B=B, b=None, m=m, scale=1.5)
    # W + s B A has the rows (3, 4), (0, 2) and (3.5, 3).
    c = without.magnitude(W)
    assert c is not None and c.shape == (1, 3)
    torch.testing.assert_close(c, torch.tensor([[2.0, 3.0, (23.04 / 21.25) ** 0.5]]))


def test_on_a_cpu_an_experts_weights_are_not_copied(bert, top) -> None:
    expert = expert_of(top)
    acts = expert.intervention(bert)
    assert [layer for layer, _, _ in acts.layers] == [*expert.layers]
    assert {id(p) for _, _, p in acts.own} == {id(p) for p in (*expert.biases, *expert.saved)}


def test_with_a_head_it_answers_labels_and_without_one_it_moves_states(top) -> None:
    W, b = torch.randn(2, 64).half(), torch.randn(2).half()
    own = expert_of(top, space="labels", labels=("c", "d"), head={"W": W, "b": b})
    z = torch.randn(3, 64)
    torch.testing.assert_close(own(z), z @ W.float().T + b.float())
    assert (own.space, own.labels) == ("labels", ("c", "d"))
    assert expert_of(top)(z) is z


def test_tensors_of_half_precision_are_computed_in_float32(bert, tmp_path) -> None:
    model = copy.deepcopy(bert.trunk.model)
    raw, weights = save(
        model, tmp_path, target_modules=["query"], modules_to_save=["LayerNorm"], bias="lora_only"
    )
    half = {name: tensor.half() for name, tensor in load_tensors(weights).items()}
    expert = expert_of((raw, save_tensors(half)))
    assert {p.dtype for p in expert.parameters()} == {torch.float32}
    assert len(expert.saved) == 14 and len(expert.layers) == len(expert.biases) == 3
    assert set(half) - set(expert.tensors()) == {n for n in half if ".lora_" not in n}
    for name, tensor in expert.tensors().items():
        assert torch.equal(tensor, half[name].float())


def test_a_package_becomes_its_expert(package) -> None:
    change = {"writes.space": "labels", "temperature": 2.5}
    read = read_expert(package(change, head__safetensors=heads())).unwrap("it")
    expert = build_lora(read.manifest, read.files)
    assert (expert.space, expert.labels) == ("labels", tuple(read.manifest.labels))
    assert expert.temperature == 2.5 and expert.key == adapter_key(*peft_files())
    assert expert.W is not None and torch.equal(expert(torch.ones(1, 16)), torch.full((1, 3), 17.0))
    weights = load_tensors(peft_files()[1])
    assert expert.tensors().keys() == weights.keys()
    assert all(torch.equal(t, weights[n]) for n, t in expert.tensors().items())
    read = read_expert(package()).unwrap("it")
    expert = build_lora(read.manifest, read.files)
    assert (expert.space, expert.W, expert.temperature) == ("hidden", None, 1.0)
    read = read_expert(package({"rank": 5})).unwrap("it")
    with pytest.raises(ContractError):
        build_lora(read.manifest, read.files)


def test_two_files_become_an_expert() -> None:
    raw, weights = peft_files()
    parts = {CONFIG: raw, WEIGHTS: weights}
    expert = lora_from_files(parts, who="it", space="hidden", labels=("a",))
    assert (expert.space, expert.labels, expert.W) == ("hidden", ("a",), None)
    assert expert.key == adapter_key(raw, weights)
    head = {"W": torch.ones(1, 16), "b": torch.zeros(1)}
    own = lora_from_files(parts, who="it", space="labels", labels=("a",), head=head)
    assert own.W is not None and float(own(torch.ones(1, 16))) == 16
    with pytest.raises(ManifestError, match="the adapter of a test"):
        lora_from_files(
            {**parts, CONFIG: b"{}"}, who="the adapter of a test", space="hidden", labels=()
        )
