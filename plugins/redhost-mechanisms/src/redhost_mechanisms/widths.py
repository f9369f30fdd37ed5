"""The interface contract: a part maps ``(..., input)`` to ``(..., output)``.

Source: seed 003, sections "Modularity Principles" and "Shape Matching". Every mechanism states its
widths as `input_width` and `output_width`, so a mechanism can be a part of another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

__all__ = [
    "Widths",
    "chained_widths",
    "check_width",
    "common_widths",
    "parallel_widths",
    "widths_of",
]

_KEEP_WIDTH = (
    *(nn.Identity, nn.Dropout, nn.AlphaDropout, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.ELU, nn.SELU, nn.CELU, nn.LeakyReLU, nn.Softplus, nn.Softsign, nn.Sigmoid, nn.Tanh),
    *(nn.Hardswish, nn.Hardsigmoid, nn.Hardtanh, nn.LogSigmoid, nn.Softmax, nn.LogSoftmax),
)
"""Layers that accept any width and preserve it."""


@dataclass(frozen=True, kw_only=True)
class Widths:
    """The input and output width of a part.

    Attributes:
        input: The last dimension of its input.
        output: The last dimension of its output.
    """

    input: int
    output: int


def widths_of(part: nn.Module) -> Widths | None:
    """Return a part's widths, or None if it accepts and preserves any width.

    Args:
        part: A mechanism or any module with `input_width` and `output_width`, a linear layer, a
            norm, an activation, a dropout, or an `nn.Sequential` of these.

    Raises:
        ValueError: The part does not state its widths, or its layers contradict each other.
    """
    stated = getattr(part, "input_width", None), getattr(part, "output_width", None)
    match part, stated:
        case _, (int(taken), int(given)):
            return Widths(input=taken, output=given)
        case nn.Linear(), _:
            return Widths(input=part.in_features, output=part.out_features)
        case nn.LayerNorm() | nn.RMSNorm(), _:
            return Widths(input=part.normalized_shape[-1], output=part.normalized_shape[-1])
        case nn.Sequential(), _:
            return chained_widths(part, who="nn.Sequential")
    if isinstance(part, _KEEP_WIDTH):
        return None
    name = type(part).__name__
    raise ValueError(
        f"{name} does not say its widths. Wrap it: "
        f"Encapsulated({name.lower()}, input_width=…, output_width=…)"
    )


def check_width(x: Tensor, width: int, *, who: str) -> None:
    """Check that x is ``(..., width)``.

    Args:
        x: The input of `who`.
        width: The width that `who` takes.
        who: The name for the message.

    Raises:
        ValueError: x has another width, or is a scalar.
    """
    if not x.dim() or x.shape[-1] != width:
        found = f"width {x.shape[-1]}" if x.dim() else "a scalar"
        raise ValueError(f"{who} takes width {width}, found {found} (shape {tuple(x.shape)})")


def chained_widths(parts: Iterable[nn.Module], *, who: str) -> Widths | None:
    """Return the widths of parts in sequence, or None if all of them preserve any width.

    Raises:
        ValueError: A part does not take the previous parts' output width; the message names it.
    """
    whole: Widths | None = None
    for index, part in enumerate(parts):
        own = widths_of(part)
        if own is None:
            continue
        if whole is not None and own.input != whole.output:
            raise ValueError(
                f"{who}: part {index} ({type(part).__name__}) takes width {own.input}, "
                f"found width {whole.output} from the parts before it"
            )
        whole = Widths(input=whole.input if whole else own.input, output=own.output)
    return whole


def parallel_widths(parts: Mapping[str, nn.Module], *, who: str) -> dict[str, Widths]:
    """Return each part's widths if all parts take the same input.

    A part that preserves any width gets the width of the other parts.

    Args:
        parts: The parts by their names in messages.
        who: The mechanism's name.

    Raises:
        ValueError: Input widths differ, or no part states a width.
    """
    stated = {name: widths_of(part) for name, part in parts.items()}
    known = {name: widths.input for name, widths in stated.items() if widths is not None}
    if not known:
        raise ValueError(
            f"{who}: none of its {len(parts)} parts says a width; wrap one in Encapsulated"
        )
    first, width = next(iter(known.items()))
    for name, found in known.items():
        if found != width:
            raise ValueError(f"{who}: {name} takes width {found}, {first} takes width {width}")
    return {name: widths or Widths(input=width, output=width) for name, widths in stated.items()}


def common_widths(parts: Mapping[str, nn.Module], *, who: str) -> Widths:
    """Return the widths that all parts share: same input, same output.

    Raises:
        ValueError: Input or output widths differ, or no part states a width.
    """
    widths = parallel_widths(parts, who=who)
    first, common = next(iter(widths.items()))
    for name, found in widths.items():
        if found.output != common.output:
            raise ValueError(
                f"{who}: {name} gives width {found.output}, {first} gives width {common.output}"
            )
    return common
