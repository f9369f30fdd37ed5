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

from .checked import Violation, refuse
from .forms import VALUE, Shapes
from .manifest import BackboneManifest, ExpertManifest
from .rules import MAX_ROWS, classes_in, expected_tensors
from .safetensors_check import TensorInfo, check_finite, check_tensors, read_header, relabel

PackageFiles = Mapping[str, bytes]

_COUNTS = frozenset({"counts", "fit_label", "gate_label"})
"""Tensors of a card that are whole numbers, or numbers where the expert answers numbers."""

_REBUILD = "Rebuild the package."


def check_contents(manifest: ExpertManifest, files: PackageFiles) -> int | None:
    """Check an expert's tensors and rows; part of a `checked` read.

    Args:
        manifest: Its manifest.
        files: Its bytes by name, of the sizes and digests that the manifest names.

    Returns:
        C of an expert that writes logits.

    Raises:
        Refused: If anything is wrong.
    """
    name = manifest.weights.file
    read = read_header(files[name])
    refuse(relabel(read.violations, role="weights", file=name))
    header = read.or_refuse()
    classes = classes_in(manifest, header)
    # 0 classes fit no tensor: then the shapes themselves say what is missing.
    shapes = expected_tensors(manifest, classes=classes or 0)
    refuse(check_tensors(files[name], shapes) if shapes else check_finite(files[name], header))
    canary = _canary(manifest, files, classes)
    refuse((*canary, *_card(manifest, files)))
    return classes


def check_backbone_contents(manifest: BackboneManifest, files: PackageFiles) -> Iterator[Violation]:
    """Yield what is wrong with a backbone's tensors; whether a delta fits its base, core says."""
    if manifest.classifier is not None:
        shapes: Shapes = {"weight": (len(manifest.labels), manifest.width)}
        name = manifest.classifier.file
        yield from relabel(check_tensors(files[name], shapes), role="classifier", file=name)
    free = [("base", name) for name in sorted(manifest.base.files) if name.endswith(".safetensors")]
    for role, name in ([("delta", manifest.delta.file)] if manifest.delta else []) + free:
        read = read_header(files[name])
        wrong = read.violations if read.value is None else check_finite(files[name], read.value)
        yield from relabel(wrong, role=role, file=name)


def _canary(
    manifest: ExpertManifest, files: PackageFiles, classes: int | None
) -> tuple[Violation, ...]:
    name = manifest.canary.file
    read = read_header(files[name])
    if read.value is None:
        return relabel(read.violations, role="canary", file=name)
    shapes = {name: info.shape for name, info in read.value.items()}
    rows = next(iter(shapes.get("z", ())), 0)
    out = shapes["delta"][1] if len(shapes.get("delta", ())) == 2 else 0  # noqa: PLR2004
    if not 1 <= rows <= MAX_ROWS:
        expected = f"z of 1 to {MAX_ROWS} rows"
        return (Violation("canary_tensors", f"{name} z", expected, str(rows), _REBUILD),)
    width, space = manifest.reads.width, manifest.writes.space
    out = {"hidden": width, "labels": len(manifest.labels), "logits": classes or out}[space]
    promised: Shapes = {"z": (rows, width), "delta": (rows, out)}
    return relabel(check_tensors(files[name], promised), role="canary", file=name)


def _card(manifest: ExpertManifest, files: PackageFiles) -> tuple[Violation, ...]:
    card = manifest.card
    if card.file is None:
        return ()
    data = files[card.file]
    if card.kind == "texts":
        return tuple(_rows(data, card.fit + card.gate, manifest))
    read = read_header(data)
    if read.value is None:
        return relabel(read.violations, role="card", file=card.file)
    labels, width, fit, gate = len(manifest.labels), manifest.reads.width, card.fit, card.gate
    shapes: Shapes = {"counts": (labels,), "sums": (labels, width), "scatter": (width, width)}
    if card.kind == "vectors":
        shapes = (shapes if shapes.keys() & read.value.keys() else {}) | {
            "fit_z": (fit, width),
            "fit_label": (fit,),
            "gate_z": (gate, width),
            "gate_label": (gate,),
            "gate_shift": (gate, 1),
            "gate_scale": (gate, 1),
        }
    integers = _COUNTS if manifest.labels != (VALUE,) else frozenset({"counts"})
    wrong = relabel(check_tensors(data, shapes, integers=integers), role="card", file=card.file)
    return wrong or tuple(_indices(data, read.value, manifest, integers))


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
    integers: frozenset[str],
) -> Iterator[Violation]:
    """Yield a violation for each index that names no label, and each label without rows."""
    import numpy as np

    limits = {
        "counts": (1, 2**53),
        **dict.fromkeys(integers - {"counts"}, (0, len(manifest.labels))),
    }
    for name in sorted(integers & header.keys()):
        info, (low, high) = header[name], limits[name]
        values = np.frombuffer(data[info.start : info.end], "<i8")
        if bool(((values < low) | (values >= high)).any()):
            expected = f"whole numbers from {low} to {high - 1}"
            field = f"{manifest.card.file} {name}"
            yield Violation("card_tensors", field, expected, "others", _REBUILD)
