"""Independent ensemble: parts without any interaction, combined by a fixed rule.

    mean    y = 1/E Σ_i f_i(x)        sum    y = Σ_i f_i(x)        concat    y = [f_1(x), …, f_E(x)]

Source: seed 003, section "Independent Modules".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .naming import check_name, numbered
from .widths import check_width, common_widths, parallel_widths

__all__ = ["Combiner", "IndependentEnsemble"]

Combiner = Literal["mean", "sum", "concat"]
"""How the outputs of an ensemble are combined."""


class IndependentEnsemble(nn.Module):
    """Parts that all take x as input; their outputs are combined without learned weights.

    Args:
        parts: Modules from ``(..., D_in)`` to ``(..., D_out)``; with `concat`, D_out may differ.
        combiner: How the outputs are combined.

    Raises:
        ValueError: The combiner is unknown, or widths differ.
    """

    def __init__(self, *, parts: Iterable[nn.Module], combiner: Combiner = "mean") -> None:
        super().__init__()
        check_name(combiner, get_args(Combiner), what="combiner")
        self.parts = nn.ModuleList(parts)
        self.combiner: Combiner = combiner
        named = numbered([*self.parts])
        if combiner == "concat":
            widths = [*parallel_widths(named, who="IndependentEnsemble").values()]
            self.input_width, self.output_width = widths[0].input, sum(w.output for w in widths)
        else:
            common = common_widths(named, who="IndependentEnsemble")
            self.input_width, self.output_width = common.input, common.output

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(..., D_out)`` for x ``(..., D_in)``; for `concat`, D_out is the widths' sum."""
        check_width(x, self.input_width, who="IndependentEnsemble")
        answers: list[Tensor] = [part(x) for part in self.parts]
        match self.combiner:
            case "mean":
                return torch.stack(answers).mean(dim=0)
            case "sum":
                return torch.stack(answers).sum(dim=0)
            case "concat":
                return torch.cat(answers, dim=-1)
