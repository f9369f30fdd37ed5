"""Import a module from the files that were checked, and from no others.

Each parent package is found, compared and only then imported, so nothing of others ever runs.
Digested source is compiled from the very bytes that were digested; byte code beside it is not read.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import ModuleType

from ..errors import IntegrityError, PluginError, summary
from ..package.safetensors_check import sha256_hex


def import_among(module: str, files: Collection[str], *, dist: str) -> ModuleType:
    """Import a module that an entry point names, if it and its parents are files of its own.

    Args:
        module: The module.
        files: The real paths of the distribution's files.
        dist: The distribution, for the message.

    Raises:
        IntegrityError: If Python would take it, or a parent of it, from elsewhere.
    """
    imported, name = ModuleType(""), ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = find_spec(name, getattr(imported, "__path__", ()) if imported.__name__ else None)
        namespace = spec is not None and spec.origin is None and name != module  # runs nothing
        if not namespace and (spec is None or place_of(spec) not in files):
            raise IntegrityError(
                f"{dist} was not imported: its entry point names {module!r}",
                expected=f"a file of {dist}",
                found=str(spec.origin or "a folder without code") if spec else "no such module",
                hint=f"Uninstall it with 'pip uninstall {dist}' and tell its author.",
            )
        imported = importlib.import_module(name)
    return imported


def import_digested(module: str, digests: Mapping[str, str], *, dist: str) -> ModuleType:
    """Import a module, and from now on all others of these files, from digested bytes.

    Args:
        module: The module.
        digests: The sha256 of the distribution's files by real path.
        dist: The distribution, for messages.

    Raises:
        IntegrityError: As `import_among`, or if this process imported other bytes before.
    """
    # Not the loaders of all modules: to look at one that waits for its first use would import it.
    for name, loader in sorted(_finder().loaders.items()):
        if name in sys.modules and loader.differs(digests):
            raise IntegrityError(
                f"{dist} changed after this process had imported {name!r}",
                hint="Start the process again.",
            )
    _finder().add(digests)
    return import_among(module, digests, dist=dist)


def find_spec(name: str, places: Sequence[str] | None = None) -> ModuleSpec | None:
    """Return the spec of a loaded module, or what Python would load; parents are not imported.

    Args:
        name: The module's full name.
        places: The folders of its parent package; None for a top-level module.
    """
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None)
    return _find(name, places)


def place_of(spec: ModuleSpec) -> str:
    """Return the real path of a module's file."""
    return os.path.realpath(spec.origin or "")


@contextmanager
def stoppable(doing: str) -> Iterator[None]:
    """Run code of others: it cannot end the process, and Ctrl-C names it.

    Args:
        doing: What runs, e.g. ``the import of plugin 'x'``.

    Raises:
        PluginError: If it raises anything but an `Exception`, such as `SystemExit`.
        KeyboardInterrupt: If it is interrupted, with ``doing`` as its argument.
    """
    try:
        yield
    except KeyboardInterrupt as e:
        raise KeyboardInterrupt(doing) from e
    except Exception:
        raise
    except BaseException as e:
        raise PluginError(doing, expected="a result or an error", found=summary(e)) from e


class _DigestedLoader(SourceFileLoader):
    """Compiles a source file, if it has the digest that was agreed to; uses no byte code."""

    def __init__(self, name: str, path: str, sha256: str) -> None:
        super().__init__(name, path)
        self.sha256 = sha256

    def path_stats(self, path: str) -> Mapping[str, float]:
        """Refuse what byte code is compared with, so that none is read or written."""
        raise OSError(path)

    def get_data(self, path: str) -> bytes:
        """Return a file's bytes; the source's only if they are those that were digested."""
        data = super().get_data(path)
        if path == self.path and sha256_hex(data) != self.sha256:
            raise ImportError(f"{path} changed after it was digested", name=self.name, path=path)
        return data

    def differs(self, digests: Mapping[str, str]) -> bool:
        """Return whether its file has another digest among these."""
        return digests.get(os.path.realpath(self.path), self.sha256) != self.sha256


class _DigestedFinder:
    """Finds what the other finders find, and gives digested source its loader."""

    def __init__(self) -> None:
        self.loaders: dict[str, _DigestedLoader] = {}
        self._digests: dict[str, str] = {}
        self._names: set[str] = set()

    def add(self, digests: Mapping[str, str]) -> None:
        """Serve the source files among these from now on."""
        self._digests.update(digests)
        for path in digests:
            folder, _, file = path.replace(os.sep, "/").rpartition("/")
            self._names |= {file.partition(".")[0], folder.rpartition("/")[2]}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of digested source; None for all others."""
        if name.rpartition(".")[2] not in self._names:
            return None  # most modules need not be looked for twice
        spec = _find(name, path, target)
        digest = self._digests.get(place_of(spec)) if spec is not None else None
        if spec is None or digest is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = self.loaders[name] = _DigestedLoader(name, spec.loader.path, digest)
        return spec


def _finder() -> _DigestedFinder:
    """Return the finder of ours on Python's list; the first call puts it there."""
    ours = next((f for f in sys.meta_path if isinstance(f, _DigestedFinder)), None)
    if ours is None:
        ours = _DigestedFinder()
        sys.meta_path.insert(0, ours)
    return ours


def _find(
    name: str, places: Sequence[str] | None, target: ModuleType | None = None
) -> ModuleSpec | None:
    """Return what the finders on Python's list find, without the one that is ours."""
    for finder in sys.meta_path:
        if not isinstance(finder, _DigestedFinder) and hasattr(finder, "find_spec"):
            spec = finder.find_spec(name, places, target)
            if spec is not None:
                return spec
    return None
