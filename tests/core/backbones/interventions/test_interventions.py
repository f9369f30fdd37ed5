"""A fourth intervention: a plugin's form that scales a block's MLP, in one file, and no other."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from redhost_peft.graft import moved_by
from redhost_peft.tap import compute_features

import redhost
from redhost.core.backbones.encoder import blocks_of
from redhost.core.backbones.interventions import Intervention, InTrunk, PassEnded, hooked
from redhost.core.backbones.interventions.layout import (
    bus_part,
    check_inside,
    read_tokens,
    with_layout,
)
from redhost.core.bus.experts import InTrunkExpert
from redhost.registry.environment import trust

TEXTS = ["red 1 a", "green 22 c", "blue 3", "red 45 b"]

PLUGIN = """
from dataclasses import dataclass

import torch

import redhost
from redhost.plugins import blocks_of
from redhost.plugins import hooked


@dataclass(frozen=True, eq=False)
class ScaledMlp:
    by: torch.Tensor
    lowest: int = 1
    changes_h: bool = True
    rowwise: bool = True
    key: str = ""

    def apply(self, encoder):
        mlp = blocks_of(encoder.model)[1][self.lowest].mlp
        return hooked(encoder, (mlp, lambda module, inputs, output: output * self.by))


class Scale(redhost.Expert):
    def __init__(self, by):
        super().__init__(space="hidden", labels=("a", "b"))
        self.by = torch.nn.Parameter(by)

    def forward(self, rows):
        return rows * self.by

    def intervention(self, backbone):
        return ScaledMlp(self.by)


def make(tensors):
    return Scale(tensors["by"])


@redhost.hookimpl
def redhost_register_forms(register):
    register("myplugin:scale", make)
"""


@pytest.fixture(scope="module")
def form() -> dict[str, Any]:
    """The plugin's own classes, by name."""
    names: dict[str, Any] = {"__name__": "myplugin"}
    exec(compile(PLUGIN, "myplugin.py", "exec", dont_inherit=True), names)
    return names


@pytest.fixture(scope="module")
def learnt(form, backbone, texts_of) -> torch.Tensor:
    """The vector, trained through the blocks above on texts about red."""
    by = torch.ones(backbone.width, requires_grad=True)
    data = texts_of("red", 24)
    place = {label: n for n, label in enumerate(backbone.labels)}
    optimizer = torch.optim.Adam([by], lr=0.1)
    losses, loss = [], torch.zeros(())
    for _ in range(15):
        optimizer.zero_grad()
        for index, ids in backbone.trunk.batches([t for t, _ in data]):
            h = moved_by(backbone.trunk, ids, form["ScaledMlp"](by))[: len(index)]
            target = torch.tensor([place[data[n][1]] for n in index])
            loss = torch.nn.functional.cross_entropy(h @ backbone.classifier.T, target)
            loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    assert losses[-1] < losses[0]
    return by.detach()


@pytest.fixture
def installed_scale(installed, build_expert, learnt, tmp_path, monkeypatch):
    """Beside the toy experts, one whose form only the plugin can make."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    folder = build_expert(tmp_path / "scale", "red", expert_id="scaled")
    manifest = json.loads((folder / "expert.json").read_text())
    z = torch.randn(2, len(learnt))
    tensors = {"weights": {"by": learnt}, "canary": {"z": z, "delta": z * learnt}}
    for part, content in tensors.items():
        data = safetensors.torch.save(content)
        (folder / manifest[part]["file"]).write_bytes(data)
        manifest[part]["sha256"] = hashlib.sha256(data).hexdigest()
    manifest |= {"form": "myplugin:scale", "rank": 0, "off_domain": None, "norm_bound": None}
    (folder / "expert.json").write_text(json.dumps(manifest))
    installed.install(folder.parents[1])
    return installed


def install_plugin(environment, code: str = PLUGIN) -> None:
    environment.install_code(
        "myplugin", {"__init__.py": code}, {"redhost.plugins": "myplugin = myplugin"}
    )
    trust.trust("myplugin")


def scaled_by_hand(trunk, texts, by: torch.Tensor) -> torch.Tensor:
    """Return h of a trunk whose block was changed with plain torch."""
    block = blocks_of(trunk.model)[1][1]
    hook = block.mlp.register_forward_hook(lambda _m, _i, output: output * by)
    try:
        return trunk.encode(texts)
    finally:
        hook.remove()


def test_a_plugin_brings_a_form_that_acts_inside_a_block(
    installed_scale, learnt, tmp_path: Path
) -> None:
    install_plugin(installed_scale)
    home = tmp_path / "home"
    with redhost.Host.open(home, backbone="toy") as host:
        assert "scaled" in host.recompose(accept=True).experts
        composed, record = host.composed, host.generations.load(1)
        answers = host.predict(TEXTS)
    assert record.providers == {"myplugin": trust.digest_of("myplugin")}
    bus, trunk = composed.bus, composed.backbone.trunk
    part = bus.parts()[bus.ids.index("scaled")]
    assert isinstance(part, InTrunkExpert) and isinstance(part.step, InTrunk)
    # One at full weight answers as the trunk with its block changed by hand.
    wide = composed.backbone.encode(TEXTS)
    moved = scaled_by_hand(trunk, TEXTS, learnt)
    assert (moved - bus.layout.base(wide)).abs().max() > 1e-3
    assert torch.equal(
        bus.alone(wide, bus.norm(wide), bus.ids.index("scaled")),
        torch.softmax(moved @ composed.backbone.classifier.T, -1),
    )
    # Read back from the store it is the same, to the last bit.
    with redhost.Host.open(home, backbone="toy") as host:
        assert host.predict(TEXTS) == answers
    # Changed code must not be given rows that the old code computed.
    [segment] = bus.layout.segments
    assert segment.readers == ("scaled",) and trust.digest_of("myplugin") in segment.key


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (("return ScaledMlp(self.by)", "return None"), "form_unknown", "found NoneType"),
        (("return ScaledMlp(self.by)", "return 1 / 0"), "form_unknown", "ZeroDivisionError"),
        (('space="hidden"', 'space="logits"'), "tap_order", "found 'logits'"),
        (
            (
                "return ScaledMlp(self.by)",
                'raise redhost.errors.ContractError("x", expected="a block 9", found="3")',
            ),
            "tap_unknown",
            "expected a block 9, found 3",
        ),
        (
            (
                'return Scale(tensors["by"])',
                'raise redhost.errors.ContractError("x", expected="2 rows", found="3")',
            ),
            "not_computable",
            "form: expected 2 rows, found 3",
        ),
    ],
)
def test_a_form_that_cannot_act_here_is_left_out_with_its_reason(
    installed_scale, tmp_path, change, code, reason
) -> None:
    install_plugin(installed_scale, PLUGIN.replace(*change))
    with redhost.Host.open(tmp_path / "home", backbone="toy") as host:
        left_out = {x.id: x for x in host.recompose(accept=True).left_out}
    assert left_out["scaled"].code == code and reason in left_out["scaled"].reason


def test_where_text_is_generated_only_what_works_row_by_row_acts_inside(
    form, backbone, generation
) -> None:
    import dataclasses

    generating = dataclasses.replace(backbone, task=generation)
    scale, by = form["Scale"], torch.ones(backbone.width)
    for options in ({}, {"rowwise": False}, {"changes_h": False}):

        class Other(scale):
            def intervention(self, backbone, options=options):
                return form["ScaledMlp"](self.by, **options)

        found = check_inside(Other(by), generating)
        assert (found is None) is (not options)
        assert found is None or (found.code, found.field) == ("tap_unknown", "form")


@pytest.mark.parametrize("lowest", [0, 2])
def test_every_block_is_run_once_below_and_above_the_lowest(bare, lowest: int) -> None:
    class Shift:
        changes_h, rowwise, key = True, False, ""

        def __init__(self) -> None:
            self.lowest = lowest

        def apply(self, encoder):
            def shift(_module, _inputs, output):
                return output + 1.0

            return hooked(encoder, (blocks_of(encoder.model)[1][lowest].mlp, shift))

    assert isinstance(Shift(), Intervention)
    passes = [0] * 3

    def count(n: int):
        def hook(*_: object) -> None:
            passes[n] += 1

        return hook

    blocks = blocks_of(bare.trunk.model)[1]
    plain = bare.encode(TEXTS[:1])
    with hooked(bare.trunk, *((b.mlp, count(n)) for n, b in enumerate(blocks))):
        found = compute_features(Shift(), bare.trunk, TEXTS[:1])
    assert passes == [1] * 3
    with Shift().apply(bare.trunk):
        moved = bare.encode(TEXTS[:1])
    assert (moved - plain).abs().max() > 1e-3 and torch.equal(found, moved)


def test_one_that_only_reads_gives_what_it_ended_the_pass_with(bare) -> None:
    """A reader of another kind than a tap: the states before a block's MLP, for one expert only."""

    class Stop:
        lowest, changes_h, rowwise, key = 1, False, False, ""

        def apply(self, encoder):
            def stop(_module, _inputs, output):
                raise PassEnded(output)

            return hooked(encoder, (blocks_of(encoder.model)[1][1].input_layernorm, stop))

    class Reader(redhost.Expert):
        def intervention(self, backbone):
            return Stop()

        def forward(self, z):
            return z

    one, other = (Reader(space="hidden", labels=("a",)) for _ in "ab")
    layout = with_layout(bare, {"one": one, "other": other}).layout
    assert layout is not None
    assert [(c.readers, c.normalised) for c in layout.segments] == [
        (("one",), True),
        (("other",), True),
    ]
    assert bus_part(one, bare) is one
    expected = [
        bare.trunk.pool(
            blocks_of(bare.trunk.model)[1][1].input_layernorm(  # type: ignore[operator]
                bare.trunk.model(
                    input_ids=torch.tensor([bare.trunk.tokens(t)]), output_hidden_states=True
                ).hidden_states[1]
            )
        )
        for t in TEXTS
    ]
    ids = torch.tensor([bare.trunk.tokens(TEXTS[0])])
    normalised = torch.nn.functional.layer_norm(expected[0], expected[0].shape[-1:])
    torch.testing.assert_close(read_tokens(one, bare, ids), normalised, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        layout.segments[0].compute(TEXTS),  # type: ignore[misc]
        torch.cat(expected),
        rtol=1e-4,
        atol=1e-5,
    )
