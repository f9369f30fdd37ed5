"""Port an expert to another backbone: its bytes unchanged, behind a map fitted on texts.

The expert's input is A z + c for z of the new backbone (`affine_map`). The result is measured: the
expert answers its card's gate rows on both backbones, and a port that keeps less than `SHARE` of
its gain is refused. Gate rows are not used in the fit. A plugin's form is ported if it says how it
reads a map (`Portable`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
import safetensors.torch
import torch
from redhost_author.new_folder import making
from redhost_author.project import write_project
from redhost_author.training.context import AuthoringContext
from redhost_author.training.linear_head import solve_linear_head
from redhost_author.training.packaging import TOLERANCE, make_canary, vectors_card, write_package
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import Expert, MappedExpert
from redhost.core.model.build import make_expert_module
from redhost.core.routers.cards import FAR, read_card
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import CardRow, Row
from redhost.registry.errors import (
    BackboneMismatchError,
    ContractError,
    HarmError,
    UsageError,
    short,
)
from redhost.registry.package.forms import DEFAULT_TASK, FORMS
from redhost.registry.package.manifest import (
    BackboneRef,
    CanaryRef,
    CardRef,
    ExpertManifest,
    FileRef,
    Ported,
    Reads,
    dumps,
)
from redhost.registry.package.readers import ExpertFiles
from redhost.registry.package.rules import MAX_ROWS
from redhost.registry.package.safetensors_check import sha256_hex
from redhost_port.affine_map import AffineMap, fit_affine
from redhost_port.sums import moved, plus

SHARE = 0.95
"""The smallest share of an expert's gain over a constant answer that a port must keep."""

FEWEST_GATE = 30
"""Fewest gate rows with which a port can be judged."""

FEWEST_TEXTS, MOST_TEXTS = 2, 2000
"""Fewest and most unlabelled texts that a map is fitted on."""

CANARY_ROWS, DRAWS = 8, 2000


@runtime_checkable
class Portable(Protocol):
    """An expert of a plugin's form that can be carried to another backbone.

    It reads the first dimensions of z, and what does not depend on the backbone's states.
    """

    def first_of(self, backbone: Backbone) -> int:
        """Return how many dimensions of z it reads on a backbone."""
        ...

    def behind(self, A: Tensor, c: Tensor) -> Expert:
        """Return the expert that reads z of another backbone as A z + c.

        Hosts get it from the form's factory, by the manifest's ``ported``.

        Args:
            A: ``(D, D')``, zeros but for the dimensions that are read.
            c: ``(D,)``.
        """
        ...

    def carried_files(
        self, files: Mapping[str, bytes], backbone: Backbone, *, rows: Sequence[CardRow]
    ) -> dict[str, bytes]:
        """Return the form's files on another backbone.

        Args:
            files: Those of its package.
            backbone: The other backbone.
            rows: The rows of a new card; none if the card stays.

        Raises:
            ContractError: If it cannot be carried there.
        """
        ...


class PortReport(msgspec.Struct, frozen=True, kw_only=True):
    """The accuracy that a port keeps, on the card's gate rows; shares and accuracies are 0–1.

    Attributes:
        id: The expert.
        old: The backbone it was trained on.
        new: The backbone it was ported to.
        ported_from: The digest of the package that was ported.
        map: The digest of the map.
        texts: Number of unlabelled texts that the map was fitted on.
        unexplained: The share of the old z's variance that the map misses on texts left out.
        rows: Number of gate rows.
        nothing: Accuracy of their most frequent label.
        own: Accuracy of the expert on its own backbone.
        ported: Accuracy behind the map.
        retrained: Accuracy of a linear head solved on the new backbone from the labelled rows that
            the map was fitted with: an alternative that does not need the expert.
        share: (ported − nothing) / (own − nothing), the share of the gain that is kept.
        interval: 95 % confidence interval of the share: a paired bootstrap over rows.
        bound: The required minimum of the share.
        sums: Whether sums of its author's rows are included, transformed by a map of their own.
    """

    id: str
    old: str
    new: str
    ported_from: str
    map: str
    texts: int
    unexplained: float
    rows: int
    nothing: float
    own: float
    ported: float
    retrained: float
    share: float
    interval: tuple[float, float]
    bound: float
    sums: bool


class PortedExpert(msgspec.Struct, frozen=True, kw_only=True):
    """A port that passed the bound: the files to write, and the figures.

    Attributes:
        manifest: The manifest of the new build.
        files: Its files by name, including ``expert.json``.
        report: The figures.
    """

    manifest: ExpertManifest
    files: dict[str, bytes]
    report: PortReport

    def save(self, folder: Path) -> None:
        """Write the package's files, the manifest last."""
        write_package(folder, self.files, "expert.json")


def write_port(project: Path, ported: PortedExpert, *, version: str) -> None:
    """Write the project of a port: a separate build, whose version names its backbone.

    Args:
        project: The project's folder.
        ported: The port to write.
        version: The version of the build that was ported.
    """
    manifest = ported.manifest
    with making(project):
        inner = write_project(
            project,
            kind="expert",
            package_id=manifest.id,
            summary=manifest.domain,
            version=f"{version}+{manifest.backbone.fingerprint[:12]}",
            license=manifest.license,
        )
        ported.save(inner)


def port_expert(
    files: ExpertFiles,
    *,
    old: AuthoringContext,
    new: AuthoringContext,
    texts: Sequence[str] = (),
    rows: Sequence[Row] = (),
    bound: float = SHARE,
) -> PortedExpert:
    """Port an expert to another backbone.

    Args:
        files: The expert.
        old: The backbone it was trained on.
        new: The backbone to port it to.
        texts: Unlabelled texts for the map; by default both backbones' background cards. The
            texts of the card's fit rows are used as well, without their labels.
        rows: Labelled rows that the expert never trained on, for an expert whose card has no texts.
            Every second one is a gate row, and all of them form a card of the new backbone's
            vectors.
        bound: The smallest share of its gain that it must keep.

    Raises:
        UsageError: If a map of z cannot port this kind of expert, or it cannot be judged.
        BackboneMismatchError: If the expert was not trained on `old`.
        HarmError: If it keeps less than the bound; the figures are in the message.
    """
    _require_portable(files, old, new)
    bus = old.backbone.bus_config()
    made = make_expert_module(files, bus=bus, plugins=old.plugins, providers={})
    expert = made.unwrap(f"expert {files.manifest.id!r}")  # this also checks the author's canary
    _require_readable(expert, files.manifest, new)
    fit, gate = _rows(files, rows)
    form = _form_files(expert, files, new, rows=[*fit, *gate] if rows else ())
    read = _read(texts, fit=fit, gate=gate, old=old, new=new, expert_id=files.manifest.id)
    fitted = _map(expert, read, old=old.backbone, new=new.backbone)
    mapped = (
        expert.behind(fitted.A, fitted.c)
        if isinstance(expert, Portable)
        else MappedExpert(expert, A=fitted.A, c=fitted.c)
    )
    sums = _moved_sums(files, fit, read, on=new) if rows else None
    map_bytes = safetensors.torch.save({"A": fitted.A, "c": fitted.c})
    own, ported = _right(expert, gate, on=old), _right(mapped, gate, on=new)
    nothing, share, interval = _share_of_gain(own, ported, gate)
    report = PortReport(
        id=files.manifest.id,
        old=old.manifest.id,
        new=new.manifest.id,
        ported_from=files.digest,
        map=sha256_hex(map_bytes),
        texts=fitted.rows,
        unexplained=fitted.unexplained,
        rows=len(gate),
        nothing=nothing,
        own=float(own.mean()),
        ported=float(ported.mean()),
        retrained=_retrained(fit, gate, labels=expert.labels, on=new) if fit else nothing,
        share=share,
        interval=interval,
        bound=bound,
        sums=sums is not None,
    )
    _require_bound(report)
    card = _vectors(files, fit, gate, sums, on=new) if rows else _texts(files)
    manifest, parts = _build(files, mapped, map_bytes, form, new=new, fit=fit, card=card)
    return PortedExpert(manifest=manifest, files=parts, report=report)


def _require_portable(files: ExpertFiles, old: AuthoringContext, new: AuthoringContext) -> None:
    """Refuse an expert that a map of z cannot port."""
    manifest, trained = files.manifest, files.manifest.backbone.fingerprint
    who = f"expert {manifest.id!r} cannot be ported"
    retrain = "Retrain it on the new backbone."
    if manifest.ported:
        hint = f"Port the build its author made, {short(manifest.ported.digest)}."
        raise UsageError(who, expected="an author's build", found="a port", hint=hint)
    if manifest.reads.tap != "final":
        expected, found = "one that reads z at the end of the trunk", f"at {manifest.reads.tap!r}"
        raise UsageError(who, expected=expected, found=found, hint=retrain)
    if not manifest.writes.spec.own_labels or new.manifest.task != DEFAULT_TASK:
        expected = "labels of its own: what it writes elsewhere is the old backbone's to read"
        raise UsageError(who, expected=expected, found=repr(manifest.writes.space), hint=retrain)
    if old.manifest.fingerprint != trained:
        raise BackboneMismatchError(
            who,
            expected=f"{short(trained)} ({manifest.backbone.name}), which it was trained on",
            found=f"{short(old.manifest.fingerprint)} ({old.manifest.id})",
            hint="Name it with --from.",
        )
    if new.manifest.fingerprint == trained:
        raise UsageError(f"{who}: it fits backbone {new.manifest.id!r} as it is")


def _require_readable(expert: Expert, manifest: ExpertManifest, new: AuthoringContext) -> None:
    """Refuse a plugin's form that does not say how, or whose experts cannot read there."""
    who, hint = f"expert {manifest.id!r} cannot be ported", "Retrain it on the new backbone."
    if manifest.form not in FORMS and not isinstance(expert, Portable):
        expected, found = f"one of {', '.join(FORMS)}, words", f"the form {manifest.form!r}"
        raise UsageError(who, expected=expected, found=found, hint=hint)
    try:
        expert.segment(new.backbone)
    except ContractError as e:
        expected = f"what it reads besides z to be the same on {new.manifest.id!r}"
        raise UsageError(who, expected=expected, found=e.found or e.reason, hint=hint) from e


def _form_files(
    expert: Expert, files: ExpertFiles, new: AuthoringContext, *, rows: Sequence[CardRow]
) -> dict[str, bytes]:
    """Return the files of a plugin's form on the new backbone; none of a built-in form."""
    if not isinstance(expert, Portable):
        return {}
    return expert.carried_files(files.files, new.backbone, rows=rows)


def _map(expert: Expert, read: _Read, *, old: Backbone, new: Backbone) -> AffineMap:
    """Fit the map of z, or of the dimensions that the expert reads; the others get zeros."""
    if not isinstance(expert, Portable):
        return fit_affine(read.new, read.old)
    x, y = (z[:, : expert.first_of(b)] for z, b in ((read.new, new), (read.old, old)))
    fitted = fit_affine(x, y)
    A, c = read.new.new_zeros(old.width, new.width), read.new.new_zeros(old.width)
    A[: y.shape[1], : x.shape[1]], c[: y.shape[1]] = fitted.A, fitted.c
    return replace(fitted, A=A, c=c)


def _rows(files: ExpertFiles, rows: Sequence[Row]) -> tuple[list[CardRow], list[CardRow]]:
    """Return the rows to fit the map with and the gate rows, from the card or as given."""
    manifest = files.manifest
    if strange := sorted({r.label for r in rows} - set(manifest.labels)):
        found = ", ".join(map(repr, strange[:5]))
        raise UsageError("rows of another expert", expected="labels of its own", found=found)
    known = read_card(manifest, files.files).rows
    if rows:
        # A file may be sorted by label, so that its first rows all have the same one.
        labels = {r.text: r.label for r in reversed(rows)}  # the first row of a text wins
        given = sorted(labels, key=lambda text: sha256_hex(text.encode()))[: 2 * MAX_ROWS]
        known = tuple(
            CardRow(text=text, label=labels[text], part=("fit", "gate")[n % 2])
            for n, text in enumerate(given)
        )
    fit, gate = ([r for r in known if r.part == part] for part in ("fit", "gate"))
    if len(gate) < FEWEST_GATE:
        raise UsageError(
            f"expert {manifest.id!r} cannot be ported: nothing could prove it",
            expected=f"at least {FEWEST_GATE} gate rows that are texts",
            found=f"{len(gate)}, and a card of the kind {manifest.card.kind!r}",
            hint="Vectors and sums are the old backbone's. Bring labelled rows that it never "
            "trained on with --rows, or retrain it on the new backbone.",
        )
    return fit, gate


@dataclass(frozen=True, kw_only=True, eq=False)
class _Read:
    """z of the same texts on both backbones: ``(N, D)`` of the old one, ``(N, D')`` of the new."""

    old: Tensor
    new: Tensor


def _read(
    texts: Sequence[str],
    *,
    fit: Sequence[CardRow],
    gate: Sequence[CardRow],
    old: AuthoringContext,
    new: AuthoringContext,
    expert_id: str,
) -> _Read:
    """Return z of the texts that maps are fitted on; texts of gate rows are excluded."""
    given = texts or [r.text for context in (new, old) for r in context.background]
    unseen = {r.text for r in gate}
    taken = [t for t in dict.fromkeys([*(r.text for r in fit), *given]) if t not in unseen]
    taken = taken[:MOST_TEXTS]
    if len(taken) < FEWEST_TEXTS:
        raise UsageError(
            f"expert {expert_id!r} cannot be ported: there is nothing to fit a map on",
            expected=f"at least {FEWEST_TEXTS} texts that are no gate row's",
            found=str(len(taken)),
            hint="Bring texts with --texts.",
        )
    return _Read(old=_z(old, taken), new=_z(new, taken))


def _moved_sums(
    files: ExpertFiles, fit: Sequence[CardRow], read: _Read, *, on: AuthoringContext
) -> Statistics | None:
    """Return a card's sums, mapped to the new backbone, if they are consistent with the rows.

    A host refuses a card whose sums are too far from its rows.
    """
    sums = read_card(files.manifest, files.files).statistics
    if sums is None:
        return None
    back = fit_affine(read.old, read.new)
    z, labels = _z(on, [r.text for r in fit]), [r.label for r in fit]
    mapped = plus(moved(sums, back.A, back.c, spread=back.spread), z, labels)
    return mapped if mapped.distance(z, labels) <= FAR else None


def _texts(files: ExpertFiles) -> tuple[CardRef, dict[str, bytes]]:
    """Return the author's card unchanged."""
    ref = files.manifest.card
    return ref, {name: files.files[name] for name in (ref.file,) if name}


def _vectors(
    files: ExpertFiles,
    fit: Sequence[CardRow],
    gate: Sequence[CardRow],
    sums: Statistics | None,
    *,
    on: AuthoringContext,
) -> tuple[CardRef, dict[str, bytes]]:
    """Return a card with the new backbone's vectors of the given rows."""
    made = vectors_card(
        fit_z=_z(on, [r.text for r in fit]),
        fit_labels=[r.label for r in fit],
        gate_h=on.encode([r.text for r in gate]),
        gate_labels=[r.label for r in gate],
        labels=files.manifest.labels,
        eps=on.backbone.eps,
        statistics=sums,
    )
    name, data = "ported-card.safetensors", made.data or b""
    ref = CardRef(kind=made.kind, file=name, sha256=sha256_hex(data), fit=made.fit, gate=made.gate)
    return ref, {name: data}


def _z(context: AuthoringContext, texts: Sequence[str]) -> torch.Tensor:
    norm = LayerNorm(width=context.backbone.width, eps=context.backbone.eps)
    with torch.inference_mode():
        z: torch.Tensor = norm(context.encode(texts))
    return z.clone()


def _build(
    files: ExpertFiles,
    mapped: Expert,
    map_bytes: bytes,
    form: Mapping[str, bytes],
    *,
    new: AuthoringContext,
    fit: Sequence[CardRow],
    card: tuple[CardRef, dict[str, bytes]],
) -> tuple[ExpertManifest, dict[str, bytes]]:
    """Return manifest and files of the new build: the author's files, the map, a new canary."""
    origin, raw = files.manifest, files.files["expert.json"]
    z = _z(new, [r.text for r in fit[:CANARY_ROWS]])
    canary = make_canary(mapped, z)
    with torch.inference_mode():
        largest = float(mapped(z).abs().max())
    parts = {
        origin.weights.file: files.weights,
        "ported-from.json": raw,
        "ported-map.safetensors": map_bytes,
        "ported-canary.safetensors": canary,
        **form,
        **card[1],
    }
    digests = {name: sha256_hex(data) for name, data in form.items()}
    manifest = msgspec.structs.replace(
        origin,
        backbone=BackboneRef(name=new.manifest.id, fingerprint=new.manifest.fingerprint),
        reads=Reads(width=new.backbone.width),
        files=digests or origin.files,
        card=card[0],
        norm_bound=None,  # the author's bound holds for z of the old backbone
        canary=CanaryRef(
            file="ported-canary.safetensors",
            sha256=sha256_hex(canary),
            tolerance=min(TOLERANCE, largest / 4) or TOLERANCE,
        ),
        ported=Ported(
            file="ported-from.json",
            sha256=sha256_hex(raw),
            digest=files.digest,
            width=origin.reads.width,
            map=FileRef(file="ported-map.safetensors", sha256=sha256_hex(map_bytes)),
        ),
    )
    return manifest, parts | {"expert.json": dumps(manifest)}


def _share_of_gain(
    own: torch.Tensor, ported: torch.Tensor, gate: Sequence[CardRow]
) -> tuple[float, float, tuple[float, float]]:
    """Return the accuracy of a constant answer, the share of the gain that is kept, its 95 % CI.

    Args:
        own: 1 for each row that the expert answers correctly on its own backbone, ``(N,)``.
        ported: The same behind the map; both are resampled on the same rows.
        gate: The rows.
    """
    [(usual, _)] = Counter(r.label for r in gate).most_common(1)
    constant = torch.tensor([r.label == usual for r in gate]).double()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(gate), (DRAWS, len(gate)), generator=generator)
    least = 1 / len(gate)  # the smallest gain: one row
    stays, gain = ((right - constant)[drawn].mean(1) for right in (ported, own))
    low, high = (float((stays / gain.clamp(min=least)).quantile(q)) for q in (0.025, 0.975))
    known = float((own - constant).mean())
    share = float((ported - constant).mean()) / known if known >= least else 0.0
    return float(constant.mean()), share, (low, high)


def _retrained(
    fit: Sequence[CardRow], gate: Sequence[CardRow], *, labels: Sequence[str], on: AuthoringContext
) -> float:
    """Return the gate accuracy of a head that is solved from the fit rows alone."""
    z, answers = _z(on, [r.text for r in fit]), [r.label for r in fit]
    return float(_right(solve_linear_head(z, answers, labels).expert, gate, on=on).mean())


def _right(expert: Expert, rows: Sequence[CardRow], *, on: AuthoringContext) -> torch.Tensor:
    """Return 1 for each row that is answered with its label, else 0; ``(N,)``."""
    texts = [r.text for r in rows]
    segment, read = expert.segment(on.backbone), _z(on, texts)
    if segment is not None and segment.compute is not None:
        read = torch.cat([read, segment.compute(texts)], dim=1)
    with torch.inference_mode():
        best = expert(read).argmax(-1).tolist()
    hits = [expert.labels[n] == row.label for n, row in zip(best, rows, strict=True)]
    return torch.tensor(hits).double()


def _require_bound(report: PortReport) -> None:
    """Refuse a port whose share is below the bound, with the figures."""
    if report.share >= report.bound:
        return
    low, high = report.interval
    raise HarmError(
        f"expert {report.id!r} does not survive on backbone {report.new!r}",
        expected=f"at least {report.bound:.0%} of its gain over one answer to all",
        found=f"{report.share:.1%} ({low:.1%} … {high:.1%}): accuracy {report.ported:.3f} after "
        f"{report.own:.3f} on {report.rows} gate rows, {report.nothing:.3f} for one answer, "
        f"{report.retrained:.3f} retrained on its card's rows",
        hint="Bring unlabelled texts of its domain with --texts, or retrain it on the new "
        "backbone.",
    )
