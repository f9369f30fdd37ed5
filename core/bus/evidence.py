"""The experts' own evidence: one confidence for each expert and row.

    e_i(z) = ‖W_c Δ_i(z)‖             where the expert writes to the shared classifier
    e_i(z) = logsumexp_y Δ_i(z)_y / T   where it has labels of its own (the energy score,
                                        Liu et al. 2020)
    e_i(z) = 0                         where it predicts a number of its own
    e      = 0                         for the backbone column

Experts are trained to add little outside their domain (small ‖W_c Δ‖). So confidences help to
identify the domain of an input even where z alone does not.

`output_features` returns S numbers for each expert, from the same logits ℓ = W_c Δ_i or Δ_i / T:
the confidence, the largest entry, the spread over labels and the entropy of softmax(ℓ), 1 when
uniform.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .experts import Expert

OUTPUT_FEATURES = 4
"""S, how many numbers describe an expert's output."""


def readout_factor(classifier: Tensor | None) -> Tensor | None:
    """Return the cheapest matrix to measure ‖W_c Δ‖: W_c, or R ``(D, D)`` with RᵀR = W_cᵀW_c.

    A vocabulary has many more rows than D; ‖R Δ‖ is the same number and takes D² products.
    """
    if classifier is None or classifier.shape[0] <= classifier.shape[1]:
        return classifier
    gram = (classifier.T @ classifier).to(torch.float64)  # a Cholesky factor needs full rank
    values, vectors = torch.linalg.eigh(gram)
    # Rounding may leave an eigenvalue of a W_c without full rank just below zero.
    root: Tensor = values.clamp_min(0).sqrt()[:, None] * vectors.T
    return root.to(classifier.dtype)


def confidence_of(expert: Expert, delta: Tensor, classifier: Tensor | None) -> Tensor:
    """Return e_i ``(B,)`` of an expert's output.

    Args:
        expert: The expert.
        delta: Δ ``(B, out)``.
        classifier: W_c ``(C, D)``, or its factor (`readout_factor`); None where all experts have
            labels of their own.
    """
    evidence = _evidence(expert, delta, classifier)
    return delta.new_zeros(delta.shape[0]) if evidence is None else evidence[1]


def off_domain_norm(expert: Expert, z: Tensor, classifier: Tensor | None) -> Tensor:
    """Return mean ‖logits that Δ adds‖² over rows ``(B, D)``: of W_c Δ(z), or of Δ(z) itself.

    Args:
        expert: The expert.
        z: Its input, ``(B, D)``.
        classifier: W_c ``(C, D)``, or its factor (`readout_factor`).
    """
    delta: Tensor = expert(z)
    if expert.space == "hidden" and classifier is not None:
        delta = delta @ classifier.T
    return delta.square().sum(-1).mean()


def output_features(
    experts: Sequence[Expert],
    z: Tensor | Sequence[Tensor],
    *,
    classifier: Tensor | None,
    columns: int,
) -> Tensor:
    """Return the features of the experts' outputs, ``(B, K, S)``; zeros for the backbone column.

    Args:
        experts: In column order, E of them.
        z: Bus vectors ``(B, D)``, or the input of each expert.
        classifier: W_c ``(C, D)``; None where all experts have labels of their own.
        columns: K.
    """
    readings = [z] * len(experts) if isinstance(z, Tensor) else z
    # Zeros for the backbone column: it claims nothing, so that any evidence is more.
    features = readings[0].new_zeros(readings[0].shape[0], columns, OUTPUT_FEATURES)
    for i, (expert, read) in enumerate(zip(experts, readings, strict=True)):
        evidence = _evidence(expert, expert(read), classifier)
        if evidence is not None:
            features[:, i] = _features(*evidence)
    return features


def _features(logits: Tensor, norm: Tensor) -> Tensor:
    """Return ``(B, S)`` for logits ``(B, L)``; with L = 1 entropy and spread are 0."""
    # From log p, as p · log p of a probability that underflows to 0 would be NaN.
    log_p = torch.log_softmax(logits, dim=-1)
    entropy = -(log_p.exp() * log_p).sum(-1) / math.log(max(logits.shape[-1], 2))
    spread = logits.std(-1, correction=0)
    return torch.stack([norm, logits.amax(-1), spread, entropy], dim=-1)


def _evidence(
    expert: Expert, delta: Tensor, classifier: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Return ℓ ``(B, L)`` of Δ ``(B, out)`` and e ``(B,)``; None for an expert with a number."""
    if expert.space == "labels":
        if delta.shape[-1] == 1:  # the logsumexp of one number is the number, not a confidence
            return None
        # Each author's T was fitted on held-out rows, so that energies of experts are comparable.
        logits = delta / expert.temperature
        return logits, torch.logsumexp(logits, dim=-1)
    logits = delta
    if expert.space == "hidden" and classifier is not None:
        logits = delta @ classifier.T
    return logits, logits.square().sum(-1).sqrt()
