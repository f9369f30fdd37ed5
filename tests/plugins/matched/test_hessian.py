"""The top eigenvalue: of known matrices, and of the dense Hessian."""

from __future__ import annotations

import pytest
import torch
from red_lab.matched.hessian import hessian_product, sharpness, top_eigenvalue
from red_lab.matched.systems import Dense, Soft, Sparse, descend

from .conftest import CLASSES, SHORT, WIDTH, composed, made_up


def symmetric(values: list[float]) -> torch.Tensor:
    """Return a matrix with these eigenvalues in a random basis."""
    generator = torch.Generator().manual_seed(3)
    shape = (len(values), len(values))
    basis, _ = torch.linalg.qr(torch.randn(shape, generator=generator, dtype=torch.float64))
    return basis @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ basis.T


@pytest.mark.parametrize(
    ("values", "top"),
    [([5.0, 2.0, 1.0, 0.0], 5.0), ([3.0, 1.0, -5.0], 3.0), ([-4.0, -1.0, -2.0], -1.0)],
)
def test_power_iteration_finds_the_top_of_a_quadratic(values, top) -> None:
    """Also where the largest magnitude is at the other end."""
    matrix = symmetric(values)
    x = torch.ones(len(values), dtype=torch.float64, requires_grad=True)
    product = hessian_product(0.5 * x @ matrix @ x, [x])
    v = torch.arange(len(values), dtype=torch.float64)
    torch.testing.assert_close(product(v), matrix @ v)
    found = top_eigenvalue(product, size=len(values), tolerance=1e-6)
    assert found.value == pytest.approx(top, abs=1e-5)
    assert found.residual <= 6e-6 and found.products < 1000


def test_of_a_constant_curvature_nothing_is_found_in_one_product() -> None:
    found = top_eigenvalue(torch.zeros_like, size=4)
    assert (found.value, found.residual, found.products) == (0.0, 0.0, 1)


def test_an_iteration_that_does_not_settle_says_so() -> None:
    """Two eigenvalues of one magnitude: no vector is reached, and the residual is not small."""
    matrix = symmetric([2.0, -2.0])
    assert top_eigenvalue(lambda v: matrix @ v, size=2, limit=20).residual > 1e-3


@pytest.mark.parametrize("kind", ["dense", "soft", "sparse", "RED"])
def test_sharpness_is_that_of_the_dense_hessian(kind, problem) -> None:
    """Of a trained tiny net, against `torch.autograd.functional.hessian`, every entry of it."""
    shape = {"width": WIDTH, "classes": CLASSES, "seed": 0}
    if kind == "RED":
        system = composed(problem)
    else:
        system = {
            "dense": lambda: Dense(units=3, **shape),
            "soft": lambda: Soft(units=2, experts=5, **shape),
            "sparse": lambda: Sparse(units=2, experts=5, k=2, **shape),
        }[kind]()
        descend(system, problem.train, recipe=SHORT, seed=0, tick=lambda: None)
    found = sharpness(system, problem.train, rows=64)
    some, twin = problem.train.some(64), system.double().requires_grad_(True)
    names = [n for n, _ in twin.named_parameters()]
    values = tuple(p.detach() for p in twin.parameters())

    def loss(*given: torch.Tensor) -> torch.Tensor:
        inputs = (some.h.double(), some.z.double())
        state = dict(zip(names, given, strict=True))
        log_p = torch.func.functional_call(
            _LogP(twin), {f"of.{n}": p for n, p in state.items()}, inputs
        )
        return torch.nn.functional.nll_loss(log_p, some.target)

    blocks = torch.autograd.functional.hessian(loss, values)
    dense = torch.cat(
        [
            torch.cat([b.reshape(v.numel(), -1) for b in row], 1)
            for v, row in zip(values, blocks, strict=True)
        ]
    )
    top = float(torch.linalg.eigvalsh(dense)[-1])
    assert found.value == pytest.approx(top, rel=1e-3) and top > 0


class _LogP(torch.nn.Module):
    """A system whose forward is log p."""

    def __init__(self, of) -> None:
        super().__init__()
        self.of = of

    def forward(self, h, z):
        return self.of.log_p(h, z)


def test_sharpness_leaves_the_system_as_it_is() -> None:
    system = Dense(width=WIDTH, units=3, classes=CLASSES, seed=0)
    before = {k: v.clone() for k, v in system.state_dict().items()}
    sharpness(system, made_up("text").train)
    after = system.state_dict()
    assert all(torch.equal(before[k], after[k]) and after[k].dtype == torch.float32 for k in before)
