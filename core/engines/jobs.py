"""What a job can do: a closed set of functions from arguments and bytes to bytes.

Pure: the same job gives the same bytes in any process, so no function reads a cache, a home or
what is installed, and only built-in parts take part (plugins run in the host's own process).
Raise a function's version whenever its outputs change.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from ...registry.errors import ContractError
from ...registry.files import BackboneFiles, ExpertFiles, read_backbone, read_expert
from ...registry.project import ExpertPlan, package_in
from ...registry.violations import Violation
from ..answering.composed import Composed
from ..authoring.author import train_package
from ..authoring.expert_run import ExpertSettings
from ..authoring.parts import split_rows
from ..authoring.shop import Shop
from ..composing.verify import verify_expert
from ..extending.assemble import (
    background_of,
    make_backbone,
    make_bus,
    make_expert,
    make_router,
    with_layout,
)
from ..extending.plugins import Plugins
from ..measuring.evaluate import evaluate
from ..measuring.reroute import reroute
from ..rows import Row, parse_rows
from .engine import Files, Job

__all__ = ["FUNCTIONS", "Function", "forget", "threads"]


@dataclass(frozen=True)
class Function:
    """What a job can call, and the version that is part of its key."""

    version: int
    call: Callable[[Job, Files], Files]


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many torch threads, then with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def forget() -> None:
    """Let go of the backbone that this process keeps between jobs."""
    _open.cache_clear()


# -- the functions --------------------------------------------------------------------------------


def _echo(job: Job, files: Files) -> Files:
    """Wait `seconds` and return the files: what an engine costs when the work costs nothing."""
    time.sleep(float(job.arguments.get("seconds", 0)))
    return {Path(name).name: data for name, data in files.items()}


def _encode_texts(job: Job, files: Files) -> Files:
    """Return h of `texts`, float32 rows in their order; each row's bits depend on its text only."""
    h = _opened(job, files).backbone.trunk.encode(job.arguments["texts"])
    return {"h.f32": h.numpy().astype("<f4").tobytes()}


def _train_expert(job: Job, files: Files) -> Files:
    """Train an expert of `plan` with `settings` on rows; return its package's files."""
    plan = msgspec.convert(job.arguments["plan"], ExpertPlan)
    settings = msgspec.convert(job.arguments["settings"], ExpertSettings)
    shop = _opened(job, files).shop()
    rows = {n: parse_rows(d, Row, source=n) for n, d in files.items() if n.startswith("rows/")}
    parts = split_rows(rows["rows/data"], valid=rows.get("rows/valid"), task=shop.backbone.task)
    with tempfile.TemporaryDirectory(prefix="redhost-job-") as folder:
        package = Path(folder, "src", "package")
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        train_package(Path(folder), plan, parts, shop=shop, settings=settings, resumable=False)
        made = package_in(Path(folder)).iterdir()
        return {p.name: p.read_bytes() for p in sorted(made) if p.suffix != ".py"}


def _verify_expert(_: Job, files: Files) -> Files:
    """Compute what an expert's manifest promises; return the violations as JSON."""
    expert = read_expert(_under(files, "expert/"))
    carried = _under(files, "backbone/")
    if not isinstance(expert, ExpertFiles):
        violations = expert
    else:
        backbone = _read(carried) if carried else None
        violations = verify_expert(expert, backbone=backbone, plugins=Plugins(()))
    return {"violations.json": msgspec.json.encode(violations)}


def _evaluate_router(job: Job, files: Files) -> Files:
    """Train `router` from `seed` over experts as they come; return its evaluation on rows."""
    encode = _look_up(files)
    experts = _composed(job, files)
    made = reroute(
        experts,
        kind=job.arguments["router"],
        ids=experts.bus.ids,
        encode=encode,
        plugins=Plugins(()),
    )
    rows = parse_rows(files["rows/data"], Row, source="rows")
    return {"evaluation.json": msgspec.json.encode(evaluate(made, rows, encode=encode))}


FUNCTIONS: Mapping[str, Function] = {
    "echo": Function(1, _echo),
    "encode-texts": Function(1, _encode_texts),
    "evaluate-router": Function(1, _evaluate_router),
    "train-expert": Function(1, _train_expert),
    "verify-expert": Function(1, _verify_expert),
}


# -- the backbone, opened once a process ----------------------------------------------------------


@dataclass(frozen=True)
class _Carried:
    """A backbone's bytes and how to compute with it; equal to others by digest."""

    digests: tuple[tuple[str, str], ...]
    device: str
    threads: int
    files: Files = field(compare=False)


class _Opened:
    """A backbone at work, and what many jobs read of it."""

    def __init__(self, files: BackboneFiles, *, device: str) -> None:
        self.manifest, self.background = files.manifest, background_of(files)
        self.backbone = make_backbone(files, plugins=Plugins(()), providers={}, device=device)

    @cached_property
    def known(self) -> dict[str, Tensor]:
        """Rows h of the background card's texts: every training reads them."""
        return self._rows([r.text for r in self.background])

    def shop(self) -> Shop:
        """Return a shop for one job, in which no text is computed twice."""
        known = dict(self.known)

        def encode(texts: Sequence[str]) -> Tensor:
            known.update(self._rows([t for t in texts if t not in known]))
            rows = [known[t] for t in texts]
            return torch.stack(rows) if rows else torch.empty(0, self.backbone.width)

        return Shop(
            backbone=self.backbone,
            manifest=self.manifest,
            background=self.background,
            encode=encode,
        )

    def _rows(self, texts: Sequence[str]) -> dict[str, Tensor]:
        distinct = list(dict.fromkeys(texts))
        return dict(zip(distinct, self.backbone.trunk.encode(distinct), strict=True))


def _opened(job: Job, files: Files) -> _Opened:
    digests = tuple(sorted((n, d) for n, d in job.inputs.items() if n.startswith("backbone/")))
    device = str(job.arguments.get("device", "cpu"))
    return _open(_Carried(digests, device, job.threads, _under(files, "backbone/")))


@lru_cache(maxsize=1)  # jobs share a backbone, and loading it costs more than most of them
def _open(carried: _Carried) -> _Opened:
    return _Opened(_read(carried.files), device=carried.device)


def _read(files: Files) -> BackboneFiles:
    """Read a backbone as it arrived: every byte is checked against its manifest again."""
    found = read_backbone(files)
    if not isinstance(found, BackboneFiles):
        raise ContractError("a job's backbone", found=found[0].reason, hint=found[0].hint)
    return found


def _composed(job: Job, files: Files) -> Composed:
    """Put a backbone and experts on a bus whose router is yet to be trained."""
    opened, plugins = _opened(job, files), Plugins(())
    config, columns = opened.backbone.bus_config(), tuple(job.arguments["columns"])
    attached = {}
    for expert_id in columns:
        carried = _under(files, f"experts/{expert_id}/")
        if carried:
            found = read_expert(carried)
            made = (
                found[0]
                if not isinstance(found, ExpertFiles)
                else make_expert(found, bus=config, plugins=plugins, providers={})
            )
            if isinstance(made, Violation):
                raise made.error(f"expert {expert_id!r}")
            attached[expert_id] = made
    kind, seed = str(job.arguments["router"]), int(job.arguments["seed"])
    router = make_router(
        kind, bus=config, columns=columns, seed=seed, plugins=plugins, providers={}
    )
    backbone = with_layout(opened.backbone, attached)
    return Composed(
        backbone=backbone,
        bus=make_bus(backbone, attached, router, columns, plugins=plugins, providers={}),
        cards={i: a.card for i, a in attached.items()},
        background=opened.background,
        evaluation=(),
        fingerprint=opened.manifest.fingerprint,
        router_kind=kind,
        seed=seed,
    )


def _look_up(files: Files) -> Callable[[Sequence[str]], Tensor]:
    """Return texts → h for the texts whose features came along."""
    texts = msgspec.json.decode(files["features/texts.json"], type=list[str])
    place = {text: n for n, text in enumerate(texts)}
    h = torch.frombuffer(bytearray(files["features/h.f32"]), dtype=torch.float32)
    h = h.reshape(len(texts), -1)
    return lambda asked: h[[place[text] for text in asked]]


def _under(files: Files, folder: str) -> dict[str, bytes]:
    return {n.removeprefix(folder): d for n, d in files.items() if n.startswith(folder)}
