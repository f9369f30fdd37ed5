"""Read a package once, check every byte, and return exactly the bytes that were checked.

No file is memory-mapped and none is opened twice: truncating a mapped file kills the process, and
overwriting it changes weights in use.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from ..atomic import read_regular
from ..errors import short
from .checked import Refused, Violation, checked, refuse
from .discover import MANIFESTS, Package
from .forms import FORMS
from .manifest import (
    MAX_BYTES,
    BackboneManifest,
    ExpertManifest,
    parse_backbone,
    parse_expert,
    parts_of,
)
from .model_files import folder_of
from .payload import check_backbone_contents, check_contents
from .rules import bus_violation, check_backbone, check_valid, package_digest
from .safetensors_check import MAX_FILE, relabel, sha256_hex, truncation

MAX_LARGE = 2 * 2**30
"""Most bytes of a trunk's weights, or a plugin's form's; larger ones belong on a hub."""


class ExpertFiles(Struct, frozen=True):
    """A valid expert, in memory.

    Attributes:
        manifest: The parsed ``expert.json``.
        files: The bytes of every file by name, including ``expert.json``.
        digest: The sha256 over manifest, weights, card and canary.
        classes: C of an expert that writes logits, according to its weights.
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


class BackboneFiles(Struct, frozen=True):
    """A valid backbone, in memory; the files of a hub base are not part of it.

    Attributes:
        manifest: The parsed ``backbone.json``.
        files: The bytes of every file by name, including ``backbone.json``.
        digest: The sha256 over the manifest and every file it names.
    """

    manifest: BackboneManifest
    files: Mapping[str, bytes]
    digest: str


@checked
def read_expert(source: PackageSource, *, checked_digest: str | None = None) -> ExpertFiles:
    """Read an expert and check everything that needs neither a backbone nor torch.

    Args:
        source: Its package or files.
        checked_digest: The digest of an expert that was checked before. If the digest is equal, the
            files are bitwise identical: they are hashed, but their content is not checked again.

    Returns:
        The expert with the bytes that were checked, or all violations.
    """
    raw = read_part(source, "expert.json").or_refuse()
    manifest = parse_expert(raw).or_refuse()
    digest = package_digest(raw, manifest)
    if digest != checked_digest:
        refuse(check_valid(manifest))
    files = _read_parts(source, manifest)
    classes = None if digest == checked_digest else check_contents(manifest, files)
    return ExpertFiles(manifest, MappingProxyType({"expert.json": raw, **files}), digest, classes)


@checked
def read_manifest(raw: bytes) -> tuple[ExpertManifest, str]:
    """Read an expert's manifest alone, with the digest of a package that matches it.

    The digest covers the manifest and the hashes in it, so an equal digest shows that the manifest
    is the composed one; the files it names are checked by `read_expert`.

    Args:
        raw: The bytes of ``expert.json``.
    """
    manifest = parse_expert(raw).or_refuse()
    return manifest, package_digest(raw, manifest)


@checked
def read_backbone_manifest(package: Package) -> tuple[BackboneManifest, str]:
    """Read a backbone's manifest alone, with the digest of a package that matches it."""
    raw = read_part(package, MANIFESTS["backbone"], limit=MAX_BYTES).or_refuse()
    manifest = parse_backbone(raw).or_refuse()
    return manifest, package_digest(raw, manifest)


@checked
def read_backbone(source: PackageSource, *, checked_digest: str | None = None) -> BackboneFiles:
    """Read a backbone and check everything that needs no torch.

    Args:
        source: Its package or files.
        checked_digest: The digest of a backbone that was checked before, as for `read_expert`.

    Returns:
        The backbone with the bytes that were checked, or all violations.
    """
    raw = read_part(source, "backbone.json", limit=MAX_LARGE).or_refuse()
    manifest = parse_backbone(raw).or_refuse()
    digest = package_digest(raw, manifest)
    passed = digest == checked_digest
    # The host that checked it before may have had another bus version.
    fit = bus_violation(manifest.bus_api, "the backbone") if passed else ()
    refuse(fit or (() if passed else check_backbone(manifest)))
    files = _read_parts(source, manifest)
    if not passed:
        refuse(check_backbone_contents(manifest, files))
    return BackboneFiles(manifest, MappingProxyType({"backbone.json": raw, **files}), digest)


def _read_parts(
    source: PackageSource, manifest: ExpertManifest | BackboneManifest
) -> dict[str, bytes]:
    """Read every file once and compare its sha256; refuse with all differences."""
    files, violations = dict[str, bytes](), list[Violation]()
    for role, name, sha256 in parts_of(manifest):
        kind = role.partition("/")[0]
        large = isinstance(manifest, BackboneManifest) or (
            kind == "weights" and manifest.form not in FORMS
        )
        limit = MAX_LARGE if large else MAX_FILE
        path, missing = _elsewhere(source, manifest, name), f"{kind}_missing"
        one = (
            read_file(path, missing=missing, limit=limit)
            if path
            else read_part(source, name, limit=limit, missing=missing)
        )
        violations += one.violations
        if one.value is None or (actual := sha256_hex(one.value)) == sha256:
            files[name] = one.value or b""
            continue
        cut = truncation(one.value) if name.endswith(".safetensors") else ()
        sized = f"{short(actual)}, {len(one.value):,} bytes"
        hint = "The file changed after the manifest was written: reinstall the package."
        changed = Violation(f"{kind}_digest", str(path or name), short(sha256), sized, hint)
        violations += relabel(cut, role=kind, file=name) or (changed,)
    refuse(violations)
    return files


def _elsewhere(
    source: PackageSource, manifest: ExpertManifest | BackboneManifest, name: str
) -> Path | None:
    """Return the path of a file that another distribution has, unless the source has it stored."""
    if isinstance(manifest, ExpertManifest) or manifest.base.kind != "dist":
        return None
    stored = not isinstance(source, Package) and name in source
    return folder_of(manifest.base) / name if name in manifest.base.files and not stored else None


PackageSource = Package | Mapping[str, bytes]
"""An installed package, or the bytes of one by plain file name (from a wheel or the store)."""

_REINSTALL = "Reinstall the package; if that does not help, ask its author for a new build."


@checked
def read_part(
    source: PackageSource, name: str, *, limit: int = MAX_FILE, missing: str = "package_files"
) -> bytes:
    """Read one file of a package.

    Args:
        source: A package or the bytes of one.
        name: Its plain name.
        limit: The most bytes it may have.
        missing: The code of the violation if it is missing.
    """
    if not isinstance(source, Package):
        if name not in source:
            raise Refused(Violation(missing, name, "a file", "nothing", _REINSTALL))
        if len(source[name]) > limit:
            raise _too_large(name, limit, missing)
        return source[name]
    if source.folder is None:
        expected = f"the folder of the top-level package {source.module!r}"
        raise Refused(Violation("package_files", source.dist, expected, "nothing", _REINSTALL))
    return read_file(source.folder / name, missing=missing, limit=limit).or_refuse()


@checked
def read_file(path: Path, *, missing: str, limit: int, too_large: str = "") -> bytes:
    """Read a regular file with one call.

    Args:
        path: The file.
        missing: The code of the violation if it is missing, e.g. ``weights_missing``.
        limit: The most bytes it may have.
        too_large: The code if it has more; by default `missing` with another ending.

    Returns:
        Its bytes, or why they could not be read.
    """
    try:
        return read_regular(path, limit=limit)
    except OSError as e:
        if e.errno == errno.EFBIG:
            raise _too_large(path.name, limit, too_large or missing) from e
        reason = e.strerror.lower() if e.strerror else type(e).__name__
        raise Refused(Violation(missing, path.name, "a regular file", reason, _REINSTALL)) from e


def _too_large(name: str, limit: int, missing: str) -> Refused:
    code, most = missing.replace("_missing", "_too_large"), f"at most {limit:,} bytes"
    return Refused(Violation(code, name, most, "more", "Ask for a smaller build."))
