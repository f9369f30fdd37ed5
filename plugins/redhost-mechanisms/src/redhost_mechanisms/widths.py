"""The interface contract: a part takes ``(..., input)`` and gives ``(..., output)``.

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
"""What works at any width and does not change it."""


@dataclass(frozen=True, kw_only=True)
class Widths:
    """What a part takes and gives.

    Attributes:
        input: The last dimension of what it takes.
        output: The last dimension of what it gives.
    """

    input: int
    output: int


def widths_of(part: nn.Module) -> Widths | None:
    """Return a part's widths, or None when it keeps whatever width it is given.

    Args:
        part: A mechanism or any module with `input_width` and `output_width`, a linear layer, a
            norm, an activation, a dropout, or an `nn.Sequential` of these.

    Raises:
        ValueError: The part does not say its widths, or contradicts itself inside.
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
        x: What `who` was given.
        width: What it takes.
        who: The name for the message.

    Raises:
        ValueError: Another width, or a scalar.
    """
    if not x.dim() or x.shape[-1] != width:
        found = f"width {x.shape[-1]}" if x.dim() else "a scalar"
        raise ValueError(f"{who} takes width {width}, found {found} (shape {tuple(x.shape)})")


def chained_widths(parts: Iterable[nn.Module], *, who: str) -> Widths | None:
    """Return the widths of parts that feed each other, or None when all keep any width.

    Raises:
        ValueError: A part takes another width than the ones before it give; says which.
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
    """Return each part's widths where all parts are given the same input.

    A part that keeps any width takes that of the others.

    Args:
        parts: The parts by the name that a message gives them.
        who: The mechanism's name.

    Raises:
        ValueError: Inputs differ, or no part says a width.
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
        ValueError: Inputs or outputs differ, or no part says a width.
    """
    widths = parallel_widths(parts, who=who)
    first, common = next(iter(widths.items()))
    for name, found in widths.items():
        if found.output != common.output:
            raise ValueError(
                f"{who}: {name} gives width {found.output}, {first} gives width {common.output}"
            )
    return common
