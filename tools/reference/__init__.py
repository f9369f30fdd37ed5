"""The pages of docs/reference, generated from the code: ``make reference``.

There are no descriptions here. The meaning of a key, an option or a hook is in its own docstring or
help, so that a page can only be wrong if the code is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from . import api, cli, hooks, manifest, printed

__all__ = ["PAGES"]

PAGES: Mapping[str, Callable[[], str]] = {
    "api.md": api.page,
    "cli.md": cli.page,
    "hooks.md": hooks.page,
    "json.md": printed.page,
    "manifest.md": manifest.page,
}
"""File name → the function that returns the page."""
