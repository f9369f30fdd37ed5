"""The page on hooks."""

from __future__ import annotations

import inspect

from redhost.core.plugins import builtin
from redhost.core.plugins.hooks import HookSpec

from .docstrings import first_line, prose
from .markdown import fence, joined
from .signatures import signature

__all__ = ["hook_names", "page"]


def hook_names() -> list[str]:
    """Return the hooks in the order of the spec."""
    return [name for name in vars(HookSpec) if name.startswith("redhost_")]


def page() -> str:
    """Return the page."""
    return joined(
        "Hooks",
        "A plugin is a module with functions marked `@redhost.hookimpl`, declared under the entry "
        "point `redhost.plugins` and imported only after the user typed `redhost trust DIST`. "
        f"{prose(HookSpec)} A name that is no hook is an error when the plugin is loaded.",
        *(_section(name) for name in hook_names()),
    )


def _section(name: str) -> str:
    hook = getattr(HookSpec, name)
    signed = inspect.signature(hook)
    without_self = signed.replace(parameters=list(signed.parameters.values())[1:])
    parts = [f"## {name}", fence(f"{name}{signature(without_self)}"), prose(hook)]
    own = getattr(builtin, name, None)
    parts.append(f"Built in: {first_line(own)}" if own else "Built in: nothing.")
    return "\n\n".join(parts)
