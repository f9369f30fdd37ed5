"""The form ``words``: logits over an expert's own labels, linear in its words and in z.

    Δ = W z + b + Wᵤ f(x)        f_v = idf_v u_v / ‖·‖₂ over the places that the expert knows

`places` are those that two of its author's texts have, idf_v = 1 + ln((1 + n) / (1 + df_v)).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import safetensors.torch
import torch
from torch import Tensor, nn

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.experts import Expert
from redhost.core.bus.layout import FeatureSegment
from redhost.registry.errors import ContractError
from redhost.registry.package.manifest import ExpertManifest

from .by_word import ByWord, named_words
from .counts import Counts
from .places import MOST, channel

__all__ = ["CARD", "COUNTS", "FORM", "WEIGHTS", "WORDS", "WordsExpert", "build_words"]

FORM = "words"
WEIGHTS, WORDS, COUNTS, CARD = (
    "expert.safetensors",
    "words.safetensors",
    "counts.safetensors",
    "card-words.safetensors",
)
"""The files of a package: W and b; Wᵤ, its places and idf; counts; the words of the card's rows."""


class WordsExpert(Expert):
    """An expert that reads the words of a text in addition to z.

    Args:
        weights: W ``(L, D)`` and b ``(L,)``.
        words: Wᵤ ``(P, L)``, ``places`` ``(P,)`` in ascending order, and ``idf`` ``(P,)``.
        counts: The counts of its author's rows.
        labels: Its labels.
        temperature: T of softmax(Δ / T).
    """

    router = FORM

    def __init__(
        self,
        *,
        weights: Mapping[str, Tensor],
        words: Mapping[str, Tensor],
        counts: Counts,
        labels: Sequence[str],
        temperature: float = 1.0,
    ) -> None:
        super().__init__(space="labels", labels=labels, temperature=temperature)
        self.W, self.b = nn.Parameter(weights["W"].float()), nn.Parameter(weights["b"].float())
        self.register_buffer("places", words["places"].long())
        # Row by row: idf_v Wᵤ, and idf_v² for the norm. The last row is that of unknown places.
        table = torch.cat([words["Wu"].float() * words["idf"][:, None], words["idf"][:, None]], 1)
        self.register_buffer("table", nn.functional.pad(table.float(), (0, 0, 0, 1)))
        self.words, self.counts = dict(words), counts

    places: Tensor
    table: Tensor

    def save_words(self) -> bytes:
        """Return the file of Wᵤ, its places and idf."""
        # Places exactly: a float32 has all integers up to 2^24.
        exact = {name: self.words[name].float() for name in ("places", "idf")}
        return safetensors.torch.save({**exact, "Wu": self.words["Wu"].half()})

    def segment(self, backbone: Backbone) -> FeatureSegment:
        """Return the words of texts."""
        return channel(backbone)

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ ``(B, L)`` for z and words ``(B, D + 2 · MOST)``, or z ``(B, D)`` alone."""
        width = self.W.shape[1]
        delta = nn.functional.linear(z[:, :width], self.W, self.b)
        if z.shape[1] == width or not len(self.places):
            return delta
        places, weights = z[:, width : width + MOST], z[:, width + MOST :]  # (B, MOST) each
        given = places > 0
        index = torch.searchsorted(self.places, places.long() - 1).clamp_max(len(self.places) - 1)
        index = torch.where(self.places[index] == places.long() - 1, index, len(self.places))
        # Text by text, so that no text's sum depends on the others: as many places as it has.
        starts = given.sum(1).cumsum(0) - given.sum(1)
        index, weights = index[given], weights[given]
        spoken = nn.functional.embedding_bag(
            index, self.table[:, :-1], starts, mode="sum", per_sample_weights=weights
        )
        square = nn.functional.embedding_bag(
            index,
            self.table[:, -1:].square(),
            starts,
            mode="sum",
            per_sample_weights=weights.square(),
        )
        return delta + spoken / square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()

    def by_word(self, backbone: Backbone, text: str, z: Tensor) -> ByWord:
        """Return what each word of a text adds to Δ ``(L,)``, and what its z ``(D,)`` adds."""
        words, names = named_words(backbone, text)
        place, weight = torch.from_numpy(words.places), torch.from_numpy(words.weights).float()
        known = nn.functional.pad(self.places, (0, 1), value=-1)  # the last row: unknown places
        index = torch.searchsorted(self.places, place)
        rows = self.table[torch.where(known[index] == place, index, len(self.places))]
        scaled = weight[:, None] * rows  # (P, L + 1)
        length = scaled[:, -1].norm().clamp_min(torch.finfo(scaled.dtype).tiny)
        return ByWord(names=names, terms=scaled[:, :-1] / length, encoder=self(z[None])[0])


def build_words(manifest: ExpertManifest, files: Mapping[str, bytes]) -> WordsExpert:
    """Build the expert of a package.

    Raises:
        ContractError: If its files do not fit each other.
    """
    who = f"expert {manifest.id!r}"
    missing = {WEIGHTS, WORDS, COUNTS} - {*files}
    if missing or not manifest.writes.spec.own_labels:
        found = f"no {', '.join(sorted(missing))}" if missing else manifest.writes.space
        raise ContractError(who, expected="labels of its own, words and counts", found=found)
    weights, words = (safetensors.torch.load(files[name]) for name in (WEIGHTS, WORDS))
    places, labels = len(words.get("places", ())), len(manifest.labels)
    shapes = {n: tuple(t.shape) for n, t in (*weights.items(), *words.items())}
    expected = {
        "W": (labels, manifest.reads.width),
        "b": (labels,),
        "Wu": (places, labels),
        "places": (places,),
        "idf": (places,),
    }
    if shapes != expected:
        raise ContractError(who, expected=str(expected), found=str(shapes))
    if bool((words["places"].diff() <= 0).any()):
        raise ContractError(who, expected="places in ascending order", found="another order")
    expert = WordsExpert(
        weights=weights,
        words=words,
        counts=Counts.load(files[COUNTS], labels=manifest.labels),
        labels=manifest.labels,
        temperature=manifest.temperature,
    )
    expert.card_segment = _card_rows(who, manifest, files)
    return expert


def _card_rows(
    who: str, manifest: ExpertManifest, files: Mapping[str, bytes]
) -> Mapping[str, Tensor]:
    """Return the words of a card's vectors by part, ``(N, 2 · MOST)``."""
    if CARD not in files:
        return {}
    rows = safetensors.torch.load(files[CARD])
    expected = {"fit": (manifest.card.fit, 2 * MOST), "gate": (manifest.card.gate, 2 * MOST)}
    shapes = {name: tuple(t.shape) for name, t in rows.items()}
    if shapes != expected:
        raise ContractError(
            who, expected=f"words of its card's rows: {expected}", found=f"{shapes}"
        )
    return {name: t.float() for name, t in rows.items()}
