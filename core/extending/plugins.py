"""Code that enters the host: found without importing, imported only when trusted.

One plugin manager for each `Host`. A plugin that is misspelt, raises on import or is not trusted
becomes a state, never a crash; a command that needs what it provides then fails by name.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pluggy

from ...registry import trust
from ...registry.discover import EntryPointInfo, plugin_entry_points
from ...registry.errors import PluginError, RedhostError, short
from ..extending import builtin
from .hooks import PROJECT, HookSpec

__all__ = ["PluginState", "Plugins"]

log = logging.getLogger("redhost")

BUILTIN = "redhost-builtin"


@dataclass(frozen=True, kw_only=True)
class PluginState:
    """One installed plugin and what became of it.

    Attributes:
        name: Of its entry point.
        dist: The distribution that brings it.
        version: The distribution's version.
        state: ``loaded``, ``untrusted`` or ``failed``.
        reason: Why it is not loaded; None if it is.
        hint: What to do about that.
    """

    name: str
    dist: str
    version: str
    state: str
    reason: str | None = None
    hint: str | None = None


class Plugins:
    """The plugins of one host.

    Args:
        entry_points: What is installed; by default, what the environment declares.
    """

    def __init__(self, entry_points: Sequence[EntryPointInfo] | None = None) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(HookSpec)
        self.manager.register(builtin, name=BUILTIN)
        found = plugin_entry_points("redhost.plugins") if entry_points is None else entry_points
        self._digests: dict[str, str] = {}
        self._dists: dict[str, str] = {}
        self._allowed: frozenset[str] | None = None
        self.states = tuple(self._load(e) for e in sorted(found, key=lambda e: (e.dist, e.name)))

    def only(self, providers: Mapping[str, str]) -> Self:
        """Return these plugins without all that had no part in a composition.

        A published generation answers with the code it was composed with: a plugin that came
        later changes nothing, and one that is gone or changed is an error, not another answer.

        Args:
            providers: Distribution → digest, as the composition records it.

        Raises:
            PluginError: If one of them is not loaded, or is not what it was.
        """
        for dist, digest in sorted(providers.items()):
            found = self._digests.get(dist, "")
            if found != digest:
                raise PluginError(
                    f"plugin {dist!r} made a part of this composition",
                    expected=short(digest),
                    found=short(found) if found else "no such plugin loaded",
                    hint="See 'redhost plugins'; install and trust it again, or compose without "
                    "it: 'redhost recompose --accept', with another --router if it made that.",
                )
        some = copy.copy(self)
        some._allowed = frozenset(providers)
        return some

    def make(self, hook: str, *, what: str, **arguments: Any) -> Any:
        """Ask a factory hook for a part.

        A single third-party provider wins over the built-in one.

        Args:
            hook: The hook's name.
            what: What is being made, for messages.
            arguments: The hook's arguments.

        Raises:
            PluginError: If two plugins provide the same part, one raises, or nobody makes it.
        """
        part, _ = self.make_named(hook, what=what, **arguments)
        return part

    def make_named(
        self, hook: str, *, what: str, instead: str = "", **arguments: Any
    ) -> tuple[Any, str | None]:
        """Do what `make` does; return the part and the distribution that provided it.

        The second is None for built-in parts. `instead` tells, where nobody makes the part, what
        could be asked for in its place.
        """
        made = {name: self._ask(name, hook, arguments) for name in self._others()}
        made = {name: part for name, part in made.items() if part is not None}
        if len(made) > 1:
            both = " and ".join(sorted(self._dists[name] for name in made))
            raise PluginError(f"two plugins provide {what}: {both}", hint="Uninstall one of them.")
        for name, part in made.items():
            return part, self._dists[name]
        part = self._ask(BUILTIN, hook, arguments)
        if part is None:
            hint = self.untrusted_hint() or "Install its plugin."
            raise PluginError(f"nobody provides {what}", hint=f"{instead}{hint}")
        return part, None

    def digest(self, dist: str) -> str:
        """Return the digest of a loaded plugin's code."""
        return self._digests[dist]

    def providers(self, hook: str) -> tuple[str, ...]:
        """Return the distributions whose plugins implement a hook, called or not."""
        found = [i.plugin_name for i in getattr(self.manager.hook, hook).get_hookimpls()]
        return tuple(sorted(self._dists[n] for n in found if n in self._others()))

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call a notification hook on every plugin; one that raises is logged, no more."""
        for name in self._others():
            try:
                self._ask(name, hook, arguments)
            except PluginError as e:
                log.error("%s", e)

    def collect(self, hook: str) -> Mapping[str, Any]:
        """Call a registering hook and return what was registered by name.

        Raises:
            PluginError: If two plugins register the same name.
        """
        registered: dict[str, tuple[str, Any]] = {}
        for name in [BUILTIN, *self._others()]:

            def register(key: str, value: Any, owner: str = name) -> None:
                if key in registered:
                    raise PluginError(f"{key!r} is registered by {registered[key][0]} and {owner}")
                registered[key] = (owner, value)

            self._ask(name, hook, {"register": register})
        return {key: value for key, (_, value) in registered.items()}

    def _others(self) -> list[str]:
        names = [name for name, plugin in self.manager.list_name_plugin() if plugin is not None]
        return sorted(
            name
            for name in names
            if name != BUILTIN and (self._allowed is None or self._dists[name] in self._allowed)
        )

    def _ask(self, name: str, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Call one plugin's implementation of a hook; None where it has none."""
        rest = [p for n, p in self.manager.list_name_plugin() if n != name and p is not None]
        caller = self.manager.subset_hook_caller(hook, remove_plugins=rest)
        try:
            result = caller(**arguments)
        except Exception as e:
            if name == BUILTIN or isinstance(e, PluginError):
                raise
            raise PluginError(f"plugin {name!r} raised in {hook}", found=f"{e!r}") from e
        return None if result == [] else result

    def _load(self, entry: EntryPointInfo) -> PluginState:
        """Import and register one plugin; whatever goes wrong becomes its state."""

        def state(name: str, reason: str | None = None, hint: str | None = None) -> PluginState:
            return PluginState(
                name=entry.name,
                dist=entry.dist,
                version=entry.version,
                state=name,
                reason=reason,
                hint=hint,
            )

        # A distribution may bring several plugins; the first goes by the distribution's name.
        first = entry.dist not in self._dists
        name = entry.dist if first else f"{entry.dist}:{entry.name}"
        try:
            if not trust.is_trusted(entry.dist):
                return state(
                    "untrusted",
                    "its code was not read or allowed by you",
                    f"Run 'redhost trust {entry.dist}'.",
                )
            digest = trust.digest_of(entry.dist)
            self._register(entry, name)
        except (Exception, SystemExit) as e:
            # pluggy leaves a plugin half registered when it refuses it.
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            self._dists.pop(name, None)
            if isinstance(e, RedhostError):
                return state("failed", e.reason, e.hint)
            return state("failed", f"{type(e).__name__}: {e}", f"Ask the author of {entry.dist}.")
        self._digests[entry.dist] = digest
        return state("loaded")

    def _register(self, entry: EntryPointInfo, name: str) -> None:
        plugin = importlib.import_module(entry.value)
        self._dists[name] = entry.dist
        self.manager.register(plugin, name=name)
        self.manager.check_pending()

    def untrusted_hint(self) -> str:
        """Return whom to trust, for messages about what nobody provides."""
        names = [s.dist for s in self.states if s.state == "untrusted"]
        return f"Not trusted yet: {', '.join(names)} ('redhost trust DIST')." if names else ""
