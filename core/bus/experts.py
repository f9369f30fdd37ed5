"""The forms an expert can have: z → Δ(z), written to hidden states, logits or own labels.

    residual   Δ = V σ(U z)             U (R, D), V (out, R)     seed 001, section 4.5.4
    mlp        Δ = V σ(U z + u) + v     the same with biases
    linear     Δ = W z + b              W (out, D)               seed 001, section 4.5.2

`out` is D where the expert writes `hidden`, C where it writes `logits`, and the number of its own
labels where it writes `labels`. A residual expert with labels of its own is a residual step
followed by classifier rows of its own: W (z + V σ(U z)) + b.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...registry.errors import ContractError
from ...registry.package.forms import SPACES, SpaceSpec
from ...registry.package.manifest import ExpertManifest
from ...registry.package.rules import expected_tensors
from .layout import FeatureSegment

Space = Literal["hidden", "labels", "logits"]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "identity": lambda x: x,
    "relu": torch.relu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


class Expert(nn.Module):
    """One residual module on the bus. Subclasses compute Δ from z and keep no state.

    A subclass with a method ``intervention(backbone)`` acts inside the backbone's blocks
    (`core.backbones.interventions.InTrunk`).

    Args:
        space: Where Δ is written.
        labels: The labels that the expert predicts.
        temperature: T of softmax(Δ / T) where it writes `labels`.

    Attributes:
        thresholds: For a multi-label task: the probability from which on each of its labels is
            part of the answer.
        rules: How answers of each of its labels are decoded, for a head that needs more than a
            threshold.
        card_segment: Its segment for the rows of its card, ``(N, width)``, by part: ``fit`` and
            ``gate``. Cards of texts need none, and cards of sums have no rows.
        router: The router kind of a plugin that its package has data for: the default of its hosts.
        source: The digests of its package and of the plugin that made it, which key its rows in
            the feature cache.
    """

    thresholds: tuple[float, ...] = ()
    rules: tuple[Any, ...] = ()
    card_segment: Mapping[str, Tensor] = MappingProxyType({})
    router: str = ""
    source: str = ""

    def __init__(self, *, space: Space, labels: Sequence[str], temperature: float = 1.0) -> None:
        super().__init__()
        self.space: Space = space
        self.labels = tuple(labels)
        self.temperature = temperature

    def segment(self, backbone: Any) -> FeatureSegment | None:  # noqa: ARG002
        """Return the segment of h̃ that the expert reads in addition to z; None for z alone.

        Experts that return segments of one key share it: it is computed once.

        Args:
            backbone: The backbone (`core.backbones.backbone.Backbone`) of its bus.
        """
        return None

    def described_by(self, manifest: ExpertManifest) -> None:
        """Take from its manifest what its author fitted besides the weights."""
        self.thresholds, self.rules = manifest.thresholds or (), manifest.span_rules or ()

    @property
    def precision(self) -> torch.dtype:
        """The dtype of its weights, to which z is converted."""
        # A plugin's expert may have no weights at all.
        return next((p.dtype for p in self.parameters()), torch.float32)

    @property
    def writes(self) -> SpaceSpec:
        """What it means to write to its space."""
        return SPACES[self.space]

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ(z), ``(B, out)``, for z ``(B, D)``."""
        raise NotImplementedError

    def logits(self, h: Tensor, z: Tensor, classifier: Tensor | None) -> Tensor:
        """Return the logits it answers with alone, ``(B, C)``, or ``(B, L)`` over its own labels.

        Args:
            h: Features ``(B, D)``.
            z: What it reads, ``(B, D)``.
            classifier: W_c ``(C, D)``; not used for labels of its own.
        """
        delta: Tensor = self(z)
        if self.writes.own_labels or classifier is None:
            return delta
        if self.writes.states:  # in the precision of W_c, which may be lower while training
            return ((h + delta).to(classifier.dtype) @ classifier.T).to(h.dtype)
        return h @ classifier.T + delta

    def labels_among(self, shared: Sequence[str]) -> Sequence[str]:
        """Return the labels of its logits: its own, or the backbone's."""
        return self.labels if self.writes.own_labels else shared

    def folded(self) -> Expert:
        """Return an expert that computes the same in fewer products, while no weight changes."""
        return self

    def to_units(self, *, scale: float, shift: float) -> None:
        """Multiply the output by `scale` and add `shift`, both folded into the last layer."""
        raise NotImplementedError


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b ``(B, out)``; for n stacked weights ``(n, out, in)`` all n of them.

    Args:
        x: ``(B, in)``, or ``(n, B, in)`` with one input for each weight.
        weight: W.
        bias: b, ``(out,)`` or ``(n, out)``.
    """
    if weight.dim() == 2:  # noqa: PLR2004  (a matrix)
        return nn.functional.linear(x, weight, bias)
    x = x.expand(len(weight), *x.shape[-2:])
    # baddbmm adds the bias within the product, as `linear` does for one matrix.
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


class LowRank(Expert):
    """Δ = V σ(U z + u) + v; the forms `residual` (no biases) and `mlp` (both)."""

    def __init__(
        self,
        *,
        U: Tensor,
        V: Tensor,
        u: Tensor | None = None,
        v: Tensor | None = None,
        activation: str,
        space: Space,
        labels: Sequence[str] = (),
        temperature: float = 1.0,
    ) -> None:
        super().__init__(space=space, labels=labels, temperature=temperature)
        self.activation = activation
        self.U, self.V = nn.Parameter(U), nn.Parameter(V)
        self.u = nn.Parameter(u) if u is not None else None
        self.v = nn.Parameter(v) if v is not None else None

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ(z), ``(B, out)``, for z ``(B, D)``."""
        units = nn.functional.linear(z, self.U, self.u)  # (B, R)
        return nn.functional.linear(ACTIVATIONS[self.activation](units), self.V, self.v)

    def to_units(self, *, scale: float, shift: float) -> None:
        """Fold scale and shift into V and v; a shift needs a v."""
        self.V.data *= scale
        if self.v is not None:
            self.v.data = self.v.data * scale + shift

    def biases(self) -> tuple[Tensor, Tensor]:
        """Return u ``(R,)`` and v ``(out,)``, zeros where the form has none."""
        u, v = (
            weight.new_zeros(len(weight)) if bias is None else bias.detach()
            for weight, bias in ((self.U, self.u), (self.V, self.v))
        )
        return u, v


class InTrunkExpert(Expert):
    """An expert that changes h inside the trunk: its input on the bus is its Δ, h' − h.

    Args:
        step: The expert itself, which acts inside (`core.backbones.interventions`).
    """

    def __init__(self, step: Expert) -> None:
        super().__init__(space="hidden", labels=step.labels)
        self.step = step

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ ``(B, D)``, which the trunk has already computed."""
        return z


class Linear(Expert):
    """Δ = W z + b."""

    def __init__(
        self,
        *,
        W: Tensor,
        b: Tensor,
        space: Space,
        labels: Sequence[str] = (),
        temperature: float = 1.0,
    ) -> None:
        super().__init__(space=space, labels=labels, temperature=temperature)
        self.W, self.b = nn.Parameter(W), nn.Parameter(b)

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ(z), ``(B, out)``, for z ``(B, D)``."""
        return linear(z, self.W, self.b)

    def to_units(self, *, scale: float, shift: float) -> None:
        """Fold scale and shift into W and b."""
        self.W.data *= scale
        self.b.data = self.b.data * scale + shift


class ClassifierExpert(Expert):
    """W (z + V σ(U z)) + b: a residual step, then classifier rows of the expert's own."""

    def __init__(
        self,
        *,
        U: Tensor,
        V: Tensor,
        W: Tensor,
        b: Tensor,
        activation: str,
        labels: Sequence[str],
        temperature: float = 1.0,
    ) -> None:
        super().__init__(space="labels", labels=labels, temperature=temperature)
        self.activation = activation
        self.U, self.V = nn.Parameter(U), nn.Parameter(V)
        self.W, self.b = nn.Parameter(W), nn.Parameter(b)

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits over the expert's own labels, ``(B, L_i)``."""
        units = ACTIVATIONS[self.activation](linear(z, self.U))
        return linear(z + linear(units, self.V), self.W, self.b)

    def folded(self) -> Expert:
        """Return it with the product W V precomputed, if that leaves less to read."""
        return _Folded(self) if len(self.W) < len(self.U) else self

    def to_units(self, *, scale: float, shift: float) -> None:
        """Fold scale and shift into W and b."""
        self.W.data *= scale
        self.b.data = self.b.data * scale + shift


class _Folded(Expert):
    """A `ClassifierExpert` as W z + (W V) σ(U z) + b: V, which is as large as U, is not read."""

    def __init__(self, expert: ClassifierExpert) -> None:
        super().__init__(space=expert.space, labels=expert.labels, temperature=expert.temperature)
        self.activation, self.dtype = expert.activation, expert.precision
        # Buffers that are not stored: digests and training use the expert's own weights.
        for name in ("U", "W", "b"):
            weight = getattr(expert, name)
            # A view: an exported graph has no place for a parameter among the buffers.
            self.register_buffer(name, weight.view_as(weight), persistent=False)
        self.register_buffer("WV", expert.W @ expert.V, persistent=False)

    U: Tensor
    W: Tensor
    b: Tensor
    WV: Tensor

    @property
    def precision(self) -> torch.dtype:
        """The dtype of its weights."""
        return self.dtype

    def forward(self, z: Tensor) -> Tensor:
        """Return the logits over the expert's own labels, ``(B, L_i)``."""
        units = ACTIVATIONS[self.activation](linear(z, self.U))
        return linear(z, self.W, self.b) + linear(units, self.WV)


STACKABLE = (Linear, ClassifierExpert, _Folded)
"""Forms whose `forward` accepts stacked weights."""


class MappedExpert(Expert):
    """An expert of another backbone, to which this one's z is given as A z + c: Δ(A z + c).

    Args:
        expert: As its author trained it.
        A: ``(D', D)``, with D' of the backbone it was trained on.
        c: ``(D',)``.
    """

    def __init__(self, expert: Expert, *, A: Tensor, c: Tensor) -> None:
        super().__init__(space=expert.space, labels=expert.labels, temperature=expert.temperature)
        self.expert = expert
        self.A, self.c = nn.Parameter(A), nn.Parameter(c)

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ ``(B, out)`` for z ``(B, D)``."""
        delta: Tensor = self.expert(nn.functional.linear(z, self.A, self.c))
        return delta


def build_expert(manifest: ExpertManifest, tensors: Mapping[str, Tensor]) -> Expert:
    """Build an expert of a built-in form.

    Args:
        manifest: The expert's contract.
        tensors: Its weights by name; shapes as `expected_tensors` states them.

    Raises:
        ContractError: If tensors are missing or of other shapes.
    """
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    # C is not in the manifest: the last layer's rows say for how many classes it was made.
    rows = shapes.get("V", shapes.get("W"))
    expected = expected_tensors(manifest, classes=rows[0] if rows else None)
    if shapes != expected:
        raise ContractError(f"expert {manifest.id!r}", expected=str(expected), found=str(shapes))
    # Packages may carry half precision; the bus adds in float32.
    t = {name: tensor.to(torch.float32) for name, tensor in tensors.items()}
    return expert_from_tensors(
        t,
        space=manifest.writes.space,
        activation=manifest.activation,
        labels=manifest.labels,
        temperature=manifest.temperature,
    )


def expert_from_tensors(
    tensors: Mapping[str, Tensor],
    *,
    space: Space,
    activation: str,
    labels: Sequence[str],
    temperature: float = 1.0,
) -> Expert:
    """Return the expert with these tensors; their names determine its form.

    Args:
        tensors: The tensors of a form, by name.
        space: Where it writes.
        activation: σ, where there is one.
        labels: The labels that it predicts.
        temperature: T of softmax(Δ / T) where it writes `labels`.
    """
    t = tensors
    if "U" not in t:
        return Linear(W=t["W"], b=t["b"], space=space, labels=labels, temperature=temperature)
    if "W" in t:
        return ClassifierExpert(
            U=t["U"],
            V=t["V"],
            W=t["W"],
            b=t["b"],
            activation=activation,
            labels=labels,
            temperature=temperature,
        )
    return LowRank(
        U=t["U"],
        V=t["V"],
        u=t.get("u"),
        v=t.get("v"),
        activation=activation,
        space=space,
        labels=labels,
        temperature=temperature,
    )
