"""Dispatch: send rows to their chosen experts, and return the outputs in the rows' order.

    out[n, j] = expert_{indices[n, j]}(rows[n])

Every chosen expert is called once, on its own rows; experts without rows are not called. Source:
seed 003, section "Sparse Gating"; Shazeer et al. 2017, section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["dispatch", "probabilities"]


def probabilities(logits: Tensor) -> Tensor:
    """Return softmax(logits) over the last dimension, in float32 at least.

    The router computes in full precision, the experts in their own: Fedus et al. 2021, "Switch
    Transformer", section 2.4.

    Args:
        logits: ``(..., E)``.

    Returns:
        Probabilities ``(..., E)``.
    """
    return logits.softmax(dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def dispatch(experts: nn.ModuleList, rows: Tensor, indices: Tensor, *, output_width: int) -> Tensor:
    """Return the outputs of each row's chosen experts.

    Args:
        experts: E parts from D_in to D_out.
        rows: ``(N, D_in)``.
        indices: The chosen experts, ``(N, k)``, int64 in 0 … E−1.
        output_width: D_out.

    Returns:
        The outputs ``(N, k, D_out)``.
    """
    chosen = indices.flatten()
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=len(experts)).tolist()
    places = torch.split(order // indices.shape[-1], counts)
    outputs = [e(rows[p]) for e, p in zip(experts, places, strict=True) if len(p)]
    if not outputs:
        return rows.new_zeros(*indices.shape, output_width)
    return torch.cat(outputs)[order.argsort()].reshape(*indices.shape, output_width)
