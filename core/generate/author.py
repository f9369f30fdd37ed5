"""The author's path where text is generated: documents in, a packaged expert out.

Whole documents are set aside, never lines: what a card shows was never trained on, nor was
anything else of its document.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.manifest import BackboneRef, ExpertManifest, Training
from ...registry.project import ExpertPlan, package_in
from ..author import Parts, Shop
from ..bus import LayerNorm
from ..card_files import CardFile, no_card, texts_card
from ..experts import Expert
from ..packaging import library_versions, save_expert
from ..pieces import pieces
from ..rows import CardRow, Row
from ..train_expert import ExpertSettings, Rows, expert_logits, train_expert
from ..verify import measure_off_domain
from .spelling import byte_counts

__all__ = ["split_documents", "train_generator"]

CANARIES = 8
CARD_PASSAGES = 32
LONGEST = 800
"""Characters of a passage: some 200 tokens."""


def split_documents(rows: Sequence[Row], *, valid: Sequence[Row] | None = None) -> Parts:
    """Set whole documents aside, by the hash of their names.

    A quarter of them is for the card, a tenth to stop early on.

    Args:
        rows: Texts; `domain` names the document a text is from, None makes it one of its own.
        valid: Validation texts of the author's own.

    Raises:
        UsageError: If there are fewer than five documents, or those to learn from say nothing that
            those set aside do not say.
    """
    by_name: dict[str, list[str]] = {}
    for row in rows:
        by_name.setdefault(row.text if row.domain is None else row.domain, []).append(row.text)
    names = sorted(by_name, key=lambda n: hashlib.sha256(n.encode()).hexdigest())
    if len(names) < 5:  # noqa: PLR2004  (one for every part, and two to learn from)
        raise UsageError(
            "too few documents to set any aside", expected="at least 5", found=str(len(names))
        )
    card, stop = max(1, len(names) // 8), max(1, len(names) // 10) if valid is None else 0
    cuts = (card, 2 * card, 2 * card + stop, len(names))
    chosen, start, known = [], 0, set[str]()
    for end in cuts:
        found = [p for n in names[start:end] for text in by_name[n] for p in _passages(text)]
        fresh = [p for p in dict.fromkeys(found) if p not in known]
        known |= set(fresh)
        chosen.append(tuple(Row(text=p, label="") for p in fresh))
        start = end
    fit, gate, validation, train = chosen
    if valid is not None:
        told = dict.fromkeys(p for row in valid for p in _passages(row.text))
        validation = tuple(Row(text=p, label="") for p in told if p not in known)
    if not train:
        raise UsageError(
            "the documents say the same",
            expected="passages to learn from that do not stand in those set aside",
            found=f"{len(known)} different ones in {len(names)} documents",
        )
    return Parts(train=train, valid=validation, fit=_some(fit), gate=_some(gate))


def train_generator(
    project: Path,
    plan: ExpertPlan,
    parts: Parts,
    *,
    shop: Shop,
    settings: ExpertSettings,
    resumable: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> ExpertManifest:
    """Train the causal expert of a project and write it into the project's package.

    Args:
        project: The project's folder.
        plan: What kind of expert it is.
        parts: Passages of the author's documents.
        shop: The generating backbone and what goes with it.
        settings: How to train; form and rank are the plan's.
        resumable: Whether to write a checkpoint after each epoch, and to go on from one.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the plan cannot be carried out on this backbone.
    """
    backbone = shop.backbone
    if plan.writes not in {None, "hidden"} or {plan.reads_tap, plan.writes_tap} != {"final"}:
        raise UsageError(
            f"expert {plan.id!r} is for a backbone that generates text",
            expected="writes hidden, reads and writes at the end",
            found=f"writes {plan.writes}, taps {plan.reads_tap} and {plan.writes_tap}",
            hint="Correct [tool.redhost.expert] in the project's pyproject.toml.",
        )
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    others = [r.text for r in shop.background if r.domain != plan.id]
    checkpoint = project / ".redhost-training.safetensors" if resumable else None
    trained = train_expert(
        _features(shop, parts.train),
        norm=norm,
        classifier=backbone.classifier,
        labels=(),
        domain_labels=(),
        settings=settings,
        task=backbone.task,
        valid=_features(shop, parts.valid) if parts.valid else None,
        background=shop.encode(others) if others else None,
        checkpoint=checkpoint,
        progress=progress,
    )

    def read(texts: Sequence[str]) -> Tensor:
        z: Tensor = norm(shop.encode(texts))
        return z

    manifest = save_expert(
        package_in(project),
        expert=trained.expert,
        expert_id=plan.id,
        backbone=BackboneRef(name=shop.manifest.id, fingerprint=shop.manifest.fingerprint),
        width=backbone.width,
        domain=plan.domain or "text",
        card=_card(plan, parts),
        canary=read([parts.train[0].text])[:CANARIES],
        vocabulary=shop.manifest.tokenizer,
        off_domain=measure_off_domain(
            trained.expert, plan.id, backbone, shop.background, read=read
        ),
        training=Training(
            data=hashlib.sha256("\n".join(_texts(parts.train)).encode()).hexdigest(),
            seed=settings.seed,
            epochs=trained.epoch,
            metrics=_metrics(trained.expert, shop, norm, parts),
            versions=library_versions(),
        ),
        license=plan.license,
    )
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return manifest


def _passages(text: str) -> list[str]:
    """Cut a text at line ends, else between words, into passages of at most `LONGEST` characters.

    What is lost is the white space between two.
    """
    told, rest = [], text.strip("\n")
    while len(rest) > LONGEST:
        cut = max(rest.rfind("\n", 0, LONGEST), 0) or max(rest.rfind(" ", 0, LONGEST), 0) or LONGEST
        told.append(rest[:cut])
        rest = rest[cut:].strip("\n")
    return [t for t in (*told, rest) if t.strip()]


def _some(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Return at most so many rows, evenly spread over them."""
    step = -(-len(rows) // CARD_PASSAGES)
    return rows[:: max(step, 1)]


def _features(shop: Shop, rows: Sequence[Row]) -> Rows:
    """Return the states of passages with their next tokens."""
    answers = [r.label for r in shop.backbone.unfold(rows)]
    return Rows(h=shop.encode(_texts(rows)), answers=answers)


def _card(plan: ExpertPlan, parts: Parts) -> CardFile:
    if plan.card == "none":
        return no_card()
    if plan.card == "texts":
        return texts_card(
            [
                CardRow(text=r.text, label=r.label, part=part)
                for part, rows in (("fit", parts.fit), ("gate", parts.gate))
                for r in rows
            ]
        )
    raise UsageError(
        f"expert {plan.id!r} cannot ship a card of {plan.card}",
        expected="texts, or none",
        found=plan.card,
        hint="What a causal router hears is not in single vectors.",
    )


def _metrics(
    expert: Expert, shop: Shop, norm: Callable[[Tensor], Tensor], parts: Parts
) -> dict[str, float]:
    """Return bits per byte on the passages set aside, of the expert and of the backbone alone."""
    if not (rows := (*parts.valid, *parts.gate)):
        return {}
    data = _features(shop, rows)
    target = shop.backbone.task.targets(data.answers, ())
    told = sum(byte_counts(shop.backbone.trunk, _texts(rows)))
    nats = {"bits_per_byte": 0.0, "backbone_bits_per_byte": 0.0}
    head = shop.backbone.classifier
    assert head is not None  # noqa: S101  (a generating backbone has one)
    with torch.inference_mode():
        for piece in pieces(len(target), cost=len(head)):
            h = data.h[piece]
            for name, logits in (
                ("bits_per_byte", expert_logits(expert, h, norm(h), head)),
                ("backbone_bits_per_byte", h @ head.T),
            ):
                loss = shop.backbone.task.loss(logits, target[piece])
                nats[name] += float(loss) * len(logits)
    return {name: x / math.log(2) / told for name, x in nats.items()}


def _texts(rows: Sequence[Row]) -> list[str]:
    return [r.text for r in rows]
