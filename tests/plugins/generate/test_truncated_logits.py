"""Sketches of rows: exact where one column speaks, close to the residual sum elsewhere."""

from __future__ import annotations

import pytest
import torch
from redhost_generate.truncated_logits import CANDIDATES, concat_logits, truncate_logits

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import LowRank
from redhost.core.routers import build_router

WIDTH, ANSWERS, ROWS = 12, 300, 40


@pytest.fixture
def bus() -> redhost.Bus:
    generator = torch.Generator().manual_seed(0)

    def expert(seed: int) -> redhost.Expert:
        g = torch.Generator().manual_seed(seed)
        U, V = torch.randn(4, WIDTH, generator=g), torch.randn(WIDTH, 4, generator=g)
        return LowRank(U=U, V=V, activation="gelu", space="hidden")

    config, columns = redhost.BusConfig(width=WIDTH, labels=()), ("a", "b", "backbone")
    return redhost.Bus(
        Readout(
            classifier=torch.randn(ANSWERS, WIDTH, generator=generator) * 0.7,
            task=redhost.plugins.make_task("generation"),
        ),
        norm=LayerNorm(width=WIDTH, eps=1e-5),
        router=build_router("linear", config, columns, 0),
        experts={"a": expert(1), "b": expert(2)},
        backbone_column=True,
    )


@pytest.fixture
def rows(bus) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    h = torch.randn(ROWS, WIDTH, generator=generator)
    return h, bus.norm(h), torch.randint(ANSWERS, (ROWS,), generator=generator)


def exact(bus, rows, alpha) -> torch.Tensor:
    h, z, target = rows
    return bus.logits(h, z, alpha).log_softmax(-1).gather(1, target[:, None])[:, 0]


@torch.inference_mode()
def test_a_column_alone_is_exact(bus, rows) -> None:
    truncated = truncate_logits(bus, *rows)
    for k in range(3):
        alpha = torch.zeros(ROWS, 3)
        alpha[:, k] = 1.0
        torch.testing.assert_close(truncated.log_p(alpha), exact(bus, rows, alpha))
        torch.testing.assert_close(truncated.alone()[:, k], truncated.log_p(alpha))


@torch.inference_mode()
def test_elsewhere_more_candidates_come_closer_and_all_of_them_are_exact(bus, rows) -> None:
    alpha = torch.softmax(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(5)), -1)
    wanted = exact(bus, rows, alpha)
    far = [
        float((truncate_logits(bus, *rows, candidates=m).log_p(alpha) - wanted).abs().mean())
        for m in (0, CANDIDATES, ANSWERS)
    ]
    assert far[0] > far[1] > far[2]
    assert far[1] < 0.2 * far[0] and far[2] < 1e-5


@torch.inference_mode()
def test_pieces_are_the_whole(bus, rows) -> None:
    whole = truncate_logits(bus, *rows)
    h, z, target = rows
    cuts = [slice(i, i + 16) for i in range(0, ROWS, 16)]
    parts = concat_logits([truncate_logits(bus, h[cut], z[cut], target[cut]) for cut in cuts])
    torch.testing.assert_close(parts.alone(), whole.alone())
    index = torch.tensor([3, 30])
    assert len(whole[index]) == 2 and torch.equal(whole[index].base, whole.base[index])


def test_weights_get_a_gradient(bus, rows) -> None:
    alpha = torch.full((ROWS, 3), 1 / 3, requires_grad=True)
    truncate_logits(bus, *rows).log_p(alpha).sum().backward()
    assert alpha.grad is not None and bool(alpha.grad[:, :2].any())
