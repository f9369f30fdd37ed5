"""The policy for data packages: what a wheel may contain, and what an installed one may have.

An expert or backbone owns one top-level folder and its own ``.dist-info``. Any other file could
run, or could overwrite files of other packages.
"""

from __future__ import annotations

import ast
import base64
import csv
import io
import json
import os
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from importlib.machinery import all_suffixes
from itertools import accumulate, chain, islice
from pathlib import Path
from urllib.parse import unquote, urlsplit

from msgspec import Struct

from ..errors import one_line, short
from ..package.checked import Checked, Refused, Violation, checked
from ..package.discover import (
    MANIFESTS,
    MAX_METADATA,
    MAX_OFFERS,
    MAX_POINTS,
    beginning_of,
    canonical,
    entries,
    groups,
    header_lines,
    headers,
)
from ..package.safetensors_check import sha256_hex

CODE_SUFFIXES = (".py", ".pyw", *(s.casefold() for s in all_suffixes()))
STARTUP_SUFFIXES = (".pth", ".start", ".egg-link")
STARTUP_MODULES = frozenset({"sitecustomize", "usercustomize"})

HOSTS = frozenset({"redhost", "torch", "pip", "setuptools", "pkg_resources", "_distutils_hack"})
"""Names that an expert may never have, whether or not they are installed here."""

DATA_MODULE = re.compile(r"red_(expert|backbone)_\w+", re.ASCII)
"""Names that a wheel of data may take. Libraries import optional packages that are absent, such as
`dill`, by name: a wheel called like one of them would run in any process that imports torch."""

MAX_MODULE = 65536
"""Most bytes of a data package's one module, which has a docstring and no code."""

INSTALLERS = frozenset({"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
"""Files of a dist-info that installers write; a wheel may not contain them."""

MAX_NAMES, MAX_DEPTH, MAX_NAME = 10_000, 10, 240
"""Limits of a package: number of files, folders around each, characters of its path."""

SIGNATURES = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s"})
"""Files of a dist-info that cannot be listed in RECORD with a hash."""


_AGAIN = "Do not install it; get the wheel again from its author."
_HINTS: Mapping[str, tuple[str, str]] = {
    "": (_AGAIN, "Reinstall it with 'pip install --force-reinstall --no-deps {dist}'."),
    "startup_code": (
        "Do not install it: this code would run whenever Python starts.",
        "Its code has run already, whenever Python started since it was installed: remove it with "
        "'pip uninstall {dist}', and look at what it did.",
    ),
    "foreign_top_level": (
        "Do not install it: it would overwrite what others brought.",
        "Uninstall {dist}, then reinstall what it shares files with.",
    ),
    "record_outside": (
        _AGAIN,
        "'pip uninstall {dist}' would remove those files too: take it out by hand.",
    ),
}
"""Code of a violation → what to do about a wheel, and about what is installed."""


class WheelPolicy(Struct, frozen=True, kw_only=True):
    """The package that is checked, and the names that it owns.

    Attributes:
        dist: The distribution.
        module: Its one top-level package.
        info: The name of its dist-info folder.
        installed: Whether it is installed in an environment; otherwise it is a wheel.
    """

    dist: str
    module: str
    info: str
    installed: bool = False

    def owns(self, name: str) -> bool:
        """Return whether a name lies in the package or in its dist-info."""
        return name.partition("/")[0] in {self.module, self.info}

    def is_loose(self, name: str) -> bool:
        """Return whether a file may lack a row and a hash in RECORD."""
        parts = name.split("/")
        if self.installed and "__pycache__" in parts:
            return name.endswith(".pyc")  # byte code depends on the interpreter and has no hash
        allowed = SIGNATURES | INSTALLERS if self.installed else SIGNATURES
        return parts[0] == self.info and parts[-1] in allowed

    def hint(self, code: str = "") -> str:
        """Return what to do about a package that fails, by the code of the violation."""
        in_wheel, installed = _HINTS.get(code, _HINTS[""])
        return (installed if self.installed else in_wheel).format(dist=self.dist)


def check_names(policy: WheelPolicy, names: Iterable[str]) -> Iterator[Violation]:
    """Check that a package contains only its own files.

    Args:
        policy: The package's policy.
        names: Names of files and folders, relative to the site folder or to the wheel's root.
    """
    by_code: defaultdict[str, list[str]] = defaultdict(list)
    for n, name in enumerate(sorted(set(names), key=lambda name: (name.endswith(".pyc"), name))):
        by_code[_misplaced(policy, name)].append(name)
        if n >= MAX_NAMES or name.count("/") > MAX_DEPTH or len(name) > MAX_NAME:
            by_code["name_limit"].append(name)
    limits = f"{MAX_NAMES:,} names of at most {MAX_DEPTH} folders and {MAX_NAME} characters"
    for code, expected in (
        ("name_limit", limits),
        ("startup_code", "no file that Python runs when it starts"),
        ("data_scripts", "no .data folder: it goes to other places"),
        ("foreign_top_level", f"nothing beside {policy.module!r}"),
        ("installer_file", "what installers write left to them"),
    ):
        yield from _fault(code, by_code, expected, policy.hint(code))


def check_top_level(policy: WheelPolicy, owners: Collection[str]) -> Iterator[Violation]:
    """Check that no other package has this package's names.

    Args:
        policy: The package's policy.
        owners: Other distributions of the environment that have this name.
    """
    name = policy.module.casefold()
    expected, hint = "a top-level package of its own", policy.hint("foreign_top_level")
    if canonical(policy.dist) in {canonical(host) for host in HOSTS}:
        yield Violation(
            "taken_name",
            policy.dist,
            "a name of its own",
            "a name of the host: installing it would replace that",
            hint,
        )
    if not (policy.installed or DATA_MODULE.fullmatch(policy.module)):
        expected = "a name that no library looks for: red_expert_… or red_backbone_…"
        yield Violation("taken_top_level", policy.module, expected, repr(policy.module), hint)
    elif name in HOSTS or name in {n.casefold() for n in sys.stdlib_module_names}:
        yield Violation(
            "taken_top_level", policy.module, expected, "a name of Python or of the host", hint
        )
    elif owners:
        yield Violation(
            "taken_top_level",
            policy.module,
            expected,
            f"also brought by {', '.join(sorted(owners))}",
            hint,
        )


def check_entry_points(text: str) -> Iterator[Violation]:
    """Check that a package declares data only: any other entry point names code to run.

    Args:
        text: The text of its entry_points.txt.
    """
    data = {f"redhost.{kind}s" for kind in MANIFESTS}
    others = {"entry_points": [f"[{group}]" for group in sorted(set(groups(text)) - data)]}
    hint = "An expert is data: ship code as a plugin of its own."
    yield from _fault("entry_points", others, "entry points for data only", hint)
    if (offers := sum(1 for group in data for _ in entries(text, group))) > MAX_OFFERS:
        expected, hint = f"at most {MAX_OFFERS} packages", "Ask for a smaller build."
        yield Violation("entry_points", "entry_points.txt", expected, f"{offers:,}", hint)


def check_code(policy: WheelPolicy, files: Mapping[str, bytes]) -> Iterator[Violation]:
    """Check that a wheel of data has no code: one module with a docstring and constants.

    Args:
        policy: The package's policy.
        files: The wheel's files by name.
    """
    module = f"{policy.module}/__init__.py"
    code = [n for n in files if n.casefold().endswith(CODE_SUFFIXES) and n != module]
    if not _is_data(files.get(module, b"")):
        code.append(module)
    hint = "An expert is data: ship code as a plugin of its own."
    yield from _fault("data_code", {"data_code": sorted(code)}, "a docstring and no code", hint)


def _is_data(source: bytes) -> bool:
    """Return whether a module has constants and docstrings only."""
    if len(source) > MAX_MODULE:
        return False
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return all(
        isinstance(node, ast.Expr | ast.Assign)
        and isinstance(node.value, ast.Constant)
        # Plain names only: `f().x = 1` and `{}[f()] = 1` call f.
        and all(isinstance(t, ast.Name) for t in getattr(node, "targets", ()))
        for node in body
    )


def check_headers(policy: WheelPolicy, metadata: str) -> Iterator[Violation]:
    """Check that METADATA has each identifying header once: readers may prefer different ones."""
    counts = Counter(key for key, _ in header_lines(metadata))
    twice = [key for key in ("metadata-version", "name", "version") if counts[key] > 1]
    yield from _fault("metadata_row", {"metadata_row": twice}, "each header once", policy.hint())
    name = headers(metadata)["name"]
    if policy.installed and canonical(name) != canonical(policy.dist):
        expected = f"{policy.dist}, as its folder is called"
        yield Violation("metadata_row", "name", expected, name or "none", policy.hint())


def check_record(
    policy: WheelPolicy,
    rows: Iterable[RecordRow],
    *,
    present: Collection[str],
    read: Callable[[str], Checked[bytes]],
) -> Iterator[Violation]:
    """Compare RECORD with the files: complete, matching, and no file outside.

    Args:
        policy: The package's policy.
        rows: The rows of its RECORD.
        present: The names of all present files.
        read: Reads one of those; never called for a row that leads elsewhere.
    """
    rows, present = tuple(rows), frozenset(present)
    owned = {row.path: row for row in rows if is_plain(row.path) and policy.owns(row.path)}
    strict = {path: row for path, row in owned.items() if not policy.is_loose(path)}
    hashed = {path: row for path, row in strict.items() if path in present and row.sha256}
    names = {
        "record_outside": [row.path for row in rows if not is_plain(row.path)],
        "record_row": [p for p, count in Counter(row.path for row in rows).items() if count > 1],
        "record_missing": [path for path in strict if path not in present],
        "record_unlisted": [
            p for p in present if p not in owned and policy.owns(p) and not policy.is_loose(p)
        ],
        "record_unhashed": [p for p, r in strict.items() if p in present and not r.sha256],
    }
    names = {code: sorted(paths) for code, paths in names.items()}
    for code, expected in (
        ("record_outside", "rows inside the site folder"),
        ("record_row", "every file once in RECORD"),
        ("record_missing", "every file that RECORD lists"),
        ("record_unlisted", "only files that RECORD lists"),
        ("record_unhashed", "a sha256 in RECORD"),
    ):
        yield from _fault(code, names, expected, policy.hint(code))
    for path, row in sorted(hashed.items()):
        one = read(path)
        yield from one.violations
        if one.value is None:
            continue
        actual, length = sha256_hex(one.value), len(one.value)
        if actual != row.sha256 or row.size not in {None, length}:
            size = "" if row.size is None else f", {row.size:,} bytes"
            expected = f"{short(row.sha256)}{size}, as RECORD says"
            content = f"{short(actual)}, {length:,} bytes"
            yield Violation("record_digest", path, expected, content, policy.hint())


def _misplaced(policy: WheelPolicy, name: str) -> str:
    """Return the code of the violation for a file's location; empty if there is none."""
    top, _, below = name.rstrip("/").partition("/")
    last = name.rstrip("/").rpartition("/")[2]
    if last.endswith(STARTUP_SUFFIXES) or top.partition(".")[0] in STARTUP_MODULES:
        return "startup_code"
    if top.endswith(".data"):
        return "data_scripts"
    if not policy.owns(name):
        return "foreign_top_level"
    installers = not policy.installed and top == policy.info and below in INSTALLERS
    return "installer_file" if installers else ""


def _fault(
    code: str, names: Mapping[str, list[str]], expected: str, hint: str
) -> Iterator[Violation]:
    """Yield a violation that names the first file at fault and the number of others."""
    if where := names.get(code):
        more = f" and {len(where) - 1} more" if len(where) > 1 else ""
        yield Violation(code, where[0][:120], expected, f"{where[0][:120]!r}{more}", hint)


# -- owners of top-level names --------------------------------------------------------------------

MAX_OWNER, MAX_OWNERS = 4 * 2**20, 32 * 2**20
"""Bytes of a RECORD that are searched for names, and of all RECORDs in a site folder."""

_TOP = re.compile(r'\n"?([^/,"\r\n]{1,255}+)[/,]')


class NameOwners:
    """The top-level names of site folders, by file or by entry point; each folder is read once."""

    def __init__(self) -> None:
        self._known: dict[str, Mapping[str, set[str]]] = {}

    def others(self, site: Path, module: str, *, dist: str) -> frozenset[str]:
        """Return the distributions, other than this one, that claim a top-level name.

        Args:
            site: The folder that holds the dist-info folders; all of ``sys.path`` is searched too.
            module: The name; case is ignored, as it is on some systems.
            dist: The distribution that may have it.
        """
        places, name = dict.fromkeys((str(site), *sys.path)), module.casefold()
        owners = (owner for place in places for owner in self._of(place or ".").get(name, ()))
        return frozenset(owners) - {canonical(dist)}

    def _of(self, site: str) -> Mapping[str, set[str]]:
        """Return the distributions that claim each top-level name."""
        if site not in self._known:
            folders = {
                name: tuple(_file_stamp(f"{site}/{name}/", claim) for claim in _CLAIMS)
                for name in _metadata_folders(site)
            }
            # The smallest RECORD, which is the first of the claims, first: what one package brings
            # to be read is at nobody else's expense.
            ordered = sorted(folders.items(), key=lambda folder: folder[1][0][2])
            totals = accumulate(min(stamps[0][2], MAX_OWNER) for _, stamps in ordered)
            owners = self._known[site] = defaultdict[str, set[str]](set)
            for total, (name, stamps) in zip(totals, ordered, strict=True):
                dist = canonical(name.rpartition(".")[0].partition("-")[0])
                for top in _top_names(f"{site}/{name}", stamps) if total <= MAX_OWNERS else ():
                    owners[top].add(dist)
        return self._known[site]


def _metadata_folders(site: str) -> list[str]:
    """Return the names of a site's dist-info and egg-info folders; none where it is no folder."""
    try:
        names = os.listdir(site)  # noqa: PTH208  (of each folder on the path, before each command)
    except OSError:
        return []
    # pip moves what it removes to a name with a tilde, and may be stopped before the end.
    return [n for n in names if n.endswith((".dist-info", ".egg-info")) and not n.startswith("~")]


_POINTS = "entry_points.txt"
_CLAIMS = {
    "RECORD": MAX_OWNER,
    _POINTS: MAX_POINTS,
    "top_level.txt": MAX_METADATA,
    "direct_url.json": MAX_METADATA,
}
"""Files of a dist-info that list the names it takes, and the most bytes that are read of each."""

FileStamp = tuple[str, int, int, int, int]
"""Name, inode, size, mtime and ctime (ns) of a file; ctime reveals an mtime that was reset."""

UNSETTLED = 100_000_000
"""ns: a file this young could change again within a tick of the clock, with the same stamp."""


def file_stamps(folder: Path, names: Iterable[str]) -> tuple[FileStamp, ...]:
    """Return the stamp of each file of a folder (itself: ""); a missing file has zeros."""
    prefix = f"{folder}/"
    return tuple(_file_stamp(prefix, name) for name in sorted(names))


def _file_stamp(prefix: str, name: str) -> FileStamp:
    try:
        status = os.stat(prefix + name)  # noqa: PTH116  (a thousand calls: Path would be slower)
    except OSError:
        return (one_line(name), 0, 0, 0, 0)  # a name need not be UTF-8, and the cache is
    return (one_line(name), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _top_names(info: str, stamps: tuple[FileStamp, ...]) -> frozenset[str]:
    """Return the top-level names of a distribution's files; unchanged ones are not read again.

    Of an editable installation only those of its data entry points are known.
    """
    settled = max(stamp[-1] for stamp in stamps) <= time.time_ns() - UNSETTLED
    return (_names_in if settled else _names_in.__wrapped__)(info, stamps)


@lru_cache(maxsize=4096)
def _names_in(info: str, stamps: tuple[FileStamp, ...]) -> frozenset[str]:
    record, listed, origin = (
        beginning_of(f"{info}/{name}", _CLAIMS[name]) if size else ""
        for name, _, size, *_ in stamps
        if name != _POINTS
    )
    modules = _TOP.findall(f"\n{record}")  # a line begins where one ends: three times as fast as ^
    tops = (top.removesuffix(".py") for top in set(modules)) if record else listed.split()
    # Without its files, a name is only a claim: any package could have those of others refused.
    points = beginning_of(f"{info}/{_POINTS}") if origin and _is_elsewhere(origin, info) else ""
    data = (v for kind in MANIFESTS for _, v in entries(points, f"redhost.{kind}s"))
    return frozenset(name.casefold() for name in chain(tops, data))


def _is_elsewhere(origin: str, info: str) -> bool:
    """Return whether a direct_url.json (PEP 610) names an editable project outside the site."""
    try:
        url = json.loads(origin)
        path = unquote(urlsplit(url["url"]).path)
        project = Path(path.lstrip("/") if os.name == "nt" else path)  # /C:/… there
        if url["dir_info"]["editable"] is not True or not project.is_dir():
            return False
        return not project.resolve().is_relative_to(Path(info).parent.resolve())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        return False


# -- RECORD ---------------------------------------------------------------------------------------

_ODD = re.compile(r"[\\\x00-\x1f\x7f:]")
_BASE64 = re.compile(r"[A-Za-z0-9_-]{43}=?")
_COLUMNS = 3

MAX_ROWS = 4 * MAX_NAMES
"""Most rows of a RECORD: its files, and the byte code that installers and Python add."""


class RecordRow(Struct, frozen=True):
    """One file of a RECORD.

    Attributes:
        path: The path as written there, relative to the site folder.
        sha256: In hexadecimal; empty if the row has none.
        size: In bytes; None if the row has none.
    """

    path: str
    sha256: str
    size: int | None


def is_plain(path: str) -> bool:
    """Return whether a path stays below its base folder, on every system."""
    return not _ODD.search(path) and not {"", ".", ".."} & set(path.split("/"))


@checked
def parse_record(data: bytes) -> tuple[RecordRow, ...]:
    """Read a RECORD, without reading the files it lists."""
    try:
        lines = csv.reader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)
        rows = tuple(_record_row(fields) for fields in islice(lines, MAX_ROWS + 1) if fields)
    except (ValueError, csv.Error) as e:
        expected, hint = "rows of a path, a hash and a size", "Reinstall the package."
        raise Refused(Violation("record_row", "RECORD", expected, str(e)[:120], hint)) from e
    if len(rows) > MAX_ROWS:
        expected, hint = f"at most {MAX_ROWS:,} rows", "Ask for a smaller build."
        raise Refused(Violation("name_limit", "RECORD", expected, "more", hint))
    return rows


def _record_row(fields: list[str]) -> RecordRow:
    if len(fields) != _COLUMNS:
        raise ValueError(f"{len(fields)} columns: {','.join(fields)[:80]!r}")
    path, digest, size = fields
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256":
        value = ""  # no hash, or a weaker one
    elif not _BASE64.fullmatch(value):
        raise ValueError(f"no hash: {digest[:80]!r}")
    sha256 = base64.urlsafe_b64decode(value.rstrip("=") + "=").hex() if value else ""
    return RecordRow(path, sha256, int(size) if size else None)
