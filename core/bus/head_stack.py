"""Many experts with labels of their own, as one batched product for each of their layers.

Experts of one form and shape differ only in their weights. These are stacked, ``(n, out, in)``, and
the form's own `forward` accepts the stack (`experts.linear`). Each product in the batch has the
same shape for any n, so its result is bitwise identical for any n.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from .experts import STACKABLE, Expert


class HeadStack(nn.Module):
    """Experts of one form and shape, answered at once.

    Args:
        parts: The experts by column index.
    """

    def __init__(self, parts: Mapping[int, Expert]) -> None:
        super().__init__()
        self.columns = tuple(sorted(parts))
        experts = [parts[k] for k in self.columns]
        self.form = _stacked(experts)
        temperatures = [e.temperature for e in experts]
        self.register_buffer("temperature", torch.tensor(temperatures)[:, None, None])

    temperature: Tensor

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits of every expert ``(n, B, L)`` for z ``(B, D)``, in its precision."""
        logits: Tensor = self.form(z.to(self.form.precision))
        return logits.to(z.dtype)


def head_stacks(heads: Mapping[int, Expert]) -> list[HeadStack]:
    """Return one stack for each group of experts of the same form and shape.

    An expert without a match gets a stack of one, so its results never depend on other experts.

    Args:
        heads: Experts with labels of their own that read z, by column.
    """
    groups: dict[object, dict[int, Expert]] = {}
    for column, expert in heads.items():
        # The exact type: a plugin may derive a class whose `forward` takes no stack.
        if type(expert) in STACKABLE:
            shapes = tuple((name, t.shape, t.dtype) for name, t in _tensors(expert).items())
            like = (type(expert), getattr(expert, "activation", None), shapes)
            # Shapes are part of the key: experts with other labels have another width and another
            # stack.
            groups.setdefault(like, {})[column] = expert
    return [HeadStack(group) for group in groups.values()]


def _stacked(experts: Sequence[Expert]) -> Expert:
    """Return an expert of the same form whose weights are those of all, ``(n, …)``."""
    form = copy.copy(experts[0])  # a shallow copy shares the dicts of weights: both are replaced
    stacks = {n: _stack([_tensors(e)[n].detach() for e in experts]) for n in _tensors(form)}
    names = {n for n, _ in form.named_parameters()}
    form._parameters = {n: nn.Parameter(stacks[n], requires_grad=False) for n in names}
    form._buffers = {n: t for n, t in stacks.items() if n not in names}
    return form


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors stacked ``(n, …)``; a single tensor as a view, without a copy."""
    return torch.stack([*tensors]) if len(tensors) > 1 else tensors[0][None]


def _tensors(expert: Expert) -> dict[str, Tensor]:
    return {**dict(expert.named_parameters()), **dict(expert.named_buffers())}
