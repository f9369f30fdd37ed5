"""`redhost lab forgetting`: how much the base stage degrades the language model it adapts.

Seed 001, 4.5.1: training the top two blocks preserves general language and arithmetic ability. The
blocks are trained on sums with the seed's recipe. After some steps the language model, with its own
head on the adapted blocks, is evaluated on passages in bits per byte.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from red_lab.metrics import write_results
from red_lab.options import WORK, out_option

if TYPE_CHECKING:
    import redhost
    from red_lab.red.base import BaseTraining
    from red_lab.red.cut import Below
    from red_lab.red.queries import Query

__all__ = ["forgetting", "page", "passages"]

STEPS = (0, 20, 40, 80)
"""Steps after which bits per byte are measured."""

WHOLE = 1250
"""Steps of the seed's recipe: 8 epochs of 20,000 questions in batches of 128."""

PASSAGES, CHARACTERS = 8, 500
"""Passages of each kind, and the length they are truncated to."""


@click.command()
@out_option("forgetting")
@WORK
def forgetting(*, out: Path, work: Path) -> None:
    """Measure a language model's bits per byte while its top blocks are trained on sums."""
    import torch

    torch.set_num_threads(1)
    click.echo(write_results(measure(work=work / "forgetting"), out, page=page, sort_keys=False))


def passages() -> dict[str, list[str]]:
    """Return the evaluation passages by kind: tales, newswire, and sums in figures."""
    from red_lab import newsgroups
    from red_lab.newsgroups import cells

    tales = [" ".join(x[3].split()) for x in cells("grimm-tales.tab")]
    sums = "".join(f"{a} + {b} = {a + b}\n" for a in range(1, 51) for b in range(1, 51, 7))
    lines = {
        "tales": [t[:CHARACTERS] for t in tales if len(t) > CHARACTERS],
        "newswire": [t[:CHARACTERS] for t in newsgroups.outside() if len(t) > CHARACTERS],
        "sums": [sums[n * 300 : n * 300 + 300] for n in range(len(sums) // 300)],
    }
    return {kind: texts[:PASSAGES] for kind, texts in lines.items()}


def measure(*, work: Path) -> dict[str, Any]:
    """Take the first steps of the seed's recipe, and evaluate after some of them."""
    import torch

    import redhost
    from red_lab.progress import Bar
    from red_lab.red.base import BaseSettings, BaseTraining
    from red_lab.red.cut import below
    from red_lab.red.queries import LABELS, load
    from red_lab.red.run import smollm2_file

    backbone = redhost.Backbone.load(f"gguf:{smollm2_file()}", pooling="mean")
    settings, train = BaseSettings(), load("addition", "seed", seed=0).train
    read = passages()

    def states(texts: Sequence[str]) -> Below:
        return below(backbone, texts, last_blocks=settings.last_blocks, folder=work)

    job, bar, rows = BaseTraining(backbone, settings), Bar("steps", total=STEPS[-1]), []
    order = job.order(0, len(train))[: STEPS[-1] * settings.batch]
    batches = [[train[n] for n in part] for part in torch.split(order, settings.batch)]
    hidden = states(sorted({q.text for batch in batches for q in batch}))
    shown = {kind: (texts, states(texts)) for kind, texts in read.items()}
    for step, batch in enumerate([*batches, None]):
        if step in STEPS:
            bits = {kind: _bits(job, backbone, *given) for kind, given in shown.items()}
            right = _right(job, hidden, [*batches[0], *batches[1]])
            rows.append({"step": step, "bits": bits, "right": right})
        if batch is not None:
            targets = torch.tensor([LABELS.index(q.label) for q in batch])
            job.step(hidden, hidden.rows([q.text for q in batch]), targets)
            bar.update(step + 1)
    return {
        "schema": "red-lab.forgetting/1",
        "steps of the seed": WHOLE,
        "passages": {kind: len(texts) for kind, texts in read.items()},
        "bytes": {kind: sum(len(t.encode()) for t in texts) for kind, texts in read.items()},
        "rows": rows,
    }


def _bits(
    job: BaseTraining, backbone: redhost.Backbone, texts: Sequence[str], hidden: Below
) -> float:
    """Return the sum of −log₂ p over all tokens but the first, divided by the texts' bytes."""
    import torch

    head = backbone.trunk.model.get_input_embeddings().weight  # tied to the model's own head
    nats, size = 0.0, 0
    job.blocks.eval()
    with torch.inference_mode():
        for text in texts:
            ids = torch.tensor(backbone.trunk.tokens(text))
            below, mask = hidden.batch(hidden.rows([text]))
            out = job.blocks.model(
                inputs_embeds=below, attention_mask=mask.long(), use_cache=False
            ).last_hidden_state[0]
            loss = torch.nn.functional.cross_entropy(out[:-1] @ head.T, ids[1:], reduction="sum")
            nats, size = nats + float(loss), size + len(text.encode())
    job.blocks.train()
    return nats / math.log(2) / size


def _right(job: BaseTraining, hidden: Below, some: Sequence[Query]) -> float:
    """Return the share of questions that the base answers correctly."""
    import torch

    from red_lab.red.queries import LABELS

    job.blocks.eval()
    with torch.inference_mode():
        h = job.h(hidden, hidden.rows([q.text for q in some]))
        best = (h @ job.classifier().T).argmax(-1).tolist()
    job.blocks.train()
    hits = [LABELS[k] == q.label for k, q in zip(best, some, strict=True)]
    return float(sum(hits)) / len(hits)


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.forgetting/1``."""
    kinds = list(metrics["passages"])
    first = metrics["rows"][0]["bits"]
    lines = [
        "# Forgetting: how the base stage changes the language model",
        "",
        "Written by `redhost lab forgetting` from `metrics.json`; do not edit.",
        "",
        "The top two blocks of SmolLM2-135M are trained on additions with the recipe of "
        "[seed 001](../../departures.md) (AdamW at 1e-4, batches of 128). After some steps the "
        "language model, with its own head on the adapted blocks, is evaluated on passages. The "
        f"recipe has {metrics['steps of the seed']:,} steps; only the first ones are measured. The "
        "figures are bits per byte, lower is better. The change relative to the first line is "
        "given in brackets; that line is the model before training, which a host without "
        "`--last-blocks` keeps. The last column is the share of the questions of the first two "
        "batches that the base answers correctly.",
        "",
        f"| steps | {' | '.join(kinds)} | answered |",
        "|---" * (len(kinds) + 2) + "|",
    ]
    for row in metrics["rows"]:
        cells = [
            f"{row['bits'][k]:.3f}"
            + (f" ({100 * (row['bits'][k] / first[k] - 1):+.0f} %)" if row["step"] else "")
            for k in kinds
        ]
        lines.append(f"| {row['step']} | {' | '.join(cells)} | {row['right']:.3f} |")
    read = ", ".join(
        f"{metrics['passages'][k]} of {k} ({metrics['bytes'][k]:,} bytes)" for k in kinds
    )
    return "\n".join([*lines, "", f"Passages: {read}.", ""])
