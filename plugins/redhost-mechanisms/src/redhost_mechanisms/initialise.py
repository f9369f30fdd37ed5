"""Initialisation for grafting: a part that leaves its host's output unchanged at the first step.

    zero        f(x) = 0                 W_last = 0, b_last = 0
    identity    f(x) = x                 x + f(x) with f initialised as in zero
    small       f(x) ≈ 0                 W_last ∼ N(0, std²), b_last = 0

Only the last layer is changed: everything before it keeps its initial scale, and the last layer has
a gradient at once. The last layer is found by running the part, not from the layers' names.
Source: seed 003, section "Initialization for Stable Grafting"; Zhang et al. 2019, "Fixup
initialization".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .linear import zero_linear
from .naming import check_name
from .residual_stream import ResidualStream
from .widths import widths_of

__all__ = ["InitMode", "init_for_grafting"]

InitMode = Literal["zero", "identity", "small"]
"""What a grafted module computes before training: zero, its input, or nearly zero."""


def init_for_grafting(
    part: nn.Module,
    *,
    mode: InitMode = "zero",
    std: float = 0.01,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Initialise a part in place, and return the module to graft.

    That is the part itself, with two exceptions. `identity` puts the part on a residual stream. A
    zero linear layer is appended to a part whose last layer cannot make it 0 and keep a gradient,
    because the part ends in a sigmoid or a ReLU, or adds its own input.

    Args:
        part: A module that states its widths; its buffers and modes are not changed.
        mode: See the equations above.
        std: The standard deviation for `small`.
        generator: Generator of the weights for `small`.

    Raises:
        ValueError: The mode is unknown, `small` has no generator, the widths of an `identity`
            differ, or the part states no width.
    """
    check_name(mode, get_args(InitMode), what="mode")
    widths = widths_of(part)
    if widths is None:
        raise ValueError(f"init_for_grafting: {type(part).__name__} has no weights and no width")
    if mode == "identity" and widths.input != widths.output:
        raise ValueError(
            f"init_for_grafting: an identity gives the width it takes, "
            f"found {widths.input} and {widths.output}"
        )
    if mode == "small" and generator is None:
        raise ValueError("init_for_grafting: mode 'small' draws from a generator, found none")
    x = _example(part, width=widths.input)
    layer = _zero_last_layer(part, x)
    if layer is None:
        layer = zero_linear(widths.output, widths.output).to(x)
        part = nn.Sequential(part, layer)
    if mode == "small":
        _draw(layer, std=std, generator=generator)
    return ResidualStream(width=widths.input, parts=[part]) if mode == "identity" else part


def _zero_last_layer(part: nn.Module, x: Tensor) -> nn.Module | None:
    """Zero the last layer that makes the part 0 and keeps a gradient; None if there is none."""
    for layer in reversed(_layers_as_they_run(part, x)):
        weights = _trainable(layer)
        before = [w.detach().clone() for w in weights]
        with torch.no_grad():
            for w in weights:
                w.zero_()
        if _is_mute(part, layer, x):
            return layer
        with torch.no_grad():
            for w, value in zip(weights, before, strict=True):
                w.copy_(value)
    return None


def _is_mute(part: nn.Module, layer: nn.Module, x: Tensor) -> bool:
    """Return whether the part's output is 0 while the layer has a gradient."""
    with _evaluating(part), torch.enable_grad():
        y: Tensor = part(x)
        if not y.requires_grad:
            return False
        # A plain sum would miss layers whose outputs are centred.
        slope = torch.linspace(1, 2, y.numel()).to(y).reshape(y.shape)
        gradients = torch.autograd.grad((slope * y).sum(), _trainable(layer), allow_unused=True)
    return not y.any() and any(g is not None and bool(g.any()) for g in gradients)


def _layers_as_they_run(part: nn.Module, x: Tensor) -> list[nn.Module]:
    ran: list[nn.Module] = []

    def note(layer: nn.Module, _inputs: object, _output: object) -> None:
        ran.append(layer)

    hooks = [m.register_forward_hook(note) for m in part.modules() if _trainable(m)]
    try:
        with _evaluating(part), torch.no_grad():
            part(x)
    finally:
        for hook in hooks:
            hook.remove()
    return ran


@contextmanager
def _evaluating(part: nn.Module) -> Iterator[None]:
    """Run in eval mode: running statistics do not change, and dropout draws nothing."""
    modes = [(m, m.training) for m in part.modules()]
    part.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _trainable(layer: nn.Module) -> list[nn.Parameter]:
    return [p for p in layer.parameters(recurse=False) if p.requires_grad]


def _example(part: nn.Module, *, width: int) -> Tensor:
    like = next(part.parameters(), torch.empty(0))
    return torch.linspace(-1, 1, 2 * width).reshape(2, width).to(like)


def _draw(layer: nn.Module, *, std: float, generator: torch.Generator | None) -> None:
    for name, weight in layer.named_parameters(recurse=False):
        if weight.dim() > 1:
            nn.init.normal_(weight, std=std, generator=generator)
        elif "bias" not in name:  # If the part ends in a norm, the norm's scale is the part's.
            nn.init.constant_(weight, std)
