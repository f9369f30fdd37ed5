"""Check a package's files: exactly the tensors and rows that its manifest promises.

Shapes: D width of the bus, L labels, N canary rows, F and G the card's fit and gate rows.

==========  ==================================================================================
file        tensors
==========  ==================================================================================
canary      z (N, D), delta (N, out), with 1 ≤ N ≤ 256; of a plugin's form maybe tokens (N, T)
files       of a plugin's form: any tensors of floats
map         A (D', D), c (D'), with D' of the backbone that a ported expert was trained on
statistics  counts (L), sums (L, D), scatter (D (D + 1) / 2): rows of its upper triangle
vectors     fit_z (F, D), fit_label (F), gate_z (G, D), gate_label (G), gate_shift (G, 1),
            gate_scale (G, 1), and either all or none of the statistics
==========  ==================================================================================
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .checked import Violation, listed, refuse
from .forms import FORMS, VALUE, Shapes
from .manifest import BackboneManifest, ExpertManifest, parse_expert
from .model_files import check_model_files
from .rules import MAX_ROWS, classes_in, expected_tensors, package_digest
from .safetensors_check import (
    LARGEST,
    TensorInfo,
    check_finite,
    check_tensors,
    magnitude,
    reaches,
    read_floats,
    read_header,
    relabel,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PackageFiles = Mapping[str, bytes]

_COUNTS = frozenset({"counts", "fit_label", "gate_label"})
"""Tensors of a card that are integers; labels are floats if the expert answers numbers."""

_REBUILD = "Rebuild the package."

MAX_TOKENS = 4096
"""Most tokens in a canary: the backbone reads all of them before the expert joins."""

MAX_CARD = 8 * 2**20
"""Most bytes of a card of texts: a host tokenizes all of them before the expert joins."""

NORM = 4.0
"""‖z‖ / √D is at most 1 after the bus norm; this leaves room for other precisions and samples."""

TOLERANCE = 1e-3
"""Largest rounding error of a Δ of size 1; larger ones have proportionally larger errors."""


def check_contents(manifest: ExpertManifest, files: PackageFiles) -> int | None:
    """Check an expert's tensors and rows; part of a `checked` read.

    Args:
        manifest: Its manifest.
        files: Its bytes by name, with the sizes and digests that the manifest names.

    Returns:
        C of an expert that writes logits.

    Raises:
        Refused: If there is any violation.
    """
    name = manifest.weights.file
    read = read_header(files[name])
    refuse(relabel(read.violations, role="weights", file=name))
    header = read.or_refuse()
    classes = classes_in(manifest, header)
    # No tensor has 0 classes: then the violation of the shapes reports what is missing.
    shapes = expected_tensors(manifest, classes=classes or 0)
    refuse(
        check_tensors(files[name], shapes, largest=LARGEST)
        if shapes
        else check_finite(files[name], header, largest=LARGEST)
    )
    refuse((*_further(manifest, files), *_ported(manifest, files)))
    refuse((*_canary(manifest, files, classes), *_card(manifest, files)))
    return classes


def _further(manifest: ExpertManifest, files: PackageFiles) -> Iterator[Violation]:
    """Yield violations of the further files of a plugin's form; what they mean it checks itself."""
    for name in sorted(n for n in manifest.files or () if n.endswith(".safetensors")):
        read = read_header(files[name])
        infinite = check_finite(files[name], read.value, largest=LARGEST) if read.value else ()
        yield from relabel(read.violations or infinite, role="files", file=name)


_UNCHANGED = (
    *("id", "form", "rank", "activation", "writes"),
    *("temperature", "thresholds", "labels", "weights"),
)
"""Fields of an expert's manifest that a port never changes."""


def _ported(manifest: ExpertManifest, files: PackageFiles) -> Iterator[Violation]:
    """Yield differences between a ported expert and the author's build, apart from the map."""
    ported = manifest.ported
    if not ported:
        return
    shapes: Shapes = {"A": (ported.width, manifest.reads.width), "c": (ported.width,)}
    yield from relabel(
        check_tensors(files[ported.map.file], shapes, largest=LARGEST),
        role="ported",
        file=ported.map.file,
    )
    raw = files[ported.file]
    read = parse_expert(raw)
    if read.value is None:
        expected, reason = "its author's manifest", read.violations[0].reason
        yield Violation("ported_misfit", ported.file, expected, reason, _REBUILD)
        return
    names = [n for n in _UNCHANGED if getattr(read.value, n) != getattr(manifest, n)]
    if read.value.reads.width != ported.width:
        names.append("reads.width")
    if package_digest(raw, read.value) != ported.digest:
        names.append("digest")
    if names:
        expected = f"the fields of {ported.file}, the original manifest"
        yield Violation("ported_misfit", "ported", expected, f"other {listed(names)}", _REBUILD)


def check_backbone_contents(manifest: BackboneManifest, files: PackageFiles) -> Iterator[Violation]:
    """Yield violations of a backbone's tensors; core checks whether the rest fits the base."""
    if manifest.classifier is not None:
        shapes: Shapes = {"weight": (len(manifest.labels), manifest.width)}
        name = manifest.classifier.file
        yield from relabel(check_tensors(files[name], shapes), role="classifier", file=name)
    free = [("base", name) for name in sorted(manifest.base.files) if name.endswith(".safetensors")]
    dense = [("dense", layer.file) for layer in manifest.dense or ()]
    faults = list[Violation]()
    for role, name in ([("delta", manifest.delta.file)] if manifest.delta else []) + dense + free:
        read = read_header(files[name])
        infinite = () if read.value is None else check_finite(files[name], read.value)
        faults += relabel(read.violations or infinite, role=role, file=name)
    if not faults and manifest.base.files:
        faults += check_model_files({name: files[name] for name in manifest.base.files}).violations
    yield from faults


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
    width, labels = manifest.reads.width, len(manifest.labels)
    out = manifest.writes.spec.width(hidden=width, labels=labels, classes=classes or out)
    promised: Shapes = {"z": (rows, width), "delta": (rows, out)}
    if manifest.form not in FORMS and "tokens" in shapes:
        promised["tokens"] = (rows, (*shapes["tokens"], 0, 0)[1])
    violations = relabel(
        check_tensors(files[name], promised, integers={"tokens"}, largest=LARGEST),
        role="canary",
        file=name,
    )
    violations = violations or tuple(_tokens(files[name], read.value, name))
    return violations or tuple(_power(manifest, files, read.value))


def _tokens(data: bytes, header: Mapping[str, TensorInfo], file: str) -> Iterator[Violation]:
    """Yield a violation for canary tokens, if any, that no tokenizer could return."""
    if (info := header.get("tokens")) is None:
        return
    import numpy as np

    tokens = np.frombuffer(data[info.start : info.end], "<i8")
    if not 1 <= len(tokens) <= MAX_TOKENS or bool(((tokens < 0) | (tokens >= 2**31)).any()):
        yield Violation(
            "canary_tensors",
            f"{file} tokens",
            f"1 to {MAX_TOKENS:,} token numbers in all",
            "others",
            _REBUILD,
        )


def _power(
    manifest: ExpertManifest, files: PackageFiles, header: Mapping[str, TensorInfo]
) -> Iterator[Violation]:
    """Yield a violation for a canary that other weights would pass as well.

    Its tolerance may not exceed the rounding error of Δ, and an output of zero must fail it.
    """
    name, tolerance = manifest.canary.file, manifest.canary.tolerance
    data, delta = files[name], header["delta"]
    least = tolerance / (TOLERANCE * (1 + 1e-6))
    if least > 1 and not reaches(data, delta, least):
        expected = f"at most {TOLERANCE * max(1.0, magnitude(data, delta)):g}"
        yield Violation("canary_power", "canary.tolerance", expected, f"{tolerance:g}", _REBUILD)
    elif not (reaches(data, delta, 2 * tolerance) and reaches(data, header["z"], math.ulp(0.0))):
        loudest = f"{magnitude(data, delta):.3g}"
        expected = f"rows of z with a Δ of at least {2 * tolerance:g}, twice its tolerance"
        hint = "Choose rows on which the expert has a larger output, or a smaller tolerance."
        yield Violation("canary_power", f"{name} delta", expected, loudest, hint)


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
    shapes: Shapes = {
        "counts": (labels,),
        "sums": (labels, width),
        "scatter": (width * (width + 1) // 2,),
    }
    if card.kind == "vectors":
        several = (labels,) if manifest.thresholds else ()  # an indicator for each label of a row
        summed = not several and shapes.keys() & read.value.keys()
        shapes = (shapes if summed else {}) | {
            "fit_z": (fit, width),
            "fit_label": (fit, *several),
            "gate_z": (gate, width),
            "gate_label": (gate, *several),
            "gate_shift": (gate, 1),
            "gate_scale": (gate, 1),
        }
    integers = _COUNTS if manifest.labels != (VALUE,) else frozenset({"counts"})
    violations = relabel(
        check_tensors(data, shapes, integers=integers), role="card", file=card.file
    )
    violations = violations or tuple(_indices(data, read.value, manifest, integers))
    return violations or tuple(_implausible(data, read.value, card.file))


def _implausible(data: bytes, header: Mapping[str, TensorInfo], file: str) -> Iterator[Violation]:
    """Yield a violation for values impossible after the bus norm, where ‖z‖ is at most √D."""
    import numpy as np

    def norms(name: str) -> NDArray[np.float64]:
        rows = read_floats(data, header[name])
        squares: NDArray[np.float64] = np.einsum("nd,nd->n", rows, rows, dtype=np.float64)
        return np.sqrt(squares)

    sizes = dict[str, float]()  # the value found, divided by the largest possible one
    for name in sorted({"fit_z", "gate_z"} & header.keys()):
        most = NORM * header[name].shape[1] ** 0.5
        sizes[name] = float(norms(name).max(initial=0.0)) / most
    for name in sorted({"gate_scale", "gate_shift"} & header.keys()):
        sizes[name] = magnitude(data, header[name]) / LARGEST
    if "counts" in header:
        info, width = header["counts"], header["sums"].shape[1]
        counts = np.frombuffer(data, "<i8", info.shape[0], info.start).astype(np.float64)
        sizes["sums"] = float((norms("sums") / counts).max(initial=0.0)) / (NORM * width**0.5)
        # Row i of the upper triangle has D - i entries, the first of them on the diagonal.
        diagonal = np.arange(width) * (2 * width + 1 - np.arange(width)) // 2
        squares = read_floats(data, header["scatter"])[diagonal].astype(np.float64)
        # Σ z zᵀ has no entry larger than the largest on its diagonal, and none there is negative.
        larger = magnitude(data, header["scatter"]) > 1.01 * float(squares.max())
        most = 0.0 if larger or squares.min() < 0 else NORM**2 * width * float(counts.sum())
        sizes["scatter"] = float(squares.sum()) / most if most else math.inf
    for name in (name for name, size in sizes.items() if size > 1):
        expected, size = "what vectors behind the bus norm come to", f"{sizes[name]:.3g} times it"
        yield Violation("card_range", f"{file} {name}", expected, size, _REBUILD)


def _rows(data: bytes, promised: int, manifest: ExpertManifest) -> Iterator[Violation]:
    """Compare a card of texts with the number of rows the manifest promises."""
    name, lines = manifest.card.file or "", data.count(b"\n")
    if len(data) > MAX_CARD:
        expected = f"a card of texts of at most {MAX_CARD:,} bytes"
        yield Violation("card_rows", name, expected, f"{len(data):,}", _REBUILD)
    if lines <= 2 * promised:  # counted first: splitting a file of empty lines would take seconds
        lines = sum(1 for line in io.BytesIO(data) if line.strip())
        if lines == promised:
            return
    expected = f"{manifest.card.fit} + {manifest.card.gate} rows"
    yield Violation("card_rows", name, expected, str(lines), _REBUILD)


def _indices(
    data: bytes,
    header: Mapping[str, TensorInfo],
    manifest: ExpertManifest,
    integers: frozenset[str],
) -> Iterator[Violation]:
    """Yield a violation for each index without a label, and each label without rows."""
    import numpy as np

    answers = 2 if manifest.thresholds else len(manifest.labels)
    limits = {"counts": (1, 2**53), **dict.fromkeys(integers - {"counts"}, (0, answers))}
    for name in sorted(integers & header.keys()):
        info, (low, high) = header[name], limits[name]
        values = np.frombuffer(data[info.start : info.end], "<i8")
        if bool(((values < low) | (values >= high)).any()):
            expected = f"whole numbers from {low} to {high - 1}"
            yield Violation(
                "card_tensors", f"{manifest.card.file} {name}", expected, "others", _REBUILD
            )
