"""What a data package may bring into an environment: the rules for a wheel and for what pip left.

An expert or backbone owns one top-level folder and its own ``.dist-info``. Everything else could
run, or could overwrite what others brought.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from .discover import MANIFESTS, canonical
from .errors import short
from .integrity import sha256_hex
from .record import Row, is_plain
from .violations import Violation

__all__ = ["Scope", "check_entry_points", "check_names", "check_record", "check_top_level"]

STARTUP_SUFFIXES = (".pth", ".start", ".egg-link")
STARTUP_MODULES = frozenset({"sitecustomize", "usercustomize"})

HOSTS = frozenset({"redhost", "torch", "pip", "setuptools", "pkg_resources", "_distutils_hack"})
"""Never an expert's, whether or not they are installed here."""

INSTALLERS = frozenset({"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"})
"""What installers write into a dist-info; a wheel that brings one speaks for them."""

SIGNATURES = frozenset({"RECORD", "RECORD.jws", "RECORD.p7s"})
"""Files of a dist-info that cannot stand in RECORD with a hash."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Whose files are judged, and which names are its own.

    Attributes:
        dist: The distribution.
        module: Its one top-level package.
        info: The name of its dist-info folder.
        installed: Whether it is in an environment already; else it is a wheel.
    """

    dist: str
    module: str
    info: str
    installed: bool = False

    def owns(self, name: str) -> bool:
        """Tell whether a name lies in the package or in its dist-info."""
        return name.partition("/")[0] in {self.module, self.info}

    def is_loose(self, name: str) -> bool:
        """Tell whether RECORD need not list and hash a file."""
        parts = name.split("/")
        if self.installed and "__pycache__" in parts:
            return name.endswith(".pyc")  # byte code depends on the interpreter: it has no hash
        allowed = SIGNATURES | INSTALLERS if self.installed else SIGNATURES
        return parts[0] == self.info and parts[-1] in allowed

    @property
    def hint(self) -> str:
        """What to do about a package that fails."""
        if not self.installed:
            return "Do not install it; get the wheel again from its author."
        return f"Reinstall it with 'pip install --force-reinstall --no-deps {self.dist}'."


def check_names(scope: Scope, names: Iterable[str]) -> Iterator[Violation]:
    """Check that a package brings nothing but its own files.

    Args:
        scope: Whose files.
        names: Of files and folders, relative to the site folder or to the wheel's root.
    """
    found: dict[str, list[str]] = {}
    for name in sorted(set(names), key=lambda name: (name.endswith(".pyc"), name)):
        code = _misplaced(scope, name)
        if code is not None:
            found.setdefault(code, []).append(name)
    told = {
        "startup_code": ("no file that Python runs when it starts", _startup_hint(scope)),
        "data_scripts": ("no .data folder: it goes to other places", scope.hint),
        "foreign_top_level": (f"nothing beside {scope.module!r}", _foreign_hint(scope)),
        "installer_file": ("what installers write left to them", scope.hint),
    }
    for code, (expected, hint) in told.items():
        if code in found:
            yield _first(code, found[code], expected=expected, hint=hint)


def check_top_level(scope: Scope, owners: Collection[str]) -> Iterator[Violation]:
    """Check that a package's names are nobody else's.

    Args:
        scope: Whose name.
        owners: Other distributions of the environment that bring this name.
    """
    name = scope.module.casefold()
    expected = "a top-level package of its own"
    if canonical(scope.dist) in {canonical(host) for host in HOSTS}:
        found = "a name of the host: installing it would replace that"
        yield Violation("taken_name", scope.dist, "a name of its own", found, _foreign_hint(scope))
    if name in HOSTS or name in {n.casefold() for n in sys.stdlib_module_names}:
        found = "a name of Python or of the host"
        yield Violation("taken_top_level", scope.module, expected, found, _foreign_hint(scope))
    elif owners:
        found = f"also brought by {', '.join(sorted(owners))}"
        yield Violation("taken_top_level", scope.module, expected, found, _foreign_hint(scope))


def check_entry_points(groups: Collection[str]) -> Iterator[Violation]:
    """Check that a package declares data only: any other entry point names code to run."""
    data = {f"redhost.{kind}s" for kind in MANIFESTS}
    others = sorted(set(groups) - data)
    if others:
        yield _first(
            "entry_points",
            [f"[{group}]" for group in others],
            expected="entry points for data only",
            hint="An expert is data: ship code as a plugin of its own.",
        )


def check_record(
    scope: Scope,
    rows: Iterable[Row],
    *,
    present: Collection[str],
    read: Callable[[str], bytes | Violation],
) -> Iterator[Violation]:
    """Compare RECORD with the files: complete, matching, and nothing outside.

    Args:
        scope: Whose RECORD.
        rows: Its rows.
        present: Every file there is, by name.
        read: Reads one of those; never called for a row that leads elsewhere.
    """
    rows = tuple(rows)
    outside = [row.path for row in rows if not is_plain(row.path)]
    listed = {row.path: row for row in rows if is_plain(row.path) and scope.owns(row.path)}
    twice = [path for path, count in Counter(row.path for row in rows).items() if count > 1]
    missing = [p for p in listed if p not in present and not scope.is_loose(p)]
    extra = [p for p in present if p not in listed and scope.owns(p) and not scope.is_loose(p)]
    kept = {p: r for p, r in listed.items() if p in present and not scope.is_loose(p)}
    naked = [path for path, row in kept.items() if not row.sha256]
    faults = (
        ("record_outside", outside, "rows inside the site folder", _outside_hint(scope)),
        ("record_row", twice, "every file once in RECORD", scope.hint),
        ("record_missing", missing, "every file that RECORD lists", scope.hint),
        ("record_unlisted", extra, "only files that RECORD lists", scope.hint),
        ("record_unhashed", naked, "a sha256 in RECORD", scope.hint),
    )
    for code, where, expected, hint in faults:
        if where:
            yield _first(code, sorted(where), expected=expected, hint=hint)
    yield from _compare(scope, {p: r for p, r in kept.items() if r.sha256}, read)


def _compare(
    scope: Scope, rows: Mapping[str, Row], read: Callable[[str], bytes | Violation]
) -> Iterator[Violation]:
    for path, row in sorted(rows.items()):
        data = read(path)
        if isinstance(data, Violation):
            yield data
            continue
        found = sha256_hex(data)
        if found != row.sha256 or row.size not in {None, len(data)}:
            size = "" if row.size is None else f", {row.size:,} bytes"
            expected = f"{short(row.sha256)}{size}, as RECORD says"
            told = f"{short(found)}, {len(data):,} bytes"
            yield Violation("record_digest", path, expected, told, scope.hint)


def _misplaced(scope: Scope, name: str) -> str | None:
    """Return the code of what is wrong with a file being where it is, if anything."""
    top, _, rest = name.rstrip("/").partition("/")
    last = name.rstrip("/").rpartition("/")[2]
    if last.endswith(STARTUP_SUFFIXES) or top.partition(".")[0] in STARTUP_MODULES:
        return "startup_code"
    if top.endswith(".data"):
        return "data_scripts"
    if not scope.owns(name):
        return "foreign_top_level"
    spoken = not scope.installed and top == scope.info and rest in INSTALLERS
    return "installer_file" if spoken else None


def _first(code: str, where: list[str], *, expected: str, hint: str) -> Violation:
    """Name the first of many, and how many there are."""
    more = f" and {len(where) - 1} more" if len(where) > 1 else ""
    return Violation(code, where[0][:120], expected, f"{where[0][:120]!r}{more}", hint)


def _startup_hint(scope: Scope) -> str:
    if not scope.installed:
        return "Do not install it: this code would run whenever Python starts."
    return (
        "Its code has run already, whenever Python started since it was installed: remove it with "
        f"'pip uninstall {scope.dist}', and look at what it did."
    )


def _foreign_hint(scope: Scope) -> str:
    if not scope.installed:
        return "Do not install it: it would overwrite what others brought."
    return f"Uninstall {scope.dist}, then reinstall what it shares files with."


def _outside_hint(scope: Scope) -> str:
    if not scope.installed:
        return scope.hint
    return f"'pip uninstall {scope.dist}' would remove those files too: take it out by hand."
