"""An adapter's package: PEFT's two files, a head, and what the manifest says of them.

weights     adapter_model.safetensors, with the shapes of its tensors under `tensors`
files       adapter_config.json; head.safetensors with W (L, D) and b (L), where the adapter
has labels of its own
canary      z and delta of a few token sequences, and the tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from redhost.registry.package.checked import Violation, checked, listed, refuse
from redhost.registry.package.forms import FINAL, FORMS, INSIDE
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.package.safetensors_check import (
    LARGEST,
    check_tensors,
    read_header,
    relabel,
)

from .peft_adapter import CONFIG, Adapter, read_adapter

FORM = "lora"
"""The form of an adapter in manifests."""

HEAD = "head.safetensors"
"""The file of W and b."""

_REBUILD = "Rebuild the package."


@checked
def read_packaged(manifest: ExpertManifest, files: Mapping[str, bytes]) -> Adapter:
    """Read the adapter of a package and check all that needs no backbone.

    Args:
        manifest: The expert's manifest, of the form `FORM`.
        files: The files of its package by name, as the host has checked them.

    Returns:
        The adapter, or all violations.
    """
    refuse(_fields(manifest))
    adapter = read_adapter(files[CONFIG], files[manifest.weights.file]).or_refuse()
    refuse(_promised(manifest, files, adapter))
    return adapter


def _fields(manifest: ExpertManifest) -> Iterator[Violation]:
    """Check that it acts inside the blocks it names itself, and writes h or labels."""
    writes, form = manifest.writes, f"for the form {FORM!r}"
    if writes.spec.logits:
        yield _field("writes.space", f"'hidden' or 'labels' {form}", repr(writes.space))
    if INSIDE in manifest.makers:
        taps = {manifest.reads.tap, writes.tap} - {FINAL}
        yield _field("reads.tap", f"{FINAL!r} {form}", repr(min(taps)))
    names = [CONFIG, HEAD] if writes.spec.own_labels else [CONFIG]
    if sorted(given := manifest.files or {}) != names:
        expected = f"{listed(names)} {form} and the space {writes.space!r}"
        yield _field("files", expected, listed(sorted(given)) or "none")


def _promised(
    manifest: ExpertManifest, files: Mapping[str, bytes], adapter: Adapter
) -> Iterator[Violation]:
    """Check what the manifest promises: the rank, the head's labels, tokens in the canary."""
    if manifest.rank != adapter.rank:
        yield _field("rank", f"{adapter.rank}, the largest rank", str(manifest.rank))
    if manifest.writes.spec.own_labels:
        width, labels = manifest.reads.width, len(manifest.labels)
        shapes = FORMS["linear"].shapes("labels", width=width, rank=0, out=labels)
        wrong = check_tensors(files[HEAD], shapes, largest=LARGEST)
        yield from relabel(wrong, role="files", file=HEAD)
    canary = manifest.canary.file
    if "tokens" not in read_header(files[canary]).or_refuse():
        field, expected = f"{canary} tokens", "the tokens that z was computed of"
        yield Violation("canary_tensors", field, expected, "no such tensor", _REBUILD)


def _field(field: str, expected: str, found: str) -> Violation:
    return Violation("manifest_field", field, expected, found, "Correct the manifest.")
