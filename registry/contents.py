"""What the files of a package hold: exactly the tensors and rows that its manifest promises.

Shapes: D width of the bus, L labels, N canary rows, F and G the card's fit and gate rows.

==========  ==================================================================================
file        tensors
==========  ==================================================================================
canary      z (N, D), delta (N, out), with 1 ≤ N ≤ 256
statistics  counts (L), sums (L, D), scatter (D, D)
vectors     fit_z (F, D), fit_label (F), gate_z (G, D), gate_label (G), gate_shift (G, 1),
            gate_scale (G, 1), and either all or none of the statistics
==========  ==================================================================================
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from .contract import VALUE, classes_in, expected_tensors, is_builtin
from .fields import MAX_ROWS
from .forms import Shapes
from .integrity import TensorInfo, check_finite, check_tensors, read_header, relabel
from .manifest import BackboneManifest, ExpertManifest
from .violations import Violation

__all__ = ["check_backbone_contents", "check_contents"]

Files = Mapping[str, bytes]

_COUNTS = frozenset({"counts", "fit_label", "gate_label"})
"""Tensors of a card that are whole numbers, or numbers where the expert answers numbers."""

_REBUILD = "Rebuild the package."


def check_contents(
    manifest: ExpertManifest, files: Files
) -> tuple[int | None, tuple[Violation, ...]]:
    """Check an expert's tensors and rows.

    Args:
        manifest: Its manifest.
        files: Its bytes by name, of the sizes and digests that the manifest names.

    Returns:
        C of an expert that writes logits, and everything that is wrong.
    """
    name = manifest.weights.file
    header = read_header(files[name])
    if isinstance(header, Violation):
        return None, (relabel(header, role="weights", file=name),)
    classes = classes_in(manifest, header)
    if not is_builtin(manifest.form):
        wrong = check_finite(files[name], header)
    else:  # 0 classes fit no tensor: then the shapes themselves say what is missing
        wrong = check_tensors(files[name], expected_tensors(manifest, classes=classes or 0))
    if wrong:
        return classes, wrong
    return classes, (*_canary(manifest, files, classes), *_card(manifest, files))


def check_backbone_contents(manifest: BackboneManifest, files: Files) -> Iterator[Violation]:
    """Yield what is wrong with a backbone's tensors; whether a delta fits its base, core says."""
    if manifest.classifier is not None:
        shapes: Shapes = {"weight": (len(manifest.labels), manifest.width)}
        name = manifest.classifier.file
        yield from _exactly(files[name], shapes, role="classifier", file=name)
    if manifest.delta is not None:
        yield from _finite(files[manifest.delta.file], role="delta", file=manifest.delta.file)
    for name in sorted(manifest.base.files):
        if name.endswith(".safetensors"):
            yield from _finite(files[name], role="base", file=name)


def _canary(manifest: ExpertManifest, files: Files, classes: int | None) -> tuple[Violation, ...]:
    name = manifest.canary.file
    header = read_header(files[name])
    if isinstance(header, Violation):
        return (relabel(header, role="canary", file=name),)
    rows, out = _first(header, "z"), _second(header, "delta")
    if not 1 <= rows <= MAX_ROWS:
        expected = f"z of 1 to {MAX_ROWS} rows"
        return (Violation("canary_tensors", f"{name} z", expected, str(rows), _REBUILD),)
    width, space = manifest.reads.width, manifest.writes.space
    out = {"hidden": width, "labels": len(manifest.labels), "logits": classes or out}[space]
    shapes: Shapes = {"z": (rows, width), "delta": (rows, out)}
    return _exactly(files[name], shapes, role="canary", file=name)


def _card(manifest: ExpertManifest, files: Files) -> tuple[Violation, ...]:
    card = manifest.card
    if card.file is None:
        return ()
    data = files[card.file]
    if card.kind == "texts":
        return tuple(_rows(data, card.fit + card.gate, manifest))
    header = read_header(data)
    if isinstance(header, Violation):
        return (relabel(header, role="card", file=card.file),)
    sums = _statistics(manifest)
    if card.kind == "vectors":
        shapes = _vectors(manifest) | (sums if sums.keys() & header.keys() else {})
    else:
        shapes = sums
    whole = _COUNTS if manifest.labels != (VALUE,) else frozenset({"counts"})
    wrong = _exactly(data, shapes, role="card", file=card.file, whole=whole)
    return wrong or tuple(_indices(data, header, manifest, whole))


def _statistics(manifest: ExpertManifest) -> Shapes:
    labels, width = len(manifest.labels), manifest.reads.width
    return {"counts": (labels,), "sums": (labels, width), "scatter": (width, width)}


def _vectors(manifest: ExpertManifest) -> Shapes:
    fit, gate, width = manifest.card.fit, manifest.card.gate, manifest.reads.width
    return {
        "fit_z": (fit, width),
        "fit_label": (fit,),
        "gate_z": (gate, width),
        "gate_label": (gate,),
        "gate_shift": (gate, 1),
        "gate_scale": (gate, 1),
    }


def _rows(data: bytes, promised: int, manifest: ExpertManifest) -> Iterator[Violation]:
    """Compare a card of texts with the number of rows the manifest promises."""
    lines = data.count(b"\n")
    if lines <= 2 * promised:  # counted first: a file of empty lines alone would take seconds
        found = sum(1 for line in io.BytesIO(data) if line.strip())
        if found == promised:
            return
        lines = found
    expected = f"{manifest.card.fit} + {manifest.card.gate} rows"
    yield Violation("card_rows", manifest.card.file or "", expected, str(lines), _REBUILD)


def _indices(
    data: bytes,
    header: Mapping[str, TensorInfo],
    manifest: ExpertManifest,
    whole: frozenset[str],
) -> Iterator[Violation]:
    """Yield a violation for each index that names no label, and each label without rows."""
    import numpy as np

    limits = {"counts": (1, 2**53), **dict.fromkeys(whole - {"counts"}, (0, len(manifest.labels)))}
    for name in sorted(whole & header.keys()):
        info, (low, high) = header[name], limits[name]
        values = np.frombuffer(data[info.start : info.end], "<i8")
        if bool(((values < low) | (values >= high)).any()):
            expected = f"whole numbers from {low} to {high - 1}"
            field = f"{manifest.card.file} {name}"
            yield Violation("card_tensors", field, expected, "others", _REBUILD)


def _exactly(
    data: bytes, shapes: Shapes, *, role: str, file: str, whole: frozenset[str] = frozenset()
) -> tuple[Violation, ...]:
    wrong = check_tensors(data, shapes, whole=whole)
    return tuple(relabel(one, role=role, file=file) for one in wrong)


def _finite(data: bytes, *, role: str, file: str) -> Iterator[Violation]:
    header = read_header(data)
    found = (header,) if isinstance(header, Violation) else check_finite(data, header)
    yield from (relabel(one, role=role, file=file) for one in found)


def _first(header: Mapping[str, TensorInfo], name: str) -> int:
    """Return the first dimension of a tensor, 0 where there is none."""
    return header[name].shape[0] if name in header and header[name].shape else 0


def _second(header: Mapping[str, TensorInfo], name: str) -> int:
    """Return the last of two dimensions, 0 where there are others."""
    shape = header[name].shape if name in header else ()
    return shape[1] if len(shape) == 2 else 0  # noqa: PLR2004
