"""The forms that an author can name: redhost's own, and those that trusted plugins train."""

from __future__ import annotations

from collections.abc import Sequence

from redhost.registry.errors import UsageError, suggest
from redhost.registry.package.forms import FORMS, INSIDE, OPEN, PLUGIN_FORMS

__all__ = ["RECIPES", "form_named", "forms_of"]

RECIPES = "redhost_register_recipes"
"""The hook that registers how a plugin's forms are trained."""

_OURS = (*FORMS, *PLUGIN_FORMS)


def form_named(name: str) -> str:
    """Return the form that a name stands for: its own, or the last part of one plugin's.

    Args:
        name: A form, such as ``words`` or ``redhost-shift:shift``, or ``shift`` for short.

    Raises:
        UsageError: If no form has the name, or several plugins' have it.
    """
    if name in _OURS:
        return name
    from redhost.core.plugins.manager import Plugins  # imports torch

    plugins = Plugins()
    forms = forms_of(plugins.names(RECIPES))
    meant = [f for f in forms if name == f] or [f for f in forms if f.endswith(f":{name}")]
    if len(meant) == 1:
        return meant[0]
    like = suggest(name, [f.split(":")[-1] for f in forms])
    hint = "" if meant else f"{like}{plugins.untrusted_hint(name)}"
    raise UsageError(
        f"{'several forms have the name' if meant else 'nothing trains a form'} {name!r}",
        expected=f"one of {', '.join(meant or forms)}",
        hint=hint.strip(),
    )


def forms_of(recipes: Sequence[str]) -> tuple[str, ...]:
    """Return the forms among the names of recipes, with redhost's own forms first."""
    return (*_OURS, *(r for r in recipes if r not in {INSIDE, OPEN, *_OURS}))
