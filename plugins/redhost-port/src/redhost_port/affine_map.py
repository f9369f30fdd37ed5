"""An affine map between the vectors of two backbones, fitted on unlabelled texts in closed form.

    A = argmin Σ_i ‖y_i − m_y − A (x_i − m_x)‖² + λ ‖A − A₀‖²,    c = m_y − A m_x

A₀ is 0 or, if both widths are equal, I: the next version of a model often changes vectors little,
so that A − I is easier to estimate from few texts than A. With X the centred x, Y the centred y
minus A₀ X, and X Xᵀ = U E Uᵀ:

    A − A₀ = Yᵀ U (E + λ)⁻¹ Uᵀ X,    H = U E (E + λ)⁻¹ Uᵀ + 1/N

λ minimises the generalised cross-validation ‖(I − H) Y‖² / (1 − tr H / N)² (Golub, Heath & Wahba
1979), which is cheap once U is known. A₀ is chosen by the leave-one-out error e_i / (1 − H_ii)
(PRESS, Allen 1974), so no texts have to be held out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**n for n in range(-6, 5))
"""λ, as multiples of the mean of E."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AffineMap:
    """x → A x + c.

    Attributes:
        A: ``(D', D)``.
        c: ``(D',)``.
        unexplained: The share of the variance of y that is not explained on texts left out in turn;
            1 for the mean alone.
        rows: N, the number of texts it was fitted on.
        spread: The covariance of its residuals on them, ``(D', D')``.
    """

    A: Tensor
    c: Tensor
    unexplained: float
    rows: int
    spread: Tensor


def fit_affine(x: Tensor, y: Tensor) -> AffineMap:
    """Fit the map from x to y, with λ and A₀ chosen by cross-validation.

    Args:
        x: Vectors of texts on one backbone, ``(N, D)``.
        y: Vectors of the same texts on the other, ``(N, D')``.
    """
    x, y = x.double(), y.double()
    center_x, center_y = x.mean(0), y.mean(0)
    X, Y = x - center_x, y - center_y
    E, U = torch.linalg.eigh(X @ X.T)
    E = E.clamp(min=0)
    solved = [_solve(Y, E, U)]
    if X.shape == Y.shape:
        solved.append(_solve(Y - X, E, U))
    error, coefficients = min(solved, key=lambda one: one[0])
    A = coefficients.T @ X  # (D', D)
    if coefficients is not solved[0][1]:
        A += torch.eye(len(A), dtype=A.dtype)
    missed = Y - X @ A.T
    return AffineMap(
        A=A.float().contiguous(),
        c=(center_y - A @ center_x).float().contiguous(),
        unexplained=error / max(float(Y.square().sum()), 1e-300),
        rows=len(x),
        spread=missed.T @ missed / len(x),
    )


def _solve(Y: Tensor, E: Tensor, U: Tensor) -> tuple[float, Tensor]:
    """Return the squared leave-one-out error, and U (E + λ)⁻¹ Uᵀ Y, ``(N, D')``.

    Args:
        Y: The targets, ``(N, D')``.
        E: Eigenvalues of X Xᵀ, ``(N,)``.
        U: Its eigenvectors, ``(N, N)``.
    """
    UY = U.T @ Y
    power = UY.square().sum(1)

    def cross_validation(penalty: float) -> float:
        left = 1 - E / (E + penalty)
        freedom = 1 - (len(E) - float(left.sum()) + 1) / len(E)
        return float(left.square() @ power) / max(freedom, 1e-9) ** 2

    penalty = min((p * float(E.mean()) for p in PENALTIES), key=cross_validation)
    weight = 1 / (E + penalty)
    missed = Y - U @ ((E * weight)[:, None] * UY)
    leverage = (U.square() @ (E * weight) + 1 / len(E)).clamp(max=1 - 1e-9)
    error = float((missed / (1 - leverage)[:, None]).square().sum())
    return error, U @ (weight[:, None] * UY)
