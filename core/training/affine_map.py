"""An affine map between the vectors of two backbones, fitted on unlabelled texts in closed form.

    A = argmin Σ_i ‖y_i − m_y − A (x_i − m_x)‖² + λ ‖A‖²,    c = m_y − A m_x

With X − m_x = U S Vᵀ each λ costs one product, and so does the error of every text left out in
turn: e_i / (1 − H_ii), H = U S² (S² + λ)⁻¹ Uᵀ + 1/N (the PRESS statistic, Allen 1974). The λ whose
error is least is taken, so no text has to be set aside.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**n for n in range(-6, 3))
"""λ, as multiples of the mean of S²."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineMap:
    """x → A x + c.

    Attributes:
        A: ``(D', D)``.
        c: ``(D',)``.
        unexplained: The share of the variance of y that is missed on texts left out in turn; 1 is
            what the mean alone misses.
        rows: N texts that it was fitted on.
    """

    A: Tensor
    c: Tensor
    unexplained: float
    rows: int


def fit_affine(x: Tensor, y: Tensor) -> AffineMap:
    """Fit the map that takes x to y, with the ridge penalty under which left-out texts fare best.

    Args:
        x: Vectors of texts on one backbone, ``(N, D)``.
        y: Vectors of the same texts on the other, ``(N, D')``.
    """
    x, y = x.double(), y.double()
    center_x, center_y = x.mean(0), y.mean(0)
    U, S, Vh = torch.linalg.svd(x - center_x, full_matrices=False)
    target = y - center_y
    UY, energy = U.T @ target, S.square()

    def tried(penalty: float) -> tuple[float, Tensor]:
        shrink = energy / (energy + penalty * energy.mean())
        leverage = (U.square() @ shrink + 1 / len(x)).clamp(max=1 - 1e-9)
        missed = (target - U @ (shrink[:, None] * UY)) / (1 - leverage)[:, None]
        return float(missed.square().sum()), shrink

    error, shrink = min(map(tried, PENALTIES), key=lambda pair: pair[0])
    inverse = torch.where(S > 0, shrink / S.clamp(min=1e-300), 0.0)
    A = (Vh.T @ (inverse[:, None] * UY)).T  # (D', D)
    return AffineMap(
        A=A.float().contiguous(),
        c=(center_y - A @ center_x).float().contiguous(),
        unexplained=error / max(float(target.square().sum()), 1e-300),
        rows=len(x),
    )
