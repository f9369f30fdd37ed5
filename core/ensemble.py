"""The experts of a bus, and the three passes that sum what they say.

dense      all experts, stacked: one product for all U and one for all V
grouped    only those that have a say on some row, each with its own rows: what is idle costs
nothing, whatever its form
gathered   only those that have a say, their rows of the stack gathered: nothing leaves the
device, and `torch.compile` sees one graph
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Literal

from torch import Tensor, nn

from ..registry.errors import CompositionError
from .evidence import ear_of, voice_of
from .experts import Expert, LowRank
from .layout import Layout
from .said import Said, active, together, weigh
from .stack import LowRankStack

__all__ = ["Ensemble", "Kernel", "Speech", "suited"]

Kernel = Literal["dense", "gathered", "grouped"]
"""How the experts are summed."""

Speech = tuple[Said, ...]

CROWD = 4
"""Experts for each column that has a say, from which on asking those alone is the faster pass."""


def suited(experts: Collection[Expert], *, router: nn.Module, classifier: Tensor | None) -> Kernel:
    """Return the kernel that suits a composition.

    Args:
        experts: The experts.
        router: Its attribute `chosen` says how many columns have a say in a row, None for all;
            `asks`, that it hears experts before it decides.
        classifier: W_c ``(C, D)``, which tells the device.
    """
    chosen, asks = getattr(router, "chosen", None), getattr(router, "asks", False)
    if chosen is None or len(experts) <= CROWD * chosen:
        return "dense"
    alike = all(isinstance(e, LowRank) and e.space != "labels" for e in experts)
    on_device = classifier is not None and classifier.device.type != "cpu"
    return "gathered" if on_device and alike and not asks else "grouped"


class Ensemble(nn.Module):
    """Experts by column, sorted by where they write.

    Args:
        experts: By id; columns are their ids in sorted order.
        classifier: W_c ``(C, D)``, or None.
        layout: What they read beside h.
        kernel: Which pass sums them.

    Raises:
        CompositionError: If one needs a classifier that is not there.
    """

    def __init__(
        self,
        experts: Mapping[str, Expert],
        *,
        classifier: Tensor | None,
        layout: Layout,
        kernel: Kernel,
    ) -> None:
        super().__init__()
        self.ids = tuple(sorted(experts))
        self.parts = tuple(experts[i] for i in self.ids)  # a tuple: the bus registers the modules
        self.layout, self.kernel = layout, kernel
        self.register_buffer("classifier", classifier, persistent=False)
        self.hidden = self._who_writes("hidden")
        self.logit = self._who_writes("logits")
        self.own = self._who_writes("labels")
        if classifier is None and (self.hidden or self.logit):
            raise CompositionError(
                "the backbone has no classifier",
                expected="experts with labels of their own",
                found=", ".join(self.ids[i] for i in (*self.hidden, *self.logit)),
            )
        self.hidden_stack = self._stack(self.hidden)
        self.logit_stack = self._stack(self.logit)

    classifier: Tensor | None

    @cached_property
    def ear(self) -> Tensor | None:
        """What voices are measured with ``(…, D)``, made when first one is."""
        return ear_of(self.classifier)

    def _who_writes(self, space: str) -> tuple[int, ...]:
        return tuple(i for i, e in enumerate(self.parts) if e.space == space)

    def _stack(self, columns: tuple[int, ...]) -> LowRankStack | None:
        """Stack those that can be stacked, where the pass wants a stack."""
        if self.kernel == "grouped":
            return None
        read_z = [i for i in columns if not self.layout.has(self.ids[i])]
        return LowRankStack.of({i: self.parts[i] for i in read_z})

    # -- asking -------------------------------------------------------------------------------

    def delta(self, z: Tensor, column: int) -> Tensor:
        """Return Δ_i of what the expert reads of z or z̃, ``(B, out)``, in the precision of z."""
        expert = self.parts[column]
        read = self.layout.read(z, self.ids[column])
        made: Tensor = expert(read.to(expert.precision)).to(z.dtype)
        return made

    def speak(self, z: Tensor, asked: Iterable[tuple[int, Tensor | None]]) -> Speech:
        """Return Δ of each column asked for its rows of z ``(B, D)``; the backbone's is silent."""
        return tuple(
            Said(column, rows, self.delta(z if rows is None else z[rows], column))
            for column, rows in asked
            if column < len(self.ids)
        )

    def all(self, z: Tensor) -> Speech:
        """Return what everybody says of all rows ``(B, D)``; stacks are passed over once."""
        narrow, made = self.layout.narrow(z), dict[int, Tensor]()
        for stack in filter(None, (self.hidden_stack, self.logit_stack)):
            made |= zip(stack.columns, stack.each(narrow), strict=True)
        return tuple(
            Said(i, None, made[i] if i in made else self.delta(z, i)) for i in range(len(self.ids))
        )

    def asked(self, z: Tensor, alpha: Tensor) -> Speech | None:
        """Return what those with a weight ``(B, K)`` say, if the pass is `grouped`; else None."""
        return self.speak(z, active(alpha)) if self.kernel == "grouped" else None

    def voices(self, said: Iterable[Said], z: Tensor, *, columns: int) -> Tensor:
        """Return the evidence in what was said, ``(B, K)``; zero where nobody was asked."""
        voices = z.new_zeros(z.shape[0], columns)
        for some in self._alike(said):
            rows, places, delta = together(some, len(z))
            voices[rows, places] = voice_of(self.parts[some[0].column], delta, self.ear)
        return voices

    def _alike(self, said: Iterable[Said]) -> Iterator[list[Said]]:
        """Yield what can be looked at in one go: where one classifier is shared, all of it."""
        shared: dict[str, list[Said]] = {"hidden": [], "logits": []}
        for s in said:
            space = self.parts[s.column].space
            if space in shared:
                shared[space].append(s)
            else:
                yield [s]
        yield from filter(None, shared.values())

    # -- summing ------------------------------------------------------------------------------

    def residual(
        self, h: Tensor, z: Tensor, alpha: Tensor, *, said: Speech | None, chosen: int | None = None
    ) -> Tensor:
        """Return ĥ = h + Σ_i α_i Δ_i(z), ``(B, D)``.

        Args:
            h: Features ``(B, D)``, or h̃.
            z: Bus vectors ``(B, D)``, or z̃.
            alpha: Weights ``(B, K)``.
            said: What everybody with a weight says; None computes it.
            chosen: How many columns have a weight in each row, where that is known to be few.
        """
        h = self.layout.narrow(h)
        return self._add(h, z, alpha, said, self.hidden, (self.hidden_stack, chosen))

    def logits(
        self, h: Tensor, z: Tensor, alpha: Tensor, *, said: Speech | None, chosen: int | None = None
    ) -> Tensor:
        """Return W_c ĥ + Σ_i α_i Δ_i^logit(z), ``(B, C)``; arguments as for `residual`."""
        if self.classifier is None:
            raise CompositionError("the backbone has no classifier")
        shared = self.residual(h, z, alpha, said=said, chosen=chosen) @ self.classifier.T
        return self._add(shared, z, alpha, said, self.logit, (self.logit_stack, chosen))

    def _add(
        self,
        out: Tensor,
        z: Tensor,
        alpha: Tensor,
        said: Speech | None,
        columns: tuple[int, ...],
        stacked: tuple[LowRankStack | None, int | None],
    ) -> Tensor:
        """Return out + Σ over some columns, stacked or one by one."""
        if not columns:
            return out
        stack, chosen = stacked
        if said is None and stack is not None:
            out = out + stack(self.layout.narrow(z), alpha, chosen=chosen)
            columns = tuple(i for i in columns if i not in stack.columns)
        if said is None:
            said = self.speak(z, ((i, None) for i in columns))
        wanted = frozenset(columns)
        return weigh((s for s in said if s.column in wanted), alpha, out)
