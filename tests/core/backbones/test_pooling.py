"""Pooling: every mode by its formula, dense layers row by row, and both in the fingerprint."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import redhost
from redhost.core.backbones.encoder import TextEncoder
from redhost.core.backbones.engines import EngineEncoder
from redhost.core.backbones.pooling import MODES, Dense, Pooling
from redhost.registry.package.manifest import Features

TEXTS = ["red 1 a", "green 22 c", "x", "a longer text of blue 2 e " * 4]

FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda s: s[0],
    "last": lambda s: s[len(s) - 1],
    "max": lambda s: torch.stack([column.max() for column in s.T]),
    "mean": lambda s: sum(s) / len(s),  # type: ignore[arg-type,return-value]
    "mean-sqrt": lambda s: sum(s) / len(s) ** 0.5,  # type: ignore[arg-type,return-value]
    "weighted-mean": lambda s: (
        sum(n * x for n, x in enumerate(s, 1)) / sum(range(1, len(s) + 1))  # type: ignore[return-value]
    ),
}


def dense(out: int, width: int, *, seed: int = 0, **options: str) -> Dense:
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        "weight": torch.randn(out, width, generator=generator),
        "bias": torch.randn(out, generator=generator),
    }
    return Dense(tensors=tensors, activation=options.get("activation", "tanh"))  # type: ignore[arg-type]


def encoder(like: redhost.Backbone, pooling: Pooling, **options: object) -> TextEncoder:
    trunk = like.trunk
    return TextEncoder(
        model=trunk.model,
        tokenizer=trunk.tokenizer,
        pooling=pooling,
        stated=trunk.stated,
        features=options.get("features"),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_its_formula_in_any_company(bare, mode) -> None:
    trunk = encoder(bare, Pooling(mode=mode))
    h = trunk.encode(TEXTS)
    assert torch.equal(torch.cat([trunk.encode([text]) for text in TEXTS]), h)
    expected = torch.stack([FORMULAS[mode](states) for states in trunk.states(TEXTS)])
    torch.testing.assert_close(h, expected, atol=1e-5, rtol=1e-5)


def test_dense_layers_follow_row_by_row(bare) -> None:
    width = bare.width
    layers = dense(7, width), dense(3, 7, seed=1, activation="relu")
    trunk = encoder(bare, Pooling(mode="mean", dense=layers))
    h = trunk.encode(TEXTS)
    assert trunk.width == 3
    assert torch.equal(torch.cat([trunk.encode([text]) for text in reversed(TEXTS)]), h.flip(0))
    expected = encoder(bare, Pooling(mode="mean")).encode(TEXTS)
    for layer, sigma in zip(layers, (torch.tanh, torch.relu), strict=True):
        expected = sigma(nn.functional.linear(expected, *layer.tensors.values()))
    torch.testing.assert_close(h, expected)
    assert torch.equal(EngineEncoder(trunk).encode(TEXTS), h)


def test_dense_layers_read_the_last_of_several_states(bare) -> None:
    last = bare.trunk.model.config.num_hidden_layers
    pooling = Pooling(mode="mean", dense=(dense(7, bare.width),))
    trunk = encoder(bare, pooling, features=Features(layers=(last, 0)))
    assert trunk.width == 7 + bare.width
    plain = encoder(bare, Pooling(mode="mean"), features=Features(layers=(last, 0)))
    assert torch.equal(trunk.encode(TEXTS)[:, 7:], plain.encode(TEXTS)[:, bare.width :])
    expected = nn.functional.layer_norm(encoder(bare, pooling).encode(TEXTS), (7,))
    torch.testing.assert_close(trunk.encode(TEXTS)[:, :7], expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(redhost.UsageError, match="for dense layers"):
        encoder(bare, pooling, features=Features(layers=(0, 1)))


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ({"weight": (7, 9), "bias": (7,)}, r"found.*\(7, 9\)"),
        ({"weight": (7, 16), "bias": (6,)}, r"\(6, 16\).*found.*\(7, 16\)"),
        ({"weight": (7, 16)}, "'bias'.*found"),
        ({"weight": (7, 16), "bias": (7,), "residual": (7,)}, "found.*'residual'"),
        ({"weight": (7,), "bias": (7,)}, r"found.*\(7,\)"),
    ],
)
def test_a_dense_layer_that_does_not_fit_is_refused(bare, shapes, found) -> None:
    tensors = {name: torch.ones(shape) for name, shape in shapes.items()}
    pooling = Pooling(mode="mean", dense=(Dense(tensors=tensors, activation="tanh"),))
    with pytest.raises(redhost.errors.IntegrityError, match=found):
        encoder(bare, pooling)


def test_fingerprint_sees_modes_and_dense_layers(bare) -> None:
    layers = (
        (),
        (dense(7, bare.width),),
        (dense(7, bare.width, seed=1),),
        (dense(7, bare.width, activation="relu"),),
        (dense(7, bare.width), dense(7, 7)),
    )
    poolings = [Pooling(mode=mode) for mode in MODES]
    poolings += [Pooling(mode="mean", dense=each) for each in layers]
    prints = [bare.with_trunk(encoder(bare, each)).fingerprint() for each in poolings]
    assert len({*prints}) == len(prints) - 1  # the mean without dense layers is there twice
    given = TextEncoder(
        model=bare.trunk.model,
        tokenizer=bare.trunk.tokenizer,
        pooling="mean",
        stated=bare.trunk.stated,
    )
    assert bare.with_trunk(given).fingerprint() == prints[len(MODES)]
