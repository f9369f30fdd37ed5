"""Message catalogues of Django and Wagtail: the translations, one document per catalogue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import redhost
from red_lab.generative.documents import Document
from red_lab.generative.source_package import SourcePackage

__all__ = ["catalogues", "messages"]


def catalogues(
    packages: Sequence[SourcePackage], *, domain: str, languages: Sequence[str]
) -> Iterator[Document]:
    """Yield the catalogues of some languages; a message is kept only in the first one that has it.

    Args:
        packages: Packages whose folder has the distribution's name.
        domain: The documents' domain.
        languages: Names of folders, such as ``fr``.
    """
    seen: set[str] = set()
    for package in packages:
        for name, path in package.files(package.name, "*.po"):
            if not set(languages) & set(Path(name).parts):
                continue
            fresh = [m for m in dict.fromkeys(messages(path)) if m not in seen]
            seen.update(fresh)
            if fresh:
                yield Document(domain, name, "\n".join(fresh) + "\n")


def messages(path: Path) -> Iterator[str]:
    """Yield the text of a catalogue's messages, without headers, fuzzy, obsolete or empty ones.

    Raises:
        redhost.MissingError: If polib is not installed.
    """
    try:
        import polib
    except ModuleNotFoundError as e:
        raise redhost.MissingError(
            "message catalogues cannot be read", found="no polib", hint="pip install polib"
        ) from e
    for entry in polib.pofile(str(path)).translated_entries():
        forms = entry.msgstr_plural
        texts = [forms[n] for n in sorted(forms)] if forms else [entry.msgstr]
        yield from (text.strip() for text in texts if text.strip())
