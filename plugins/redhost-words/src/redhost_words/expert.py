"""The form ``words``: logits over an expert's own labels, linear in its words and in z.

    Δ = W z + b + Wᵤ f(x)        f_v = idf_v u_v / ‖·‖₂ over the places that the expert knows

Of z it reads the states alone, the first S dimensions: hashed tokens say what f says.
`places` are those that two of its author's texts have, idf_v = 1 + ln((1 + n) / (1 + df_v)). To the
rows of its card, which it learnt from as well, it answers as if it had not (`marks`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor, nn

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.experts import Expert
from redhost.core.bus.layout import FeatureSegment
from redhost.core.label_sets import NONE
from redhost.core.types import CardRow
from redhost.registry.errors import ContractError
from redhost.registry.package.manifest import ExpertManifest, parse_expert

from .by_word import ByWord, named_words
from .counts import Counts
from .marks import keys_of, marked
from .places import MOST, WIDTH, Words, channel, states_of
from .static import index_of

__all__ = ["CARD", "COUNTS", "FORM", "WEIGHTS", "WORDS", "Rows", "WordsExpert", "build_words"]

FORM = "words"
WEIGHTS, WORDS, COUNTS, CARD = (
    "expert.safetensors",
    "words.safetensors",
    "counts.safetensors",
    "card-words.safetensors",
)
"""The files of a package: W and b; Wᵤ, its places and idf; counts; the words of the card's rows,
and what leaving each out adds to its logits, if the expert learnt from them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Rows that an expert learnt from, with their labels.

    Attributes:
        z: Bus vectors ``(N, D)``.
        words: Words with marks ``(N, WIDTH)``.
        labels: N of them.
    """

    z: Tensor
    words: Tensor
    labels: tuple[str, ...]


class WordsExpert(Expert):
    """An expert that reads the words of a text in addition to z.

    Args:
        weights: W ``(L, S)`` and b ``(L,)``.
        width: D.
        words: Wᵤ ``(P, L)``, ``places`` ``(P,)`` in ascending order, ``idf`` ``(P,)``, and
            ``probe``, the words of `probe_text`, ``(WIDTH,)``.
        counts: The counts of its author's rows.
        labels: Its labels.
        temperature: T of softmax(Δ / T).
        marks: Words with marks of rows that it learnt from ``(N, WIDTH)``.
        left_out: What leaving each out adds to its logits ``(N, L)``.
        gate: The gate rows of its card that are counted; None if its author withheld them.
    """

    router = FORM

    def __init__(
        self,
        *,
        weights: Mapping[str, Tensor],
        words: Mapping[str, Tensor],
        counts: Counts,
        width: int,
        labels: Sequence[str],
        temperature: float = 1.0,
        marks: Tensor | None = None,
        left_out: Tensor | None = None,
        gate: Rows | None = None,
    ) -> None:
        super().__init__(space="labels", labels=labels, temperature=temperature)
        self.width = width
        self.W, self.b = nn.Parameter(weights["W"].float()), nn.Parameter(weights["b"].float())
        self.register_buffer("places", words["places"].long())
        # Row by row: idf_v Wᵤ, and idf_v² for the norm. The last row is that of unknown places.
        table = torch.cat([words["Wu"].float() * words["idf"][:, None], words["idf"][:, None]], 1)
        self.register_buffer("table", nn.functional.pad(table.float(), (0, 0, 0, 1)))
        self.words, self.counts, self.gate = dict(words), counts, gate
        keys = keys_of(torch.zeros(0, WIDTH) if marks is None else marks)
        order = keys.argsort()[int((keys == 0).sum()) :]  # a row without a mark is no one's
        self.register_buffer("marks", keys[order])
        less = torch.zeros(0, len(labels)) if left_out is None else left_out[order].float()
        self.register_buffer("left_out", nn.functional.pad(less, (0, 0, 0, 1)))

    places: Tensor
    table: Tensor
    marks: Tensor
    left_out: Tensor

    def first_of(self, backbone: Backbone) -> int:
        """Return the number of states, which come first in z and are all that it reads there."""
        return states_of(backbone)

    def behind(self, A: Tensor, c: Tensor) -> WordsExpert:
        """Return the expert for states of another backbone, which A z + c maps to those it reads.

        Its words stay as they are: they do not depend on states. No rows are marked, which a card
        of the other backbone does not have.

        Args:
            A: ``(D, D')``; its columns after the states are zeros.
            c: ``(D,)``.
        """
        A, c = A[: self.W.shape[1]].to(self.W), c[: self.W.shape[1]].to(self.W)
        read = int(A.any(0).nonzero().max()) + 1 if bool(A.any()) else 1
        return WordsExpert(
            weights={"W": self.W @ A[:, :read], "b": self.b + self.W @ c},
            words=self.words,
            counts=self.counts,
            width=A.shape[1],
            labels=self.labels,
            temperature=self.temperature,
        )

    def carried_files(
        self, files: Mapping[str, bytes], backbone: Backbone, *, rows: Sequence[CardRow]
    ) -> dict[str, bytes]:
        """Return the files of a package on another backbone, besides W and b.

        Args:
            files: The files of its package.
            backbone: The other backbone.
            rows: Those of a new card, which the expert has not learnt from; its fit rows are added
                to the counts, and gate rows of the former card leave them. Empty: the card stays.

        Raises:
            ContractError: If the backbone finds other words.
        """
        compute = self.segment(backbone).compute
        assert compute is not None  # noqa: S101  (words are computed from texts)
        if not rows:
            return {name: files[name] for name in (WORDS, COUNTS)}
        parts = {part: [r for r in rows if r.part == part] for part in ("fit", "gate")}
        words = {part: compute([r.text for r in some]) for part, some in parts.items()}
        fit, counts = Words.of_segment(words["fit"]), self.counts
        if self.gate is not None:
            counts = counts.without(Words.of_segment(self.gate.words), self.gate.labels)
        counts = counts.plus(fit, [r.label for r in parts["fit"]])
        card = {part: rows[:, : 2 * MOST].contiguous() for part, rows in words.items()}
        return {WORDS: files[WORDS], COUNTS: counts.save(), CARD: safetensors.torch.save(card)}

    def save_words(self) -> bytes:
        """Return the file of Wᵤ, its places and idf."""
        # Places exactly: a float32 has all integers up to 2^24.
        exact = {name: self.words[name].float() for name in ("places", "idf", "probe")}
        return safetensors.torch.save({**exact, "Wu": self.words["Wu"].half()})

    def segment(self, backbone: Backbone) -> FeatureSegment:
        """Return the words of texts.

        Raises:
            ContractError: If a backbone finds other words in the expert's labels than its author's.
        """
        segment, expected = channel(backbone), self.words["probe"]
        assert segment.compute is not None  # noqa: S101  (words are computed from texts)
        if not torch.equal(segment.compute([probe_text(self.labels)])[0], expected.float()):
            raise ContractError(
                f"words of an expert with labels {', '.join(self.labels[:3])}",
                expected="the words that its author's backbone finds in its labels",
                found="others: another tokenizer, or another version of redhost-words",
                hint="Ask its author for a new build.",
            )
        return segment

    def left_out_of(self, words: Tensor) -> Tensor:
        """Return what leaving rows out adds to their logits ``(B, L)``; 0 for texts without marks.

        Args:
            words: Words with marks ``(B, WIDTH)``.
        """
        return self.left_out[_index(self.marks, keys_of(words))]

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ ``(B, L)`` for z and words ``(B, D + WIDTH)``, or z ``(B, D)`` alone."""
        width = self.width
        delta = nn.functional.linear(z[:, : self.W.shape[1]], self.W, self.b)
        if z.shape[1] == width:
            return delta
        places, weights = z[:, width : width + MOST], z[:, width + MOST : width + 2 * MOST]
        if torch.compiler.is_compiling():
            return delta + self._in_a_graph(places, weights)
        delta = delta + self.left_out_of(z[:, width:])
        if not len(self.places):
            return delta
        given = places > 0
        index = _index(self.places, places.long() - 1)
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

    def _in_a_graph(self, places: Tensor, weights: Tensor) -> Tensor:
        """Return Wᵤ f(x) ``(B, L)`` of texts, which have no marks, in fixed shapes."""
        rows = self.table[index_of(self.places, places.long() - 1)] * weights[..., None]
        square = rows[..., -1].square().sum(1).clamp_min(torch.finfo(rows.dtype).tiny)
        return rows[..., :-1].sum(1) / square.sqrt()[:, None]

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


def _index(known: Tensor, values: Tensor) -> Tensor:
    """Return where values are among known ones, which ascend; their number for any other."""
    index = torch.searchsorted(known, values)
    inside = index.clamp_max(max(len(known) - 1, 0))
    is_known = known[inside] == values if len(known) else torch.zeros_like(values, dtype=torch.bool)
    return torch.where(is_known, index, len(known))


def probe_text(labels: Sequence[str]) -> str:
    """Return the text by which hosts check that they find the same words as the author."""
    return " ".join(labels)


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
    width = manifest.ported.width if manifest.ported else manifest.reads.width
    states = min(weights.get("W", torch.zeros(1, 1)).shape[-1], width)
    shapes = {n: tuple(t.shape) for n, t in (*weights.items(), *words.items())}
    expected = {
        "W": (labels, states),
        "b": (labels,),
        "Wu": (places, labels),
        "places": (places,),
        "idf": (places,),
        "probe": (WIDTH,),
    }
    if shapes != expected:
        raise ContractError(who, expected=str(expected), found=str(shapes))
    if bool((words["places"].diff() <= 0).any()):
        raise ContractError(who, expected="places in ascending order", found="another order")
    card, left_out = _card_words(who, manifest, files)
    learnt = left_out is not None
    expert = WordsExpert(
        weights=weights,
        words=words,
        width=width,
        counts=Counts.load(files[COUNTS], labels=manifest.labels, other=NONE),
        labels=manifest.labels,
        temperature=manifest.temperature,
        marks=torch.cat([card["fit"], card["gate"]]) if learnt else None,
        left_out=left_out,
        gate=_gate_rows(manifest, files, card["gate"]) if learnt else None,
    )
    if manifest.ported:
        expert = _ported(who, manifest, files, expert)
    expert.card_segment = card
    return expert


def _ported(
    who: str, manifest: ExpertManifest, files: Mapping[str, bytes], expert: WordsExpert
) -> WordsExpert:
    """Return an author's expert behind the map of its port.

    Raises:
        ContractError: If the words are not its author's, or the port has marks.
    """
    assert manifest.ported  # noqa: S101  (asked by `build_words`)
    author = parse_expert(files[manifest.ported.file]).unwrap(who).files or {}
    own = manifest.files or {}
    if own.get(WORDS) != author.get(WORDS) or len(expert.marks):
        raise ContractError(
            f"{who} is a port", expected="its author's words, and no marks", found="others"
        )
    fitted = safetensors.torch.load(files[manifest.ported.map.file])
    return expert.behind(fitted["A"].float(), fitted["c"].float())


def _card_words(
    who: str, manifest: ExpertManifest, files: Mapping[str, bytes]
) -> tuple[Mapping[str, Tensor], Tensor | None]:
    """Return the words of a card's vectors by part ``(N, WIDTH)``, and ``left_out`` if it is there.

    Raises:
        ContractError: If they are not of so many rows.
    """
    if CARD not in files:
        return {}, None
    rows = safetensors.torch.load(files[CARD])
    fit, gate = manifest.card.fit, manifest.card.gate
    expected = {"fit": (fit, 2 * MOST), "gate": (gate, 2 * MOST)}
    if "left_out" in rows:
        expected["left_out"] = (fit + gate, len(manifest.labels))
    shapes = {name: tuple(t.shape) for name, t in rows.items()}
    if shapes != expected or not all(bool(t.isfinite().all()) for t in rows.values()):
        raise ContractError(
            who,
            expected=f"words of its card's rows, finite: {expected}",
            found=str(shapes) if shapes != expected else "NaN or infinity",
        )
    words = marked(torch.cat([rows["fit"], rows["gate"]]), expert=manifest.id)
    return {"fit": words[:fit], "gate": words[fit:]}, rows.get("left_out")


def _gate_rows(manifest: ExpertManifest, files: Mapping[str, bytes], words: Tensor) -> Rows:
    """Return the gate rows of a card that have a mark; the registry has checked its tensors."""
    card, one = safetensors.torch.load(files[str(manifest.card.file)]), keys_of(words) > 0
    given = card["gate_label"][one]
    if given.dim() == 1:
        labels = [manifest.labels[int(n)] for n in given]
    else:  # sets, each under its first label
        labels = [
            min((manifest.labels[k] for k in row.nonzero()[:, 0]), default=NONE) for row in given
        ]
    return Rows(z=card["gate_z"][one].float(), words=words[one], labels=tuple(labels))
