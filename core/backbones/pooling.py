"""How the states of a text become one vector: a mode, and the dense layers that follow it.

    h = σ_n(W_n … σ_1(W_1 mode(states) + b_1) … + b_n)

Modes and dense layers are those of sentence-transformers. Dense layers read the last states, which
they were trained on; states of other layers are pooled and left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...registry.errors import IntegrityError
from ...registry.package.manifest import Activation, PoolingMode
from ..bus.experts import ACTIVATIONS, linear
from ..digests import tensor_digest


def _weighted_mean(states: Tensor) -> Tensor:
    """Return the mean in which token t counts t times."""
    # In a causal encoder a late token has read more of the text (SGPT, Muennighoff, 2022).
    weights = torch.arange(1, states.shape[1] + 1, device=states.device)[:, None]
    return (states * weights).sum(dim=1) / weights.sum()


MODES: Mapping[PoolingMode, Callable[[Tensor], Tensor]] = {
    "first": lambda states: states[:, 0],
    "last": lambda states: states[:, -1],
    "max": lambda states: states.amax(dim=1),
    "mean": lambda states: states.mean(dim=1),
    # By √T, T independent states have the variance of one, however long the text is.
    "mean-sqrt": lambda states: states.sum(dim=1) / states.shape[1] ** 0.5,
    "weighted-mean": _weighted_mean,
}
"""Mode → the function from states ``(B, T, D)`` to one vector a text ``(B, D)``."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Dense:
    """A dense layer σ(W h + b).

    Attributes:
        tensors: W ``(out, in)`` as ``weight``, b ``(out,)`` as ``bias``.
        activation: The name of σ, see `ACTIVATIONS`.
    """

    tensors: Mapping[str, Tensor]
    activation: Activation

    def __call__(self, h: Tensor) -> Tensor:
        """Return σ(W h + b) ``(B, out)`` for h ``(B, in)``."""
        weight, bias = self.tensors["weight"].to(h), self.tensors["bias"].to(h)
        # The bits of a row depend on the number of rows in the product, and on where it starts.
        rows = [linear(row.clone(), weight, bias) for row in torch.split(h, 1)]
        return torch.cat([ACTIVATIONS[self.activation](row) for row in rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooling:
    """How the states of a text become one vector.

    Attributes:
        mode: How the states of the tokens become one vector, see `MODES`.
        dense: The layers that follow.
    """

    mode: PoolingMode
    dense: tuple[Dense, ...] = ()

    @property
    def stated(self) -> object:
        """What identifies it: the mode; if dense layers follow, their content as well."""
        layers = [(tensor_digest(layer.tensors), layer.activation) for layer in self.dense]
        return [self.mode, *layers] if layers else self.mode

    def __call__(self, states: Tensor) -> Tensor:
        """Return one vector a text ``(B, out)`` for its last states ``(B, T, D)``."""
        h = MODES[self.mode](states)
        for layer in self.dense:
            h = layer(h)
        return h

    def width(self, states: int) -> int:
        """Return the width of the vector, given that of the states.

        Raises:
            IntegrityError: If a dense layer does not fit what it reads.
        """
        for layer in self.dense:
            out = layer.tensors.get("bias", torch.empty(0)).numel()
            shapes = {name: tuple(tensor.shape) for name, tensor in layer.tensors.items()}
            if shapes != (expected := {"weight": (out, states), "bias": (out,)}):
                raise IntegrityError("a dense layer", expected=str(expected), found=str(shapes))
            states = out
        return states


PoolingChoice = Pooling | PoolingMode
"""A pooling, or the mode of one without dense layers."""
