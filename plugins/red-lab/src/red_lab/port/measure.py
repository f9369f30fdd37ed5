"""Port every team's expert; compare it with retraining, with no map, and with no expert."""

from __future__ import annotations

import copy
import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from redhost_port.porting import SHARE, PortedExpert, port_expert
from torch import Tensor, nn

import redhost
from red_lab.port.subjects import PAIRS, Pair, Team, open_backbone, teams
from redhost.core.bus.experts import Expert
from redhost.core.model.build import make_expert_module
from redhost.core.plugins.manager import Plugins
from redhost.core.training.context import AuthoringContext
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import ExpertFiles, read_expert

__all__ = ["BAD", "bad_encoders", "measure_bad", "measure_pair"]

ANY = -1e9
"""A threshold below every value, so that refused ports are measured as well."""

Encode = Callable[[Sequence[str]], Tensor]


@dataclass(frozen=True, kw_only=True)
class Desk:
    """A pair of backbones, opened.

    Attributes:
        old: The backbone that experts are trained on.
        new: The backbone that they are ported to.
        texts: Unlabelled texts of the teams' kind.
        work: The folder for packages.
        seed: Seed of the authors' training.
        seconds: CPU seconds of each port, without encoding its texts.
    """

    old: AuthoringContext
    new: AuthoringContext
    texts: Sequence[str]
    work: Path
    seed: int
    seconds: list[float] = field(default_factory=list)

    def author(self, team: Team, *, on: AuthoringContext) -> ExpertFiles:
        """Train an expert as its author does, in isolation, and package it with a card of texts."""
        name = f"{on.manifest.fingerprint[:8]}-{self.seed}"
        project = self.work / "experts" / name / f"red-expert-{team.name}"
        if not (made := list(project.glob("src/*/expert.json"))):
            plan = redhost.authoring.ExpertPlan(id=team.name, writes="labels", card="texts")
            settings = redhost.authoring.ExpertSettings(space="labels", seed=self.seed)
            redhost.authoring.write_project(
                project, kind="expert", package_id=team.name, summary=team.name
            )
            rows = redhost.authoring.split_rows(team.learn)
            redhost.authoring.train_package(project, plan, rows, context=on, settings=settings)
            made = list(project.glob("src/*/expert.json"))
        return read_expert(from_folder(made[0].parent)).unwrap(team.name)

    def port(self, expert: ExpertFiles, *, texts: Sequence[str] = ()) -> PortedExpert:
        """Port an expert, without refusing a bad result."""
        start = time.process_time()
        ported = port_expert(expert, old=self.old, new=self.new, texts=texts, bound=ANY)
        self.seconds.append(time.process_time() - start)
        return ported


def measure_pair(pair: Pair, *, seed: int, validation: bool, work: Path) -> dict[str, Any]:
    """Measure a pair of backbones.

    Returns:
        Hits by system, 0 or 1 for each test row, and the product's own verdict.
    """
    desk, every = _desk(pair, seed=seed, validation=validation, work=work)
    hits: dict[str, list[float]] = {}
    reports = list[dict[str, Any]]()
    for team in every:
        mine = desk.author(team, on=desk.old)
        expert = _module(mine)
        plain, wider = desk.port(mine), desk.port(mine, texts=desk.texts)
        found = {
            "own": _hits(expert, team, desk.old),
            "ported": _hits(_module(_files(plain)), team, desk.new),
            "ported, texts of the domains": _hits(_module(_files(wider)), team, desk.new),
            "retrained": _hits(_module(desk.author(team, on=desk.new)), team, desk.new),
            "one answer": _one_answer(team),
            "random weights": _hits(_shuffled(_files(plain), seed), team, desk.new),
        }
        if desk.old.backbone.width == desk.new.backbone.width:
            found["no map"] = _hits(expert, team, desk.new)
        for name, values in found.items():
            hits.setdefault(name, []).extend(values)
        reports.append(
            {
                "id": team.name,
                "share": plain.report.share,
                "wider": wider.report.share,
                "unexplained": plain.report.unexplained,
                "texts": plain.report.texts,
                "wider texts": wider.report.texts,
                "gate": plain.report.rows,
                "labels": len(mine.manifest.labels),
                "hits": {k: sum(v) / len(v) for k, v in found.items()},
            }
        )
    return {
        "seed": seed,
        "hits": hits,
        "experts": reports,
        "seconds": desk.seconds,
        "encode": _encoding(desk),
        "texts": [r.text for t in every for r in t.judge],
    }


def _desk(pair: Pair, *, seed: int, validation: bool, work: Path) -> tuple[Desk, list[Team]]:
    old, new = (open_backbone(n, pair.corpus, work=work)[1] for n in (pair.old, pair.new))
    every = teams(pair.corpus, validation=validation)
    texts = [r.text for team in every for r in team.learn]
    for context in (old, new):
        context.encode(texts)  # its cost is measured separately
    kind = "validation" if validation else "test"
    folder = work / kind / pair.corpus
    return Desk(old=old, new=new, texts=texts, work=folder, seed=seed), every


def _encoding(desk: Desk, *, texts: int = 64) -> dict[str, float]:
    """Return CPU seconds per uncached text, by backbone."""
    some, found = desk.texts[:texts], dict[str, float]()
    for context in (desk.old, desk.new):
        start = time.process_time()
        context.backbone.encode(some)
        found[context.manifest.id] = (time.process_time() - start) / len(some)
    return found


def _files(ported: PortedExpert) -> ExpertFiles:
    return read_expert(ported.files).unwrap(ported.manifest.id)


def _module(files: ExpertFiles) -> Expert:
    """Return an expert as a host builds it, after checking its canary."""
    bus = redhost.BusConfig(width=files.manifest.reads.width, labels=())
    made = make_expert_module(files, bus=bus, plugins=Plugins(()), providers={})
    return made.unwrap(files.manifest.id)


def _shuffled(files: ExpertFiles, seed: int) -> Expert:
    """Return a port with the author's weights permuted within each tensor."""
    expert = _module(files)
    made, generator = copy.deepcopy(expert), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in made.state_dict().items():
            if name.rpartition(".")[2] not in {"A", "c"}:
                p.copy_(p.flatten()[torch.randperm(p.numel(), generator=generator)].view_as(p))
    return made


def _hits(expert: Expert, team: Team, context: AuthoringContext) -> list[float]:
    """Return 1 for each of a team's test rows that its expert alone answers correctly, else 0."""
    with torch.inference_mode():
        best = expert(_z(context, [r.text for r in team.judge])).argmax(-1).tolist()
    answers = [expert.labels[k] for k in best]
    return [float(y == r.label) for y, r in zip(answers, team.judge, strict=True)]


def _one_answer(team: Team) -> list[float]:
    """Return the hits of the most frequent training label."""
    [(usual, _)] = Counter(r.label for r in team.learn).most_common(1)
    return [float(r.label == usual) for r in team.judge]


def _z(context: AuthoringContext, texts: Sequence[str]) -> Tensor:
    h = context.encode(texts)
    z: Tensor = nn.functional.layer_norm(h, h.shape[-1:], eps=context.backbone.eps)
    return z


def measure_bad(*, work: Path, validation: bool) -> dict[str, Any]:
    """Port the sentence encoder's experts to degraded encoders, and count the refused ports.

    Returns:
        By encoder, how many of the teams' ports were refused, and the largest share that any kept.
    """
    pair = PAIRS["minilm → minilm-next, newsgroups"]
    desk, every = _desk(pair, seed=0, validation=validation, work=work)
    found = {}
    for name, encode in bad_encoders(desk.new.encode).items():
        worse = replace(desk, new=replace(desk.new, encode=encode))
        shares = [worse.port(desk.author(team, on=desk.old)).report for team in every]
        found[name] = {
            "ports": len(shares),
            "refused": sum(r.share < SHARE for r in shares),
            "largest": max(r.share for r in shares),
        }
    return found


BAD = 8
"""Random draws of each kind of bad encoder."""


def bad_encoders(encode: Encode) -> Mapping[str, Encode]:
    """Return degraded versions of an encoder, by description.

    Args:
        encode: Texts → h ``(N, D)``, of the original encoder.
    """
    made: dict[str, Encode] = {}
    for n in range(BAD):
        made[f"a random vector for each text, {n}"] = _random(encode, n)
        made[f"the vector of another text, {n}"] = _dealt(encode, n)
        made[f"{2**n} of its directions"] = _narrow(encode, 2**n)
    return made


def _random(encode: Encode, seed: int) -> Encode:
    def read(texts: Sequence[str]) -> Tensor:
        h = encode(texts)
        digests = [hashlib.sha256(f"{seed} {text}".encode()).digest()[:6] for text in texts]
        draws = [torch.Generator().manual_seed(int.from_bytes(d, "big")) for d in digests]
        return torch.stack([torch.randn(h.shape[1], generator=draw) for draw in draws])

    return read


def _dealt(encode: Encode, seed: int) -> Encode:
    def read(texts: Sequence[str]) -> Tensor:
        generator = torch.Generator().manual_seed(seed + len(texts))
        return encode(texts)[torch.randperm(len(texts), generator=generator)]

    return read


def _narrow(encode: Encode, dimensions: int) -> Encode:
    """Return an encoder restricted to so many directions."""

    def read(texts: Sequence[str]) -> Tensor:
        h = encode(texts)
        generator = torch.Generator().manual_seed(dimensions)
        basis = torch.linalg.qr(torch.randn(h.shape[1], dimensions, generator=generator)).Q
        narrowed: Tensor = h @ basis @ basis.T
        return narrowed

    return read
