"""Signals: what a router may read of a batch in addition to z, each computed on first use.

    confidences        e(z), the experts' confidence in this input         (B, K)
    output_features    statistics of the experts' outputs                  (B, K, S)
    query(mask)        the confidences of the experts in a mask            (B, K)

A router declares its inputs in `reads`, and only these are computed. A new signal is a function of
`RouterSignals` that works row by row, registered under a name, for example in the router's file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ...registry.errors import UsageError
from .ensemble import Ensemble
from .evidence import output_features
from .strategies import ExpertOutputs, active_columns

QUERY = "query"
"""Read by a router that selects whose confidences to compute, with `RouterSignals.query`."""
ANSWERS = "answers"
"""Read in training by a router that learns from p_k(y|x) of its rows' correct answers."""

Signal = Callable[["RouterSignals", Ensemble], Tensor]

SIGNALS: dict[str, Signal] = {}
"""The functions that compute signals ``(B, K, …)`` of a batch and the experts, by signal name."""


class RouterSignals:
    """The inputs of a router for one batch.

    Args:
        z: Bus vectors ``(B, D)``, or z̃.
        ensemble: The experts; None if all signals are given.
        reads: What may be read; None for everything.
        values: Signals that are computed already, by name.

    Attributes:
        features: z̃, of which every expert reads its own part.
        z: The part of it that the router reads, ``(B, W)``.
        known: The signals computed so far, by name.
        outputs: Expert outputs computed for the signals so far; None if there are none. The answer
            reuses them, so that no expert computes a row twice.
    """

    def __init__(
        self,
        z: Tensor,
        *,
        ensemble: Ensemble | None = None,
        reads: Collection[str] | None = None,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.features, self.ensemble, self.reads = z, ensemble, reads
        self.z = z if ensemble is None else ensemble.layout.router_input(z)
        self.outputs: ExpertOutputs | None = None
        self.known = dict(values or {})

    def __getitem__(self, name: str) -> Tensor:
        """Return a signal ``(B, K, …)``; it is computed once.

        Raises:
            UsageError: If the router does not declare it, or there are no experts to compute it.
        """
        if name not in self.known:
            ensemble = self._experts(name)
            with torch.no_grad():  # experts are frozen, so signals are constants for the router
                self.known[name] = SIGNALS[name](self, ensemble)
        return self.known[name]

    @property
    def confidences(self) -> Tensor:
        """e(z) ``(B, K)``."""
        return self["confidences"]

    @property
    def output_features(self) -> Tensor:
        """Statistics of the experts' outputs, ``(B, K, S)``."""
        return self["output_features"]

    def query(self, mask: Tensor) -> Tensor:
        """Return the confidences where a mask ``(B, K)`` is set, ``(B, K)``; zero elsewhere.

        Query an expert at most once for a row, and give weight only to experts that were queried.
        """
        # All experts have run already: a query costs nothing, and masks what was not asked for.
        if "confidences" in self.known:
            return torch.where(mask, self.known["confidences"], 0.0)
        ensemble = self._experts(QUERY)
        with torch.no_grad():
            outputs = ensemble.expert_outputs(self.features, active_columns(mask))
            self.outputs = (*(self.outputs or ()), *outputs)
            return ensemble.confidences(outputs, self.features)

    def _experts(self, name: str) -> Ensemble:
        """Return the ensemble, after checking that the router may read the signal."""
        if self.ensemble is None or (self.reads is not None and name not in self.reads):
            raise UsageError(
                f"a router reads {name!r}",
                expected="one of " + (", ".join(sorted(self.reads or self.known)) or "nothing"),
                found=name,
                hint="Name it in the router's attribute 'reads'.",
            )
        return self.ensemble

    @classmethod
    def concat(cls, parts: Sequence[RouterSignals]) -> RouterSignals:
        """Return several batches of the same experts as one, with the signals that all have."""
        # A signal that one batch lacks would have to be computed again for the others.
        names = set.intersection(*(set(p.known) for p in parts))
        return cls(
            torch.cat([p.features for p in parts]),
            ensemble=parts[0].ensemble,
            reads=parts[0].reads,
            values={name: torch.cat([p[name] for p in parts]) for name in names},
        )


def router_signal(name: str) -> Callable[[Signal], Signal]:
    """Register the function that computes a named signal; it must work row by row.

    Raises:
        UsageError: If the name is registered for another function.
    """

    def register(compute: Signal) -> Signal:
        mine, other = (_place(x) for x in (compute, SIGNALS.get(name, compute)))
        if mine != other:  # the same file may be imported again
            raise UsageError(f"router signal {name!r}", expected=f"that of {other}", found=mine)
        SIGNALS[name] = compute
        return compute

    return register


def _place(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


@router_signal("confidences")
def _confidences(signals: RouterSignals, ensemble: Ensemble) -> Tensor:
    if "output_features" in (signals.reads or ()):
        return signals.output_features[..., 0]  # one pass for a router that reads both
    signals.outputs = ensemble.all_outputs(signals.features)
    return ensemble.confidences(signals.outputs, signals.features)


@router_signal("output_features")
def _output_features(signals: RouterSignals, ensemble: Ensemble) -> Tensor:
    read = [ensemble.layout.read(signals.features, i) for i in ensemble.ids]
    return output_features(
        ensemble.parts, read, classifier=ensemble.classifier, columns=ensemble.columns
    )


class BusRouter(nn.Module):
    """The interface that a bus requires of its router.

    Attributes:
        reads: Names of `SIGNALS`, or `QUERY` and `ANSWERS`.
        output: How the bus combines the experts: the residual sum, or the mixture Σ α_k p_k.
        chosen: How many columns have a weight in each row, all other logits being −∞; None
            for all.
        temperature: T of the weights; a value above 1 makes them more even. Not used in training.
        log_prior: log q_k − log p_k of the columns ``(K,)``, if texts are expected in shares q
            other than the shares p that the router was trained under. Not used in training.
    """

    reads: ClassVar[frozenset[str]] = frozenset()
    output: ClassVar[Literal["mixture", "residual"]] = "residual"
    chosen: int | None = None
    temperature: float = 1.0
    log_prior: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_prior", None, persistent=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = {*SIGNALS, QUERY, ANSWERS}
        if unknown := cls.reads - names:
            raise UsageError(
                f"router {cls.__name__} reads what nobody computes",
                expected="names among " + ", ".join(sorted(names)),
                found=", ".join(sorted(unknown)),
                hint="Register a signal with router_signal before the class that reads it.",
            )

    def forward(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return logits ``(B, K)``.

        Args:
            z: What the router reads of bus vectors, ``(B, W)``.
            signals: Its other inputs; None while there are no experts.
        """
        raise NotImplementedError

    def weights(self, z: Tensor, signals: RouterSignals | None = None) -> Tensor:
        """Return α = softmax(logits / T + log prior), ``(B, K)``, for what `forward` takes."""
        return torch.softmax(self.expecting(self(z, signals)), dim=-1)

    def expecting(self, logits: Tensor) -> Tensor:
        """Return logits ``(B, K)`` / T, plus the log prior if other shares are expected."""
        # First T, then the prior: shares are counts of texts, which no temperature changes.
        logits = logits / self.temperature
        return logits if self.log_prior is None else logits + self.log_prior

    def of_texts(self, backbone: Any, texts: Sequence[str]) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return the signals that follow from texts without any expert, by name; usually none.

        Args:
            backbone: The `Backbone` that reads the texts.
            texts: N texts; without any, only the names are asked for.
        """
        return {}

    def log_density(self, z: Tensor) -> Tensor | None:  # noqa: ARG002  (kinds that know it)
        """Return log p(z) under the experts' rows ``(B,)``, up to a constant; None for most kinds.

        Args:
            z: What the router reads of bus vectors, ``(B, W)``.
        """
        return None

    def log_densities(self, z: Tensor) -> Tensor | None:  # noqa: ARG002  (kinds that know them)
        """Return log p_k(z) under each column's rows ``(B, K)``; None if `log_density` is None."""
        return None
