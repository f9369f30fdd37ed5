"""Read a package once, check every byte, and hand on the very bytes that were checked.

Nothing is mapped and no file is opened twice: a mapped file that is truncated kills the process,
and one that is overwritten changes weights under a reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

from .contents import check_backbone_contents, check_contents
from .errors import short
from .fields import check_backbone, check_valid
from .integrity import MAX_FILE, relabel, sha256_hex, truncation
from .manifest import BackboneManifest, ExpertManifest, parse_backbone, parse_expert
from .sources import Reader, Source, reader
from .violations import Violation

__all__ = [
    "MAX_BACKBONE_FILE",
    "BackboneFiles",
    "ExpertFiles",
    "read_backbone",
    "read_expert",
    "read_manifest",
]

MAX_BACKBONE_FILE = 2 * 2**30
"""Larger trunks belong on a hub; an expert's files are held to `MAX_FILE`."""

M = TypeVar("M", ExpertManifest, BackboneManifest)


@dataclass(frozen=True)
class ExpertFiles:
    """A valid expert, in memory.

    Attributes:
        manifest: The parsed ``expert.json``.
        files: The bytes of every file by name, ``expert.json`` among them.
        digest: The sha256 over manifest, weights, card and canary.
        classes: C of an expert that writes logits, as its weights have it.
    """

    manifest: ExpertManifest
    files: Mapping[str, bytes]
    digest: str
    classes: int | None = None

    @property
    def weights(self) -> bytes:
        """The weights, a safetensors file."""
        return self.files[self.manifest.weights.file]

    @property
    def canary(self) -> bytes:
        """The canary, a safetensors file."""
        return self.files[self.manifest.canary.file]

    @property
    def card(self) -> bytes | None:
        """The routing card, or None for the kind ``none``."""
        name = self.manifest.card.file
        return None if name is None else self.files[name]


@dataclass(frozen=True)
class BackboneFiles:
    """A valid backbone, in memory; the files of a hub base are not part of it.

    Attributes:
        manifest: The parsed ``backbone.json``.
        files: The bytes of every file by name, ``backbone.json`` among them.
        digest: The sha256 over the manifest and every file it names.
    """

    manifest: BackboneManifest
    files: Mapping[str, bytes]
    digest: str


@dataclass(frozen=True)
class _Part:
    """A file the manifest promises; the role is unique, the kind names its codes."""

    role: str
    file: str
    sha256: str

    @property
    def kind(self) -> str:
        return self.role.partition("/")[0]

    @property
    def is_tensors(self) -> bool:
        return self.file.endswith(".safetensors")


def read_expert(source: Source) -> ExpertFiles | tuple[Violation, ...]:
    """Read an expert and check everything that needs neither a backbone nor torch.

    Args:
        source: Where its files are.

    Returns:
        The expert with the bytes that were checked, or everything that is wrong with it.
    """
    read = reader(source, limit=MAX_FILE)
    found = _manifest(read, "expert.json", parse_expert)
    if isinstance(found, Violation):
        return (found,)
    raw, manifest = found
    if wrong := check_valid(manifest):
        return wrong
    parts = _expert_parts(manifest)
    files, wrong = _read_parts(read, parts)
    classes, wrong = (None, wrong) if wrong else check_contents(manifest, files)
    if wrong:
        return wrong
    digest = _digest(raw, {part.role: part.sha256 for part in parts})
    return ExpertFiles(manifest, MappingProxyType({"expert.json": raw, **files}), digest, classes)


def read_manifest(raw: bytes) -> tuple[ExpertManifest, str] | Violation:
    """Read an expert's manifest alone, with the digest of a package that is what it says.

    The digest covers the manifest and the hashes in it, so one that equals what was composed shows
    that the manifest is the composed one; the files it names are checked by `read_expert`.

    Args:
        raw: The bytes of ``expert.json``.
    """
    manifest = parse_expert(raw)
    if isinstance(manifest, Violation):
        return manifest
    return manifest, _digest(raw, {p.role: p.sha256 for p in _expert_parts(manifest)})


def read_backbone(source: Source) -> BackboneFiles | tuple[Violation, ...]:
    """Read a backbone and check everything that needs no torch.

    Args:
        source: Where its files are.

    Returns:
        The backbone with the bytes that were checked, or everything that is wrong with it.
    """
    read = reader(source, limit=MAX_BACKBONE_FILE)
    found = _manifest(read, "backbone.json", parse_backbone)
    if isinstance(found, Violation):
        return (found,)
    raw, manifest = found
    if wrong := check_backbone(manifest):
        return wrong
    parts = _backbone_parts(manifest)
    files, wrong = _read_parts(read, parts)
    if wrong := wrong or tuple(check_backbone_contents(manifest, files)):
        return wrong
    digest = _digest(raw, {part.role: part.sha256 for part in parts})
    return BackboneFiles(manifest, MappingProxyType({"backbone.json": raw, **files}), digest)


def _manifest(
    read: Reader, name: str, parse: Callable[[bytes], M | Violation]
) -> tuple[bytes, M] | Violation:
    raw = read(name, "package_files")
    if isinstance(raw, Violation):
        return raw
    manifest = parse(raw)
    return manifest if isinstance(manifest, Violation) else (raw, manifest)


def _expert_parts(manifest: ExpertManifest) -> list[_Part]:
    weights, card, canary = manifest.weights, manifest.card, manifest.canary
    parts = [_Part("weights", weights.file, weights.sha256)]
    if card.file is not None and card.sha256 is not None:
        parts.append(_Part("card", card.file, card.sha256))
    return [*parts, _Part("canary", canary.file, canary.sha256)]


def _backbone_parts(manifest: BackboneManifest) -> list[_Part]:
    named = {
        "delta": manifest.delta,
        "classifier": manifest.classifier,
        "background": manifest.background,
        "evaluation": manifest.evaluation,
    }
    parts = [_Part(role, ref.file, ref.sha256) for role, ref in named.items() if ref]
    base = sorted(manifest.base.files.items())
    return parts + [_Part(f"base/{name}", name, sha256) for name, sha256 in base]


def _read_parts(read: Reader, parts: list[_Part]) -> tuple[dict[str, bytes], tuple[Violation, ...]]:
    """Read every file once and compare its sha256."""
    files: dict[str, bytes] = {}
    wrong: list[Violation] = []
    for part in parts:
        data = read(part.file, f"{part.kind}_missing")
        if isinstance(data, Violation):
            wrong.append(data)
        elif (violation := _check_digest(part, data)) is not None:
            wrong.append(violation)
        else:
            files[part.file] = data
    return files, tuple(wrong)


def _check_digest(part: _Part, data: bytes) -> Violation | None:
    found = sha256_hex(data)
    if found == part.sha256:
        return None
    cut = truncation(data) if part.is_tensors else None
    if cut is not None:
        return relabel(cut, role=part.kind, file=part.file)
    sized = f"{short(found)}, {len(data):,} bytes"
    hint = "The file changed after the manifest was written: reinstall the package."
    return Violation(f"{part.kind}_digest", part.file, short(part.sha256), sized, hint)


def _digest(manifest: bytes, parts: Mapping[str, str]) -> str:
    """Return the sha256 over roles and hashes, a line each: the digest of a package's content."""
    lines = {"manifest": sha256_hex(manifest), **parts}
    return sha256_hex("".join(f"{role}\0{sha}\n" for role, sha in lines.items()).encode())
