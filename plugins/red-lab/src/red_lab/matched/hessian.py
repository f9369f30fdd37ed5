"""The largest eigenvalue of a loss's Hessian, by power iteration; a diagnostic only.

    v ← H v / ‖H v‖,   λ = vᵀ H v,   H v = ∇ (∇L · v)                Pearlmutter 1994

If the eigenvalue of largest magnitude is negative, the iteration runs again on H − λ I. The
residual ‖H v − λ v‖ bounds how far λ is from an eigenvalue. Sharpness of this kind depends on how
a function is parametrised (Dinh et al. 2017, "Sharp minima can generalize for deep nets").
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from red_lab.matched.data import DataPart
from red_lab.matched.systems import System

__all__ = ["Eigenvalue", "Product", "hessian_product", "sharpness", "top_eigenvalue"]

Product = Callable[[Tensor], Tensor]

ROWS = 512
"""Number of training rows on which the loss is computed."""


@dataclass(frozen=True, kw_only=True)
class Eigenvalue:
    """The result of the iteration.

    Attributes:
        value: λ.
        residual: ‖H v − λ v‖ / |λ|.
        products: The number of products H v.
    """

    value: float
    residual: float
    products: int


def sharpness(system: System, part: DataPart, *, rows: int = ROWS) -> Eigenvalue:
    """Return the top Hessian eigenvalue of the mean loss over all parameters, in float64.

    Args:
        system: The trained system; it is not changed.
        part: Its training rows, of which a fixed sample is taken; no dropout and no noise.
        rows: Size of the sample.
    """
    some, twin = part.some(rows), copy.deepcopy(system).double().eval().requires_grad_(True)
    parameters = [p for p in twin.parameters() if p.is_floating_point()]
    loss = twin.loss(some.h.double(), some.z.double(), some.target)
    size = sum(p.numel() for p in parameters)
    return top_eigenvalue(hessian_product(loss, parameters), size=size)


def hessian_product(loss: Tensor, parameters: Sequence[Tensor]) -> Product:
    """Return v → H v ``(P,)`` for the Hessian of a loss with respect to P parameters."""
    slopes = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    slope = torch.cat([s.reshape(-1) for s in slopes])

    def product(v: Tensor) -> Tensor:
        parts = torch.autograd.grad(
            slope, parameters, grad_outputs=v, retain_graph=True, materialize_grads=True
        )
        return torch.cat([p.reshape(-1) for p in parts])

    return product


def top_eigenvalue(
    product: Product, *, size: int, tolerance: float = 1e-3, limit: int = 500, seed: int = 0
) -> Eigenvalue:
    """Return the largest eigenvalue of a symmetric H.

    Args:
        product: v → H v, ``(P,)`` in float64.
        size: P.
        tolerance: The residual at which the iteration ends.
        limit: The maximum number of products of one iteration.
        seed: Random seed of the initial v.
    """
    first = _dominant(product, size=size, tolerance=tolerance, limit=limit, seed=seed)
    if first.value >= 0:
        return first
    low = first.value
    moved = _dominant(
        lambda v: product(v) - low * v, size=size, tolerance=tolerance, limit=limit, seed=seed
    )
    value = moved.value + low
    return Eigenvalue(
        value=value,
        residual=moved.residual * moved.value / max(abs(value), torch.finfo(torch.float64).tiny),
        products=first.products + moved.products,
    )


def _dominant(
    product: Product, *, size: int, tolerance: float, limit: int, seed: int
) -> Eigenvalue:
    """Return the eigenvalue of largest magnitude."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(size, generator=generator, dtype=torch.float64)
    v /= v.norm()
    value, residual = 0.0, 0.0
    for done in range(1, limit + 1):
        image = product(v)
        value, length = float(v @ image), float(image.norm())
        if not length:
            return Eigenvalue(value=0.0, residual=0.0, products=done)
        residual = float((image - value * v).norm()) / max(abs(value), 1e-300)
        if residual <= tolerance:
            return Eigenvalue(value=value, residual=residual, products=done)
        v = image / length
    return Eigenvalue(value=value, residual=residual, products=limit)
