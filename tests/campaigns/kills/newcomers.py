"""Install bad packages: scaled experts, broken folders, a second backbone, changed byte code."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import safetensors.numpy
from safetensors.torch import load, save

import redhost
from kills.home import Watched
from kills.run import outcome, require
from redhost.registry.environment import trust
from redhost.testing import Environment
from redhost.testing.fault_injection import Kill

__all__ = [
    "BYTE_CODE",
    "WRECKS",
    "changed_plugins",
    "installed",
    "loud_newcomers",
    "second_backbone",
    "wrecks",
]

LOUD = (2**11, 2**13, 2**15)
"""Factors by which outputs are scaled; powers of two change only the exponent."""

DEEP = 1_100
"""Number of nested folders, deeper than Python's recursion limit."""

Damage = Callable[[Path], object]


def loud_newcomers(home: Watched, folder: Path) -> Iterator[Kill]:
    """Attach a copy of an expert with outputs scaled by thousands; it must be refused.

    Args:
        home: The home.
        folder: Folder for the copies.
    """
    for factor in LOUD:
        package = _write_loud(folder / f"red_expert_loud{factor}", factor)
        yield Kill(f"{factor:,} times as loud", _let_in(home, package) or home.check())


def _let_in(home: Watched, package: Path) -> str | None:
    """Return the problem if an expert that dominates all others is not refused for it."""
    try:
        with home.open() as host:
            host.attach(package, accept=True)
    except redhost.errors.ContractError as e:
        return None if e.found.startswith("not_computable: ") else repr(e)
    except Exception as e:  # any exception is one that a user would get
        return repr(e)
    return "it was let in"


def _write_loud(folder: Path, factor: int) -> Path:
    """Write range1's package under another id, with V and the canary's Δ times a factor.

    The canary's tolerance grows with its Δ, as far as a package's may: rounding does so too, and
    differs from one processor to the next.
    """
    files = _files("red_expert_range1")
    manifest = json.loads(files["expert.json"])
    manifest |= {"id": "loud", "norm_bound": None, "off_domain": None}
    for part, name in (("weights", "V"), ("canary", "delta")):
        file = manifest[part]["file"]
        tensors = load(files[file])
        tensors[name] = tensors[name] * factor
        files[file] = save(tensors)
        manifest[part]["sha256"] = hashlib.sha256(files[file]).hexdigest()
    manifest["canary"]["tolerance"] *= max(1.0, float(abs(tensors["delta"]).max()))
    files["expert.json"] = json.dumps(manifest).encode()
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def wrecks(home: Watched, folder: Path) -> Iterator[Kill]:
    """Install a broken copy of an expert; the others must be composed as if it were absent.

    Args:
        home: The home.
        folder: An empty folder for the copies.
    """
    right = outcome(home.publish())
    home.check()
    for number, (name, damage) in enumerate(WRECKS.items()):
        with installed(folder / f"{number}", "red-expert-wreck", "red_expert_range1") as package:
            damage(package)
            yield Kill(name, _differs(home, right) or home.check())
            _flatten(package)


def second_backbone(home: Watched, folder: Path) -> Iterator[Kill]:
    """Install another backbone with the same id; the host must not guess between them.

    Args:
        home: The home.
        folder: Folder for the copy.
    """
    with installed(folder, "red-backbone-second", "red_backbone_tiny"):
        try:
            problem: str | None = f"composed on {home.publish().backbone}"
        except redhost.errors.ContractError as e:
            problem = None if "red-backbone-second" in str(e) else repr(e)
        yield Kill("a second backbone", problem or home.check())


def changed_plugins(folder: Path) -> Iterator[Kill]:
    """Install byte code that Python runs without comparing its source; it must end trust.

    Args:
        folder: An empty folder.
    """
    config, evil = folder / "config", folder / "evil.py"
    for number, (name, (file, mode)) in enumerate(BYTE_CODE.items()):
        site = Environment(folder / f"{number}")
        site.folder.mkdir(parents=True)
        evil.write_text("raise SystemExit('evil')\n", "utf-8")
        entries = {"redhost.plugins": "odd = odd_plugin"}
        package = site.install_code("odd-plugin", {"__init__.py": "", "more.py": ""}, entries)
        with _on_path(site.folder):
            trust.trust("odd-plugin", folder=config)
            place = package / file.format(tag=sys.implementation.cache_tag)
            py_compile.compile(str(evil), cfile=str(place), invalidation_mode=mode)
            found = trust.is_trusted("odd-plugin", folder=config)
        compared = mode is py_compile.PycInvalidationMode.CHECKED_HASH
        yield Kill(name, None if found == compared else f"trusted: {found}")


UNCHECKED = py_compile.PycInvalidationMode.UNCHECKED_HASH
BYTE_CODE: Mapping[str, tuple[str, py_compile.PycInvalidationMode]] = {
    "unchecked": ("__pycache__/more.{tag}.pyc", UNCHECKED),
    "without its source": ("__pycache__/gone.{tag}.pyc", UNCHECKED),
    "beside its source": ("more.pyc", UNCHECKED),
    "compared with its source": (
        "__pycache__/more.{tag}.pyc",
        py_compile.PycInvalidationMode.CHECKED_HASH,
    ),
}
"""Name → its place, and whether Python compares it with its source; the last is harmless."""


def _pipe(name: str) -> Damage:
    def damage(package: Path) -> None:
        (package / name).unlink()
        os.mkfifo(package / name)

    return damage


def _link(name: str, target: str) -> Damage:
    def damage(package: Path) -> None:
        (package / name).unlink()
        (package / name).symlink_to(target)

    return damage


def _nest(package: Path) -> None:
    for _ in range(DEEP):
        package /= "d"
        package.mkdir()


def _empty_text(package: Path) -> None:
    data = (package / "card.jsonl").read_bytes()
    rows = json.loads((package / "expert.json").read_bytes())["card"]["fit"]
    empty = b'{"text":"","label":"2","part":"fit"}\n'
    _card(package, "card.jsonl", empty + data, kind="texts", fit=rows + 1)


def _huge_vectors(package: Path) -> None:
    rows, ones = np.full((8, 128), 1e37, "f4"), np.ones((8, 1), "f4")
    labels = np.arange(8) % 2
    gate = {"gate_z": rows, "gate_label": labels, "gate_scale": ones, "gate_shift": ones}
    data = safetensors.numpy.save({"fit_z": rows, "fit_label": labels, **gate})
    _card(package, "card.safetensors", data, kind="vectors", fit=8, gate=8)


def _card(package: Path, name: str, data: bytes, **changes: object) -> None:
    """Replace a package's card and update its manifest and RECORD."""
    manifest = json.loads((package / "expert.json").read_bytes())
    changes |= {"file": name, "sha256": hashlib.sha256(data).hexdigest()}
    manifest["card"] |= changes
    (package / "card.jsonl").unlink()
    (package / name).write_bytes(data)
    (package / "expert.json").write_text(json.dumps(manifest), "utf-8")
    Environment(package.parent).seal("red-expert-wreck")


INFO = "../red_expert_wreck-0.1.0.dist-info"
WRECKS: Mapping[str, Damage] = {
    "1,100 folders deep": _nest,
    "a pipe in place of the manifest": _pipe("expert.json"),
    "a pipe in place of the weights": _pipe("expert.safetensors"),
    "a pipe in place of METADATA": _pipe(f"{INFO}/METADATA"),
    "a pipe in place of RECORD": _pipe(f"{INFO}/RECORD"),
    "weights without an end": _link("expert.safetensors", "/dev/zero"),
    "a card that is a loop": _link("card.jsonl", "card.jsonl"),
    "a card of 1e37": _huge_vectors,
    "a card with an empty text": _empty_text,
}
"""Name → a change to an installed package."""


def _differs(home: Watched, right: object) -> str | None:
    """Return the problem if a recompose differs from one without the broken package."""
    try:
        require(outcome(home.publish()), right)
    except Exception as e:  # an error of redhost is as bad: no command needs the broken package
        return repr(e)
    return None


@contextmanager
def installed(folder: Path, dist: str, origin: str) -> Iterator[Path]:
    """Install a copy of a shipped package under another name; yield its folder."""
    site, kind = Environment(folder), dist.split("-")[1]
    files, package = _files(origin), site.package(dist)
    package.mkdir(parents=True)
    for name, data in {**files, "__init__.py": b""}.items():
        (package / name).write_bytes(data)
    if kind == "expert":
        manifest = {**json.loads(files["expert.json"]), "id": "wreck", "off_domain": None}
        (package / "expert.json").write_text(json.dumps(manifest), "utf-8")
    entries = {f"redhost.{kind}s": f"{'wreck' if kind == 'expert' else 'tiny'} = {package.name}"}
    site.write_info(dist, "0.1.0", package.name, entries)
    with _on_path(folder):
        yield package


@contextmanager
def _on_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _files(module: str) -> dict[str, bytes]:
    """Return the data of a shipped package, by name."""
    spec = importlib.util.find_spec(module)
    folder = Path(str(spec and spec.origin)).parent
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".py" and p.is_file()}


def _flatten(package: Path) -> None:
    """Remove nested folders without recursion."""
    outer, inner = package / "d", package / "d/d"
    while inner.exists():
        inner.rename(package / "next")
        outer.rmdir()
        (package / "next").rename(outer)
