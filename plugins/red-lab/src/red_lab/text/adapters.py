"""Adapters inside the encoder compared with heads on top of it: the value of a second pass.

Every team trains a LoRA adapter with a head, as `redhost new-expert --form lora` does, or a head
on the frozen features, both from the same rows. The same training on pooled rows is measured for
comparison.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from redhost_peft.adapter import AdapterRecipe, TrainedAdapterRecipe

import redhost
from red_lab.adapters.passes import files_of, shuffled
from red_lab.authors import train_once
from red_lab.progress import shown
from red_lab.text.desk import Desk, every_row
from red_lab.text.measure import no_expert
from red_lab.text.monoliths import MONOLITHS
from redhost.core.backbones.feature_cache import cached_encode
from redhost.core.evaluation.evaluate import hits_by_system
from redhost.core.evaluation.judge import judge
from redhost.core.training.data import DataSplits
from redhost.core.training.packaging import save_expert
from redhost.core.types import Encode

__all__ = ["RANK", "SETTINGS", "SIZES", "adapters", "rank_of_all"]

SIZES = (128, 512)
"""Rows of a team; training on all of them would take hours on one thread."""

RANK = 8
"""R of a team's adapter."""

SETTINGS = replace(TrainedAdapterRecipe.settings_by_default, space="labels", rank=RANK)
"""Training settings of adapters: the product's defaults."""


def rank_of_all(desk: Desk) -> int:
    """Return the rank at which one adapter has as many parameters as all teams' together."""
    return RANK * len(desk.corpus.teams)


def adapters(desk: Desk, rows: int) -> dict[str, Any]:
    """Limit every team to so many rows; evaluate adapters, heads and models of pooled rows.

    Args:
        desk: The corpus.
        rows: Rows of each team.

    Returns:
        Hits by system, 0 or 1 for each test row, and the number of training rows by team.
    """
    some = desk.having(rows)
    heads = redhost.authoring.ExpertSettings(space="labels", seed=0)
    where = f"{desk.corpus.name}-heads-of-{rows}"
    above = some.compose(
        [some.author(team, part, where=where, settings=heads) for team, part in some.parts.items()]
    ).composed
    found = _routed(above, some, "heads") | no_expert(some, above)
    trained = {team: _adapter(some, team, part) for team, part in some.parts.items()}
    inside = some.compose([*trained.values()]).composed
    found |= _routed(inside, some, "adapters")
    found["adapters, the heads' router"] = _under(above, inside, some)
    dealt = {team: _dealt(some, team, package) for team, package in trained.items()}
    found |= _routed(some.compose([*dealt.values()]).composed, some, "random adapters")
    found["one linear head"] = MONOLITHS["ridge"][1](some)
    everyone = _everyone(some)
    for name, rank in {"one adapter": RANK, "one large adapter": rank_of_all(desk)}.items():
        package = _adapter(some, "everyone", everyone, rank=rank)
        alone = some.compose([package]).composed
        h = _encode(alone, some)([r.text for r in some.test])
        found[name] = judge(alone, h, some.test).hits.tolist()
    learnt = {team: len(part.train) + len(part.valid) for team, part in some.parts.items()}
    return {"rows": rows, "hits": found, "learnt": learnt}


def _routed(composed: redhost.ComposedModel, desk: Desk, name: str) -> dict[str, list[float]]:
    """Return the hits under the composition's own router, and with the domain given."""
    systems = hits_by_system(composed, desk.test, encode=_encode(composed, desk))
    return {name: systems["routed"].tolist(), f"{name}, oracle": systems["oracle"].tolist()}


def _encode(composed: redhost.ComposedModel, desk: Desk) -> Encode:
    """Return a cached function texts → h, the adapters' h' included."""
    manifest = desk.context.manifest
    return cached_encode(composed.backbone, manifest.fingerprint, desk.context.cache)


def _under(
    router: redhost.ComposedModel, experts: redhost.ComposedModel, desk: Desk
) -> list[float]:
    """Return the hits of one composition's experts under the weights of another's router."""
    h = _encode(experts, desk)([r.text for r in desk.test])
    with torch.inference_mode():
        _, alpha = router.bus(desk.h(desk.test))
        p = experts.bus.probabilities(h, experts.bus.norm(h), alpha)
    right: list[float] = experts.bus.task.head.right(p, desk.test, experts.bus.labels).tolist()
    return right


def _everyone(desk: Desk) -> DataSplits:
    """Return the pooled rows as those of one author, who also trains on the cards' rows."""
    parts = desk.parts.values()
    return DataSplits(
        train=tuple(every_row(desk.parts)),
        valid=tuple(r for p in parts for r in p.valid),
        fit=tuple(r for p in parts for r in p.fit),
        gate=tuple(r for p in parts for r in p.gate),
    )


def _adapter(desk: Desk, name: str, rows: DataSplits, *, rank: int = RANK) -> Path:
    """Train an adapter unless it exists; its folder is named by a digest of all its inputs."""
    made_from = (desk.context.manifest.fingerprint, rank, SETTINGS, rows)
    of = hashlib.sha256(repr(made_from).encode()).hexdigest()[:12]
    project = desk.work / "packages" / f"adapters-{of}" / f"red-expert-{name}"
    return train_once(
        project,
        redhost.authoring.ExpertPlan(id=name, form="lora"),
        rows,
        context=desk.context,
        settings=replace(SETTINGS, rank=rank),
        progress=shown(f"{desk.corpus.name} {name}, rank {rank}"),
    )


def _dealt(desk: Desk, name: str, package: Path) -> Path:
    """Package an adapter with shuffled weights, and a head solved on its h'."""
    project = package.parents[1].with_name(f"random-expert-{name}")
    shutil.rmtree(project, ignore_errors=True)
    rows, files = desk.parts[name], shuffled(files_of(package), 0)
    plan = redhost.authoring.ExpertPlan(id=name, form="lora")
    recipe = AdapterRecipe(
        plan=AdapterRecipe.opened(plan, rows, desk.context),
        splits=rows,
        context=desk.context,
        settings=SETTINGS,
        files=files,
    )
    folder = redhost.authoring.write_project(
        project, kind="expert", package_id=name, summary=f"random {name}"
    )
    save_expert(folder, recipe.draft(recipe.train(None, None)))
    return folder
