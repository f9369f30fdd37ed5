"""Read a package out of a wheel, in memory and audited, without installing or importing it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath

from msgspec import Struct

from ..package.checked import Checked, Refused, Violation, checked, refuse
from ..package.discover import (
    MANIFESTS,
    MAX_METADATA,
    Kind,
    Package,
    canonical,
    entries,
    headers,
)
from ..package.manifest import parse_backbone, parse_expert
from ..package.readers import MAX_LARGE, ExpertFiles, read_expert, read_file
from ..package.safetensors_check import sha256_hex
from .archive import ArchiveError, read_archive
from .policy import (
    WheelPolicy,
    check_code,
    check_entry_points,
    check_headers,
    check_names,
    check_record,
    check_top_level,
    parse_record,
)
from .signing import PublicKey, read_signature, signature_path, verify

SDISTS = (".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tar", ".zip")


class Wheel(Struct, frozen=True, dict=True):
    """An expert or backbone in a wheel that passed its audit.

    Attributes:
        package: The package described by its metadata; ``folder`` is None.
        info: The name of its dist-info folder.
        files: The bytes of the files next to its manifest, by plain file name.
        name: The wheel's file name.
        data: The bytes that were audited; these are installed, and the file is not read again.
        signer: The fingerprint of the key that signed them, if keys were required.
        source: The index or folder that it was taken from by name, without credentials; else its
            path.
    """

    package: Package
    info: str
    files: Mapping[str, bytes]
    name: str
    data: bytes
    signer: str = ""
    source: str = ""

    @cached_property
    def expert(self) -> Checked[ExpertFiles]:
        """The expert that it holds, or what is wrong with it."""
        return read_expert(self.files)

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the file."""
        return sha256_hex(self.data)


@checked
def read_wheel(
    path: Path, *, keys: Sequence[PublicKey] = (), signature: Path | None = None
) -> Wheel:
    """Audit a wheel and read the expert or backbone it holds.

    Args:
        path: The ``.whl`` file.
        keys: If there are any, one of these must have signed it.
        signature: The path of the signature, if it is not next to the wheel.

    Returns:
        The wheel, whose files can be passed to `read_expert` or `read_backbone`; or all violations.
    """
    data = read_file(path, missing="package_files", limit=MAX_LARGE).or_refuse()
    signer = ""
    if keys:  # verified before anything in it is parsed
        where = signature or signature_path(path)
        signed = read_signature(where).or_refuse()
        signer = verify(data, signed, keys=keys, name=where.name).or_refuse().fingerprint
    if path.name.endswith(SDISTS):
        raise ArchiveError("archive_sdist", "a wheel", "a source distribution")
    members = read_archive(data)
    package, info, entry = _identify(members)
    _check_file_name(path.name, package, info)
    _audit(members, package, info)
    files = {  # beside the manifest, by plain file name
        PurePosixPath(name).name: content
        for name, content in members.items()
        if str(PurePosixPath(name).parent) == package.module and not name.endswith((".py", "/"))
    }
    refuse(_check_id(files, package, entry))
    return Wheel(package, info, files, path.name, data, signer, source=str(path.absolute()))


def open_wheel(
    path: Path, *, keys: Sequence[PublicKey] = (), signature: Path | None = None
) -> Wheel:
    """Audit a wheel's file; the arguments are those of `read_wheel`.

    Raises:
        RedhostError: Its first violation.
    """
    wheel = read_wheel(path, keys=keys, signature=signature)
    code = wheel.violations[0].code if wheel.violations else ""
    others = len(wheel.violations) - 1
    more = f", and {others} more: 'redhost check {path}'" if others > 0 else ""
    return wheel.unwrap(f"wheel {path.name} was refused ({code}{more})")


def _audit(members: Mapping[str, bytes], package: Package, info: str) -> None:
    """Refuse a wheel that contains more than the policy allows in an environment."""
    policy = WheelPolicy(dist=package.dist, module=package.module, info=info)
    record = members.get(f"{info}/RECORD")
    if record is None:
        hint = policy.hint()
        raise Refused(Violation("record_absent", f"{info}/RECORD", "a RECORD", "none", hint))
    rows = parse_record(record).or_refuse()
    present = [name for name in members if not name.endswith("/")]
    faults = (
        check_names(policy, members),
        check_top_level(policy, ()),
        check_headers(policy, _text(members, f"{info}/METADATA")),
        check_entry_points(_text(members, f"{info}/entry_points.txt")),
        check_record(policy, rows, present=present, read=lambda name: Checked(members[name])),
        check_code(policy, members),
    )
    refuse(chain.from_iterable(faults))


def _check_id(files: Mapping[str, bytes], package: Package, entry: str) -> Iterator[Violation]:
    """Refuse an entry point whose name differs from the id of its package."""
    raw = files.get(MANIFESTS[package.kind], b"")
    read = parse_expert(raw) if package.kind == "expert" else parse_backbone(raw)
    manifest = read.value
    if manifest is not None and manifest.id != entry:  # an invalid one is refused later
        hint = "Call the entry point by the id, and build the wheel again."
        yield Violation(
            "entry_points", "entry_points.txt", repr(manifest.id), repr(entry[:80]), hint
        )


def _identify(members: Mapping[str, bytes]) -> tuple[Package, str, str]:
    """Return the package in a wheel, and the names of its dist-info folder and entry point."""
    infos = sorted({n.partition("/")[0] for n in members if ".dist-info/" in n})
    if len(infos) != 1 or not infos[0].endswith(".dist-info"):
        raise ArchiveError("package_files", "one .dist-info", str(len(infos)))
    [info] = infos
    for name in ("METADATA", "WHEEL", "entry_points.txt"):
        if f"{info}/{name}" not in members:
            raise ArchiveError("package_files", f"{name} in {info}", "none")
    fields = headers(_text(members, f"{info}/METADATA"))
    text = _text(members, f"{info}/entry_points.txt")
    offers: list[tuple[Kind, str, str]] = [
        (kind, name, value)
        for kind in MANIFESTS
        for name, value in entries(text, f"redhost.{kind}s")
    ]
    if len(offers) != 1 or not offers[0][2].isidentifier():
        expected = "one entry point of an expert or a backbone (pip installs plugins)"
        raise ArchiveError("package_files", expected, repr([(k, v) for k, _, v in offers])[:120])
    [(kind, name, module)] = offers
    return Package(kind, fields["name"], fields["version"], module, None, False), info, name


def _check_file_name(name: str, package: Package, info: str) -> None:
    """Refuse a file name that contradicts the metadata, or that is not for pure Python."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename
    from packaging.version import InvalidVersion, Version

    expected = f"the file name of {package.dist} {package.version}, for any system"
    try:
        dist, version, _, tags = parse_wheel_filename(name)
        agrees = dist == canonical(package.dist) and version == Version(package.version)
        agrees = agrees and dist == canonical(info.partition("-")[0])
    except (InvalidWheelFilename, InvalidVersion) as e:
        raise ArchiveError("archive_wheel", expected, str(e)[:120]) from e
    if not agrees or {(tag.abi, tag.platform) for tag in tags} != {("none", "any")}:
        raise ArchiveError("archive_wheel", expected, name[:120])


def _text(members: Mapping[str, bytes], name: str) -> str:
    if len(members[name]) > MAX_METADATA:
        expected = f"at most {MAX_METADATA:,} bytes of {name}"
        raise ArchiveError("package_files", expected, f"{len(members[name]):,}")
    try:
        return members[name].decode("utf-8")
    except UnicodeDecodeError as e:
        raise ArchiveError("package_files", f"text in {name}", str(e)[:120]) from e
