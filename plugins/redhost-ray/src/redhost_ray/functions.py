"""The functions of jobs: a closed set of functions from arguments and bytes to bytes.

They are pure: the same job gives the same bytes in any process. So no function reads a cache, a
home or installed experts, and a plugin makes a part only where a job names it by its digest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec
import torch
from redhost_author.project import ExpertPlan, package_in
from redhost_author.training.context import AuthoringContext
from redhost_author.training.data import split_rows
from redhost_author.training.recipes import settings_for, train_package
from redhost_author.verifying import Verifier
from torch import Tensor

from redhost.core.backbones.interventions.layout import with_layout
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.evaluation.with_router import with_router
from redhost.core.model.build import (
    build_bus,
    make_backbone,
    make_expert,
    make_norm,
    make_router,
    rows_of,
)
from redhost.core.model.composed import ComposedModel
from redhost.core.plugins.manager import Plugins
from redhost.core.types import BackgroundRow, Row, parse_rows
from redhost.registry.package.readers import BackboneFiles, read_backbone, read_expert
from redhost_ray.job import Job, JobFiles, JobFunction, job_function


def release_backbone() -> None:
    """Drop the backbone that this process keeps loaded between jobs."""
    _loaded.cache_clear()


# -- the functions --------------------------------------------------------------------------------


@job_function("encode-texts", version=2)
def encode_texts(job: Job, files: JobFiles) -> JobFiles:
    """Return h of `texts` as float32 rows in order; each row's bits depend on its text only."""
    h = _load_backbone(job, files).backbone.trunk.encode(job.arguments["texts"])
    return {"h.f32": h.numpy().astype("<f4").tobytes()}


@job_function("train-expert", version=3)
def train_expert(job: Job, files: JobFiles) -> JobFiles:
    """Train an expert of `plan` for `epochs` from `seed` on rows; return its package's files."""
    plan = msgspec.convert(job.arguments["plan"], ExpertPlan)
    context = _load_backbone(job, files).authoring_context()
    epochs, seed = job.arguments["epochs"], job.arguments["seed"]
    settings = settings_for(plan, context, epochs=epochs, seed=seed)
    rows = {n: parse_rows(d, Row, source=n) for n, d in files.items() if n.startswith("rows/")}
    splits = split_rows(rows["rows/data"], valid=rows.get("rows/valid"), task=context.backbone.task)
    with tempfile.TemporaryDirectory(prefix="redhost-job-") as folder:
        package = Path(folder, "src", "package")
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        train_package(
            Path(folder), plan, splits, context=context, settings=settings, resumable=False
        )
        made = package_in(Path(folder)).iterdir()
        return {p.name: p.read_bytes() for p in sorted(made) if p.suffix != ".py"}


@job_function("verify-expert", version=1)
def verify_package(_: Job, files: JobFiles) -> JobFiles:
    """Verify the computed part of an expert's contract; return the violations as JSON."""
    expert = read_expert(_under(files, "expert/"))
    content = _under(files, "backbone/")
    violations = expert.violations
    if expert.value is not None:
        backbone = _read(content) if content else None
        violations = Verifier().expert(expert.value, backbone=backbone)
    return {"violations.json": msgspec.json.encode(violations)}


@job_function("evaluate-router", version=4)
def evaluate_router(job: Job, files: JobFiles) -> JobFiles:
    """Train `router` from `seed` over unchanged experts; return its evaluation on rows."""
    encode = _look_up(files)
    plugins = Plugins().only(job.arguments["plugins"])
    experts = _composed(job, files, plugins=plugins)
    made = with_router(
        experts,
        kind=job.arguments["router"],
        ids=experts.bus.ids,
        encode=encode,
        plugins=plugins,
    )
    rows = parse_rows(files["rows/data"], Row, source="rows")
    return {"evaluation.json": msgspec.json.encode(evaluate(made, rows, encode=encode))}


FUNCTIONS = {f.name: f for f in tuple(globals().values()) if isinstance(f, JobFunction)}
"""All functions that jobs can call, by name."""


# -- the backbone, loaded once a process ----------------------------------------------------------


@dataclass(frozen=True)
class _BackboneKey:
    """A backbone's files, device and threads; files are compared by digest."""

    digests: tuple[tuple[str, str], ...]
    device: str
    threads: int
    files: JobFiles = field(compare=False)


class _LoadedBackbone:
    """A loaded backbone, with data that many jobs share."""

    def __init__(self, files: BackboneFiles, *, device: str) -> None:
        self.manifest, self.background = files.manifest, rows_of(files, BackgroundRow)
        self.backbone = make_backbone(files, plugins=Plugins(()), providers={}, device=device)

    @cached_property
    def known(self) -> dict[str, Tensor]:
        """Rows h of the background card's texts, which every training needs."""
        return self._rows([r.text for r in self.background])

    def authoring_context(self) -> AuthoringContext:
        """Return the context of one job's training, in which no text is computed twice."""
        known = dict(self.known)

        def encode(texts: Sequence[str]) -> Tensor:
            known.update(self._rows([t for t in texts if t not in known]))
            rows = [known[t] for t in texts]
            return torch.stack(rows) if rows else torch.empty(0, self.backbone.width)

        return AuthoringContext(
            backbone=self.backbone,
            manifest=self.manifest,
            background=self.background,
            encode=encode,
        )

    def _rows(self, texts: Sequence[str]) -> dict[str, Tensor]:
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self.backbone.trunk.encode(distinct), strict=True))


def _load_backbone(job: Job, files: JobFiles) -> _LoadedBackbone:
    digests = tuple(sorted((n, d) for n, d in job.inputs.items() if n.startswith("backbone/")))
    device = str(job.arguments.get("device", "cpu"))
    return _loaded(_BackboneKey(digests, device, job.threads, _under(files, "backbone/")))


@lru_cache(maxsize=1)  # jobs share a backbone, and loading it takes longer than most of them
def _loaded(key: _BackboneKey) -> _LoadedBackbone:
    return _LoadedBackbone(_read(key.files), device=key.device)


def _read(files: JobFiles) -> BackboneFiles:
    """Read a backbone from a job's inputs; every byte is checked against its manifest again."""
    return read_backbone(files).unwrap("a job's backbone")


def _composed(job: Job, files: JobFiles, *, plugins: Plugins) -> ComposedModel:
    """Build a composition of backbone and experts with an untrained router."""
    loaded = _load_backbone(job, files)
    config, columns = loaded.backbone.bus_config(), tuple(job.arguments["columns"])
    loaded_experts = {}
    for expert_id in columns:
        content = _under(files, f"experts/{expert_id}/")
        if content:
            whole = read_expert(content).unwrap(f"expert {expert_id!r}")
            made = make_expert(whole, bus=config, plugins=plugins, providers={})
            loaded_experts[expert_id] = made.unwrap(f"expert {expert_id!r}")
    kind, seed = str(job.arguments["router"]), int(job.arguments["seed"])
    experts = {i: e.expert for i, e in loaded_experts.items()}
    wide = with_layout(loaded.backbone, experts)
    norm = make_norm(bus=config, plugins=plugins, providers={})
    router = make_router(
        kind, bus=config, columns=columns, seed=seed, plugins=plugins, providers={}
    )
    return ComposedModel(
        backbone=wide,
        bus=build_bus(wide, norm=norm, router=router, experts=experts, columns=columns),
        cards={i: e.card for i, e in loaded_experts.items()},
        background=loaded.background,
        evaluation=(),
        fingerprint=loaded.manifest.fingerprint,
        router_kind=kind,
        seed=seed,
    )


def _look_up(files: JobFiles) -> Callable[[Sequence[str]], Tensor]:
    """Return a lookup from texts to h, for the texts whose features are among the inputs."""
    texts = msgspec.json.decode(files["features/texts.json"], type=list[str])
    place = {text: n for n, text in enumerate(texts)}
    h = torch.frombuffer(bytearray(files["features/h.f32"]), dtype=torch.float32)
    h = h.reshape(len(texts), -1)
    return lambda chosen: h[[place[text] for text in chosen]]


def _under(files: JobFiles, folder: str) -> dict[str, bytes]:
    return {n.removeprefix(folder): d for n, d in files.items() if n.startswith(folder)}
