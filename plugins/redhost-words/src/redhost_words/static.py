"""The same numbers in tensors of fixed shapes: what a graph of ONNX or a compiler can compute.

A text's words and who has them are lists of any length elsewhere. Here every text has as many
places, and every place an entry for every label, filled up with zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_of", "spread_by_label", "weights_of"]


def index_of(known: Tensor, values: Tensor) -> Tensor:
    """Return where values are among known ones, which ascend; their number for any other.

    By bisection: ONNX has no other search.
    """
    size = len(known)
    if not size:
        return torch.zeros_like(values)
    index, step = torch.zeros_like(values), 1 << (size.bit_length() - 1)
    while step:
        probe = index + step
        fits = (probe < size) & (known[probe.clamp_max(size - 1)] <= values)
        index, step = torch.where(fits, probe, index), step // 2
    return torch.where(known[index] == values, index, torch.full_like(index, size))


def weights_of(spoken: Tensor, *, places: int, most: int, unit: int) -> tuple[Tensor, Tensor]:
    """Return the places of one text, from 1, and their weights ``(most,)``, in the text's order.

    Args:
        spoken: Its places as they occur ``(M,)``.
        places: The number of all places.
        most: Most places that count, the first ones.
        unit: Weights are multiples of 1 / unit.
    """
    each = torch.ones_like(spoken)  # a Python length would become a constant
    occurrence = each.cumsum(0) - 1
    counts = torch.zeros(places, dtype=torch.int64).scatter_add(0, spoken, each)[spoken]
    never = torch.full((places,), 2**62)
    first = never.scatter_reduce(0, spoken, occurrence, "amin")[spoken] == occurrence
    rank = first.long().cumsum(0) - 1
    counted = first & (rank < most)
    raw = (1 + counts.double().log()) * counted
    length = raw.square().sum().sqrt().clamp_min(1.0)
    weight = (raw / length * unit).round() / unit
    slot = torch.where(counted, rank, torch.full_like(rank, most))  # the last one is dropped
    empty = torch.zeros(most + 1)
    return (
        empty.scatter_add(0, slot, ((spoken + 1) * counted).float())[:most],
        empty.scatter_add(0, slot, weight.float())[:most],
    )


def spread_by_label(
    index: Tensor, weights: Tensor, *, starts: Tensor, labels: Tensor, values: Tensor, count: int
) -> Tensor:
    """Return Σ of weights times the values of their places, by label ``(B, count)``.

    Args:
        index: The places' numbers ``(B, M)``; P for one without entries.
        weights: ``(B, M)``.
        starts: Where the entries of each place start ``(P + 1,)``.
        labels: The label of each entry.
        values: The value of each entry.
        count: Y.
    """
    number = torch.arange(count)  # a place has one entry for a label at most
    first = starts[index][..., None]
    size = starts[(index + 1).clamp_max(len(starts) - 1)][..., None] - first
    given = number < size
    entry = torch.where(given, first + number, torch.zeros_like(first))
    added = weights[..., None] * values[entry] * given
    empty = weights.new_zeros(len(weights), count)
    return empty.scatter_add(1, labels[entry].flatten(1), added.flatten(1))
