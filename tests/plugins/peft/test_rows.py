"""Texts that go on side by side, each with its own adapter: the bits of a pass of its own."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redhost_peft.lora import LoraExpert, linears_of
from redhost_peft.rows import (
    encode_with_states,
    moved_together,
    shares_passes,
    tile_at,
)
from redhost_peft.tap import Tap, compute_features

import redhost
from redhost.core.backbones.encoder import blocks_of
from redhost.core.backbones.interventions.layout import (
    Inside,
    encode_chosen,
    with_layout,
)

from .test_lora import TARGETS, encoder_of, expert_of, model_of, save

OPTIONS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "top": ((2,), {"r": 3}),
    "upper": ((1, 2), {"use_dora": True}),
    "all": ((0, 1, 2), {"use_rslora": True, "lora_bias": True}),
    "biases": ((2,), {"bias": "lora_only"}),
    "norms": ((1,), {"modules_to_save": ["1.attention.output.LayerNorm", "1.input_layernorm"]}),
}
"""Adapter → its blocks, and what else it is."""
LENGTHS = [1, 2, 5, 15, 16, 17, 40]
TEXTS = [
    " ".join(["red", "green", "blue", "a", "1"][(n * k) % 5] for k in range(n)) for n in LENGTHS
]


@pytest.fixture(scope="module", params=["bert", "llama"])
def adapted(
    request: pytest.FixtureRequest, bare: redhost.Backbone, tmp_path_factory
) -> tuple[redhost.Backbone, dict[str, LoraExpert]]:
    """A backbone and an expert of each kind."""
    kind, vocabulary = request.param, len(bare.trunk.tokenizer.get_vocab())
    backbone = dataclasses.replace(bare, trunk=encoder_of(model_of(kind, vocabulary), bare))
    experts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (blocks, options) in OPTIONS.items():
            folder: Path = tmp_path_factory.mktemp(name)
            model = copy.deepcopy(backbone.trunk.model)
            targets = [
                n
                for n in linears_of(model)
                if n.endswith(tuple(TARGETS[kind])) and any(f".{b}." in f".{n}" for b in blocks)
            ]
            files = save(model, folder, target_modules=targets, **options)
            experts[name] = expert_of(files)
    return backbone, experts


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_each_text_has_the_bits_of_a_pass_of_its_own(adapted, data) -> None:
    backbone, experts = adapted
    trunk = backbone.trunk
    acts = {name: expert.intervention(backbone) for name, expert in experts.items()}
    pairs = st.tuples(st.sampled_from(TEXTS), st.sampled_from([*acts]))
    chosen = data.draw(st.lists(pairs, min_size=1, max_size=12))
    texts = [text for text, _ in chosen]
    with torch.inference_mode():
        h, states = encode_with_states(trunk, texts, [*acts.values()])
        assert torch.equal(h, trunk.encode(texts))
        rows = moved_together(trunk, texts, [acts[n] for _, n in chosen], states)
        alone = [compute_features(acts[n], trunk, [text]) for text, n in chosen]
    assert torch.equal(rows, torch.cat(alone))
    assert torch.equal(trunk.encode(texts), h)  # nothing is left behind


def test_rows_that_want_an_adapter_get_it_and_no_other_is_run(adapted, monkeypatch) -> None:
    backbone, experts = adapted
    wide = with_layout(backbone, experts)
    assert wide.layout is not None and shares_passes(wide.trunk)
    makers = [s.compute for s in wide.layout.segments]
    assert all(isinstance(m, Inside) and m.shared for m in makers)
    texts = TEXTS * 12  # more than are held at a time
    wanted = torch.zeros(len(texts), len(makers), dtype=torch.bool)
    wanted[torch.arange(0, len(texts), 2), torch.arange(0, len(texts), 2) % len(makers)] = True
    starts = iter(range(0, len(texts), 64))

    def choose(h: torch.Tensor) -> torch.Tensor:
        assert not h[:, wide.trunk.width :].any()
        start = next(starts)
        return wanted[start : start + len(h)]

    with torch.inference_mode():
        made, whole = encode_chosen(wide, texts, choose), wide.encode(texts)
    width = wide.trunk.width
    assert torch.equal(made[:, :width], whole[:, :width])
    for s in range(len(makers)):
        part = slice(width * (s + 1), width * (s + 2))
        own = wanted[:, s]
        assert torch.equal(made[own, part], whole[own, part]) and whole[own, part].any()
        assert not made[~own, part].any()


@pytest.mark.parametrize("count", [1, 9])
def test_a_pass_over_the_upper_blocks_runs_no_lower_one(adapted, count) -> None:
    backbone, experts = adapted
    trunk, acts = backbone.trunk, experts["top"].intervention(backbone)
    calls = dict.fromkeys(range(3), 0)

    def counted(n: int) -> Callable[..., None]:
        def call(*_: object) -> None:
            calls[n] += 1

        return call

    blocks = blocks_of(trunk.model)[1]
    products = [
        next(m for m in block.modules() if isinstance(m, torch.nn.Linear)) for block in blocks
    ]
    hooks = [p.register_forward_hook(counted(n)) for n, p in enumerate(products)]
    texts = TEXTS[:3] * count
    with torch.inference_mode():
        _, states = encode_with_states(trunk, texts, [acts])
        before = dict(calls)
        moved_together(trunk, texts, [acts] * len(texts), states)
    for hook in hooks:
        hook.remove()
    assert before[0] == before[1] == before[2] > 0
    assert (calls[0], calls[1]) == (before[0], before[1]) and calls[2] > before[2]


def test_states_are_stored_where_adapters_begin_and_nowhere_else(adapted) -> None:
    backbone, experts = adapted
    trunk = backbone.trunk
    acts = {name: expert.intervention(backbone) for name, expert in experts.items()}
    assert (acts["all"].lowest, acts["upper"].lowest, acts["top"].lowest) == (0, 1, 2)
    with torch.inference_mode():
        for names, blocks in ((["all"], set()), (["top", "upper", "all"], {0, 1})):
            _, states = encode_with_states(trunk, TEXTS[:3], [acts[n] for n in names])
            assert [{*held} for held in states] == [blocks] * 3
        for text, held in zip(TEXTS, states, strict=False):
            for block, rows in held.items():
                alone = compute_features(Tap(block=block), trunk, [text])
                torch.testing.assert_close(rows.mean(0, keepdim=True), alone)


@pytest.mark.parametrize(
    ("device", "packed", "states", "shares"),
    [
        ("cpu", True, True, True),
        ("cuda", True, True, False),
        ("cpu", False, True, False),
        ("cpu", True, False, False),
    ],
)
def test_passes_are_shared_in_packs_with_torch_on_a_cpu(device, packed, states, shares) -> None:
    encoder: Any = SimpleNamespace(
        device=torch.device(device), tiles=SimpleNamespace(is_packed=packed), has_states=states
    )
    assert shares_passes(encoder) is shares


def test_a_text_has_the_tile_of_the_section_that_it_begins_in() -> None:
    pack: Any = SimpleNamespace(sections=((16, 16), (64, 32), (1, 1)))
    assert [tile_at(pack, start) for start in (0, 15, 16, 79, 80)] == [16, 16, 32, 32, 1]


def test_texts_that_begin_at_one_block_go_on_together(adapted, monkeypatch) -> None:
    backbone, experts = adapted
    trunk, sizes = backbone.trunk, list[int]()
    acts = [experts[name].intervention(backbone) for name in ("top", "upper")] * 4
    texts = [*TEXTS, TEXTS[0]]
    with torch.inference_mode():
        _, states = encode_with_states(trunk, texts, acts)
        expected = [compute_features(a, trunk, [t]) for a, t in zip(acts, texts, strict=True)]
        encode = trunk.encode

        def counted(texts: list[str], **options: Any) -> torch.Tensor:
            sizes.append(len(texts))
            return encode(texts, **options)

        monkeypatch.setattr(trunk, "encode", counted)
        rows = moved_together(trunk, texts, acts, states)
    assert torch.equal(rows, torch.cat(expected)) and sizes == [4, 4]
