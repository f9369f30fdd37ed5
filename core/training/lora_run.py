"""Train a LoRA adapter: gradients through the blocks from the lowest adapted one up, no others.

    loss = task loss(W z' + b, y),  z' = LayerNorm(h')       where it has labels of its own
    loss = task loss(W_c h', y) + λ · mean over background of ‖W_c (h' − h)‖²     else

PEFT makes the adapter, its configuration and first weights; what it learns is written back under
PEFT's names. The states below the lowest adapted block are computed once. A head starts from the
regression on z, so that the blocks do not learn what the frozen ones know already.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from ...registry.errors import MissingError, UsageError, suggest
from ...registry.package.peft_adapter import CONFIG, WEIGHTS
from ..backbones.backbone import Backbone
from ..backbones.encoder import BATCH, blocks_of, linears_of
from ..backbones.interventions.graft import moved_by, moved_states, states_below
from ..backbones.interventions.lora import LoraExpert
from ..backbones.tokens import start_of, tokenize
from ..bus.tasks import Unit
from ..types import Progress, Row
from .expert import ExpertRun, ExpertSettings

RANK = 8
"""R, where its author says nothing."""

ALPHA = 2
"""α / R."""

FORMAT = {"format": "pt"}
"""What PEFT writes into its files."""

TOKENS = 512
"""Of a batch, at most, where every token has the logits of a vocabulary."""


def fresh_adapter(
    backbone: Backbone,
    *,
    rank: int | None = None,
    blocks: int | None = None,
    targets: Sequence[str] | None = None,
    seed: int = 0,
) -> dict[str, bytes]:
    """Return the two files of an adapter that has learnt nothing, as PEFT makes it.

    Args:
        backbone: What it is for.
        rank: R.
        blocks: How many of the top blocks it adapts; by default the upper half.
        targets: Which linear layers of a block, by the end of their names; by default all.
        seed: Where its first weights come from.

    Raises:
        MissingError: If PEFT is not installed.
        UsageError: If the trunk has no such blocks or layers.
    """
    names = _targets(backbone, blocks=blocks, targets=targets)
    try:
        from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
    except ImportError as e:
        raise MissingError(
            "adapters are made by PEFT", found="none", hint="pip install 'redhost[peft]'"
        ) from e
    r = rank or RANK
    config = LoraConfig(r=r, lora_alpha=ALPHA * r, target_modules=names)
    with (
        torch.random.fork_rng(devices=()),
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="redhost-") as folder,
    ):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        made = get_peft_model(copy.deepcopy(backbone.trunk.model).cpu(), config)
        chosen = made.peft_config["default"]  # `made.save_pretrained` wants a model of transformers
        chosen.base_model_name_or_path, chosen.inference_mode = backbone.name, True
        chosen.save_pretrained(folder)
        weights = {n: t.contiguous() for n, t in get_peft_model_state_dict(made).items()}
        saved = safetensors.torch.save(weights, metadata=FORMAT)
        return {CONFIG: Path(folder, CONFIG).read_bytes(), WEIGHTS: saved}


def _targets(backbone: Backbone, *, blocks: int | None, targets: Sequence[str] | None) -> list[str]:
    """Return the names of the linear modules to adapt."""
    path, found = blocks_of(backbone.trunk.model)
    count = (len(found) + 1) // 2 if blocks is None else blocks
    if count > len(found):
        raise UsageError(
            f"blocks of backbone {backbone.name!r}",
            expected=f"at most {len(found)}",
            found=str(count),
        )
    upper = tuple(f"{path}.{n}." for n in range(len(found) - count, len(found)))
    inside = [n for n in linears_of(backbone.trunk.model) if n.startswith(upper)]
    ends = {n.split(".", path.count(".") + 2)[-1] for n in inside}
    for target in targets or ():
        if not any(f".{end}".endswith(f".{target}") for end in ends):
            raise UsageError(
                f"backbone {backbone.name!r} has no linear layer {target!r} in its blocks",
                expected=", ".join(sorted(ends)),
                found=target,
                hint=suggest(target, ends),
            )
    return [n for n in inside if not targets or any(n.endswith(f".{t}") for t in targets)]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Texts of one token length: ids, the states below the adapter, h and targets of N rows."""

    ids: Tensor
    states: Tensor | None
    h: Tensor
    targets: Tensor


def train_adapter(
    expert: LoraExpert,
    rows: Sequence[Row],
    *,
    backbone: Backbone,
    norm: Callable[[Tensor], Tensor],
    settings: ExpertSettings,
    valid: Sequence[Row] = (),
    background: Sequence[str] = (),
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> tuple[LoraExpert, int]:
    """Train an adapter, and its head where it has one, on its domain's rows.

    Args:
        expert: What is trained, in place.
        rows: What it learns.
        backbone: The frozen backbone.
        norm: The bus norm.
        settings: How; dropout and noise are laid on no state.
        valid: Rows to stop early on; without them the last epoch is taken.
        background: Texts to leave alone, where it writes hidden states.
        checkpoint: Written now and then; training goes on from it where it exists.
        progress: Called with (epochs done, epochs in all).

    Returns:
        The expert, frozen, and the epoch it was taken from.
    """
    kind = _TokenRun if backbone.task.unit is Unit.TOKEN else _LoraRun
    run = kind(expert, settings, backbone=backbone, norm=norm, rows=len(rows))
    data, held_out = (run.batches(some) for some in (rows, valid))
    hidden = [Row(text=t, label="") for t in background] if expert.W is None else ()
    others = run.batches(hidden, answered=False)
    for _ in run.epochs(checkpoint, progress):
        run.train_through(data, others)
        run.remember(run.loss_through(held_out) if held_out else None)
    run.finish(validated=bool(held_out))
    return expert, run.best_epoch


class _LoraRun(ExpertRun):
    """An adapter's training."""

    def __init__(
        self,
        expert: LoraExpert,
        settings: ExpertSettings,
        *,
        backbone: Backbone,
        norm: Callable[[Tensor], Tensor],
        rows: int,
    ) -> None:
        super().__init__(expert, settings, head=backbone.task.head, rows=rows)
        self.adapter, self.backbone, self.norm = expert, backbone, norm
        self.acts = expert.intervention(backbone)
        own = expert.space == "labels"
        self.names: Sequence[str] = expert.labels if own else backbone.labels

    def batches(self, rows: Sequence[Row], *, answered: bool = True) -> list[_Batch]:
        """Return rows in batches of one length, with the states below computed once."""
        made, trunk = list[_Batch](), self.backbone.trunk
        answers = [r.label for r in rows]
        targets = self.head.targets(answers, self.names) if answered else torch.zeros(len(rows))
        for index, ids in trunk.batches([r.text for r in rows], most=BATCH):
            ids = ids[: len(index)]  # noqa: PLW2901  (a device other than a CPU gets full batches)
            with torch.no_grad():
                states = states_below(trunk, ids, self.acts)
                h = trunk.pool(trunk.hidden_states(ids))
            made.append(_Batch(ids=ids, states=states, h=h, targets=targets[index]))
        return made

    def train_through(self, data: Sequence[_Batch], others: Sequence[_Batch]) -> None:
        """Take one step whenever as many rows are together as make up a batch, shuffled."""
        chosen = list[_Batch]()
        for n in torch.randperm(len(data), generator=self.generator).tolist():
            chosen.append(data[n])
            if sum(len(b.ids) for b in chosen) >= self.settings.batch:
                self.descend(self._losses(chosen, others))
                chosen = []
        if chosen:
            self.descend(self._losses(chosen, others))

    def _losses(self, chosen: Sequence[_Batch], others: Sequence[_Batch]) -> Iterator[Tensor]:
        """Yield what the loss of a step is the sum of, one graph at a time."""
        rows = sum(len(b.h) for b in chosen)
        for batch in chosen:
            yield self.head.loss(self.logits(batch), batch.targets) * len(batch.h) / rows
        classifier = self.backbone.classifier
        if others and self.settings.off_domain > 0 and classifier is not None:
            other = others[int(torch.randint(len(others), (), generator=self.generator))]
            added = (self.moved(other) - other.h) @ classifier.T
            yield self.settings.off_domain * added.square().sum(-1).mean()

    def loss_through(self, data: Sequence[_Batch]) -> float:
        """Return the mean loss over rows."""
        rows = sum(len(b.h) for b in data)
        with torch.no_grad():
            return sum(
                float(self.head.loss(self.logits(b), b.targets)) * len(b.h) / rows for b in data
            )

    def moved(self, batch: _Batch) -> Tensor:
        """Return h' ``(B, D)``."""
        return moved_by(self.backbone.trunk, batch.ids, self.acts, states=batch.states)

    def logits(self, batch: _Batch) -> Tensor:
        """Return W z' + b ``(B, L)``, or W_c h' ``(B, C)``."""
        moved, classifier = self.moved(batch), self.backbone.classifier
        if self.adapter.space == "labels" or classifier is None:
            made: Tensor = self.adapter(self.norm(moved))
            return made
        return moved @ classifier.T


class _TokenRun(_LoraRun):
    """The same where text is generated: every token is a row."""

    def batches(self, rows: Sequence[Row], *, answered: bool = True) -> list[_Batch]:  # noqa: ARG002
        """Return passages in batches of one length, with the states below computed once."""
        made, trunk = list[_Batch](), self.backbone.trunk
        start = start_of(trunk)
        tokens = sorted(([start, *tokenize(trunk, r.text)] for r in rows), key=len)
        for length, same in groupby(tokens, key=len):
            most = max(1, TOKENS // length)
            while some := list(islice(same, most)):
                whole = torch.tensor(some, device=trunk.device)
                ids = whole[:, :-1]
                with torch.no_grad():
                    states = states_below(trunk, ids, self.acts)
                    h = trunk.hidden_states(ids).flatten(0, 1)
                made.append(_Batch(ids=ids, states=states, h=h, targets=whole[:, 1:].flatten()))
        return made

    def moved(self, batch: _Batch) -> Tensor:
        """Return h' ``(N, D)`` of every token."""
        trunk = self.backbone.trunk
        return moved_states(trunk, batch.ids, self.acts, states=batch.states).flatten(0, 1)


def adapter_files(expert: LoraExpert, config: bytes) -> Mapping[str, bytes]:
    """Return the two files of an adapter that was trained.

    Args:
        expert: The adapter.
        config: What it was made with.
    """
    return {CONFIG: config, WEIGHTS: safetensors.torch.save(expert.tensors(), metadata=FORMAT)}
