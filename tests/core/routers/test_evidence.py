"""The evidence router: the quadratic posterior at half weight, and two Gaussians a voice."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal

import redhost
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.evidence import EvidenceRouter, log_normal
from redhost.core.routers.quadratic import QuadraticRouter

D = 4
ROWS = {"a": 12, "b": 40, "c": 25}


def signals_of(z: Tensor, confidences: Tensor) -> redhost.plugins.RouterSignals:
    return redhost.plugins.RouterSignals(z, values={"confidences": confidences})


def domains(*, silent: tuple[str, ...] = (), rows: dict[str, int] = ROWS) -> list:
    """Three clouds that overlap, whose experts are a little louder at home."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for k, (name, n) in enumerate(rows.items()):
        z = torch.randn(n, D, generator=generator) + 0.5 * k
        confidences = torch.randn(n, len(rows), generator=generator)
        confidences[:, k] = 2.0 + 1.5 * confidences[:, k]
        made.append(
            redhost.plugins.ColumnData(
                column=name,
                z=z,
                statistics=Statistics.of_rows(z, ["y"] * n),
                signals=None if name in silent else signals_of(z, confidences),
            )
        )
    return made


def fit(data: list, kind: type[QuadraticRouter] = EvidenceRouter) -> Any:
    router = kind(width=D, columns=tuple(d.column for d in data))
    router.solve(data)
    return router.requires_grad_(False)


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(9, D, generator=generator), 2 * torch.randn(9, 3, generator=generator)


def ratio(data: list, k: int, e: Tensor) -> Tensor:
    """log N(e; home) − log N(e; away), others of equal weight; sd² is at least .01."""
    home = data[k].signals.confidences[:, k]
    others = [d for i, d in enumerate(data) if i != k and d.signals is not None]
    away = [d.signals.confidences[:, k] for d in others]
    middle = sum(v.mean() for v in away) / len(away)
    spread = sum((v - middle).square().mean() for v in away) / len(away)
    at_home = Normal(home.mean(), (home.var(correction=0) + 0.01).sqrt())
    return at_home.log_prob(e) - Normal(middle, (spread + 0.01).sqrt()).log_prob(e)


def test_a_logit_is_half_the_discriminant_and_the_ratio_of_two_gaussians() -> None:
    data, (z, e) = domains(), batch()
    ratios = torch.stack([ratio(data, k, e[:, k]) for k in range(3)], -1)
    torch.testing.assert_close(
        fit(data)(z, signals_of(z, e)), fit(data, QuadraticRouter)(z) / 2 + ratios
    )


def test_without_evidence_only_half_the_discriminant_is_left() -> None:
    data, (z, _) = domains(), batch()
    assert torch.equal(fit(data)(z), fit(data, QuadraticRouter)(z) / 2)


def test_a_column_without_evidence_is_believed_neither_more_nor_less() -> None:
    data, (z, e) = domains(silent=("c",)), batch()
    ratios = fit(data)(z, signals_of(z, e)) - fit(data)(z)
    torch.testing.assert_close(ratios[:, 2], torch.zeros(9))
    torch.testing.assert_close(ratios[:, 0], ratio(data, 0, e[:, 0]))


def test_one_confidence_alone_tells_nothing() -> None:
    data, (z, e) = domains(silent=("b", "c")), batch()
    torch.testing.assert_close(fit(data)(z, signals_of(z, e)), fit(data)(z))


def test_a_confidence_that_never_wavers_is_not_believed_without_end() -> None:
    """An expert silent to the last digit on its rows is taken for a Gaussian of deviation .1."""
    data = [
        dataclasses.replace(d, signals=signals_of(d.z, torch.zeros(len(d.z), 3))) for d in domains()
    ]
    data[0].signals.confidences[:, 0] = 1.0
    z = batch()[0][:1]
    router = fit(data)
    ratios = router(z, signals_of(z, torch.tensor([[1.0, 0.0, 0.0]]))) - router(z)
    assert float(ratios[0, 0]) == pytest.approx(0.5 * (1 / 0.1) ** 2, rel=1e-4)


def test_log_normal_is_the_density_up_to_its_constant() -> None:
    _, e = batch()
    mean, variance = torch.tensor([0.0, 1.0, -2.0]), torch.tensor([1.0, 4.0, 0.25])
    density = Normal(mean, variance.sqrt()).log_prob(e)
    torch.testing.assert_close(log_normal(e, mean, variance), density + 0.5 * math.log(2 * math.pi))


def test_a_new_column_gets_a_confidence_and_the_others_keep_every_bit() -> None:
    data = domains()
    pair = [
        dataclasses.replace(d, signals=signals_of(d.z, d.signals.confidences[:, [0, 2]]))
        for d in data[::2]
    ]
    parent = fit(pair)
    child = EvidenceRouter(width=D, columns=("a", "b", "c"))
    child.copy_columns(parent, keep={"a", "c"})
    child.solve(data, only={"b"})
    assert torch.equal(child.voice[[0, 2]], parent.voice)
    assert torch.equal(child.voice[1], fit(data).voice[1])


def test_all_it_learned_of_confidences_is_in_its_file() -> None:
    router, (z, e) = fit(domains()), batch()
    again = EvidenceRouter(width=D, columns=("a", "b", "c"))
    again.load_tensors(router.state_dict())
    assert torch.equal(again(z, signals_of(z, e)), router(z, signals_of(z, e)))


def test_only_its_own_kind_is_taken_over() -> None:
    router = EvidenceRouter(width=D, columns=("a",))
    with pytest.raises(
        TypeError, match=r"^expected a router of kind 'evidence', found 'quadratic'$"
    ):
        router.copy_columns(QuadraticRouter(width=D, columns=("a",)), keep=())
