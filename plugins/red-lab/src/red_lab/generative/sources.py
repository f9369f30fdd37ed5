"""Python's own sources and torch's C++ headers as documents, without their licence headers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from red_lab.generative.documents import Document
from red_lab.generative.source_package import SourcePackage

__all__ = ["cpp_documents", "python_documents", "without_licence"]

NOT_PYTHON = frozenset(
    {"encodings", "ensurepip", "idle_test", "lib-dynload", "lib2to3", "pydoc_data"}
    | {"site-packages", "dist-packages", "test", "tests", "__phello__"}
)
"""Folders of tests, of generated tables, and of what is not Python's own."""

GENERATED = re.compile(r"_sysconfigdata.*|token|keyword|symbol|stringprep|entities|this")
"""Files (stems) of the standard library that are tables or made by a script."""

HEADERS = {("ATen",), ("c10",), ("caffe2",), ("torch",)}
"""PyTorch's own folders; the others of `torch/include` are other projects'."""

NOT_HEADERS = frozenset({"generated", "kernels", "ops", "vec"})
"""Folders of a script's files, and of near copies: one a native function, one a processor."""

LONGEST = 100_000
"""Characters; longer headers are a script's, though not all say so."""

LEGAL = re.compile(r"copyright|licen[sc]e|all rights reserved|warrant", re.IGNORECASE)
HEAD = re.compile(r"\A(?:\s*(?:#(?![a-z])[^\n]*|//[^\n]*|/\*.*?\*/))+\s*", re.DOTALL)
"""The comments that a file begins with."""

GUARDED = re.compile(
    r"\A#if [^\n]*TORCH_STABLE_ONLY[^\n]*\n(.*)\n#else\n#error[^\n]*\n#endif[^\n]*\s*\Z", re.DOTALL
)
"""The condition that torch's build puts around every header."""


def python_documents(package: SourcePackage) -> Iterator[Document]:
    """Yield the modules of the standard library."""
    for name, path in package.files("", "*.py"):
        folders = set(Path(name).parts[:-1])
        if folders & NOT_PYTHON or GENERATED.fullmatch(path.stem):
            continue
        text = without_licence(_read(path))
        if text.strip():
            yield Document("python", name, text)


def cpp_documents(package: SourcePackage) -> Iterator[Document]:
    """Yield the headers that people wrote."""
    for name, path in package.files("torch/include", "*.h"):
        folders = Path(name).parts[2:-1]
        if folders[:1] not in HEADERS or NOT_HEADERS & set(folders):
            continue
        text = _read(path)
        if "@generated" not in text and len(text) <= LONGEST:
            yield Document("cpp", name, without_licence(_unguarded(text)))


def without_licence(text: str) -> str:
    """Return a source without the comments at its head, if they speak of a licence."""
    head = HEAD.match(text)
    return text[head.end() :] if head and LEGAL.search(head[0]) else text


def _unguarded(text: str) -> str:
    guarded = GUARDED.match(text)
    return guarded[1].lstrip() + "\n" if guarded else text


def _read(path: Path) -> str:
    return path.read_text("utf-8", errors="replace")
