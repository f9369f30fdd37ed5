"""Third-party code in the host: found without importing, imported only when trusted.

Each `Host` has one plugin manager. A plugin that is misspelt, raises on import or is not trusted
gets a state and never crashes the host; a command that needs its parts then fails with its name.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pluggy

from ...registry.environment import trust
from ...registry.errors import PluginError, RedhostError, short
from ...registry.package.discover import EntryPointInfo, plugin_entry_points
from . import builtin
from .hooks import PROJECT, HookSpec

log = logging.getLogger("redhost")

BUILTIN = "redhost-builtin"


@dataclass(frozen=True, kw_only=True)
class PluginState:
    """One installed plugin and its state.

    Attributes:
        name: The name of its entry point.
        dist: The distribution that contains it.
        version: The distribution's version.
        state: ``loaded``, ``untrusted`` or ``failed``.
        reason: Why it is not loaded; None if it is.
        hint: How to fix that.
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
        entry_points: The installed plugins; by default, those that the environment declares.
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
        """Return only those of these plugins that provided a part of a composition.

        A published generation answers with the code it was composed with. A plugin installed later
        changes nothing; a plugin that is gone or has changed is an error, not another answer.

        Args:
            providers: Distribution → digest, as recorded in the composition.

        Raises:
            PluginError: If one of them is not loaded, or has changed.
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

    def make(
        self,
        hook: str,
        *,
        what: str,
        providers: MutableMapping[str, str] | None = None,
        instead: Callable[[], str] = str,
        **arguments: Any,
    ) -> Any:
        """Make a part with a factory hook.

        A single third-party provider takes precedence over the built-in one.

        Args:
            hook: The hook's name.
            what: The part being made, for messages.
            providers: Receives the distribution that provided the part, with its digest, unless
                the part is a built-in one.
            instead: Returns alternatives to name if no plugin makes the part.
            arguments: The hook's arguments.

        Raises:
            PluginError: If two plugins provide the same part, one raises, or none makes it.
        """
        names = self._implementing(hook)
        parts = {n: part for n in names if (part := self._call(n, hook, arguments)) is not None}
        if len(parts) > 1:
            both = " and ".join(sorted(self._dists[name] for name in parts))
            raise PluginError(f"two plugins provide {what}: {both}", hint="Uninstall one of them.")
        for name, part in parts.items():
            if providers is not None:
                providers[self._dists[name]] = self._digests[self._dists[name]]
            return part
        part = self._call(BUILTIN, hook, arguments)
        if part is None:
            hint = self.untrusted_hint() or "Install its plugin."
            raise PluginError(f"no trusted plugin provides {what}", hint=f"{instead()}{hint}")
        return part

    def providers(self, hook: str) -> tuple[str, ...]:
        """Return the distributions whose plugins implement a hook, called or not."""
        return tuple(sorted(self._dists[name] for name in self._implementing(hook)))

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call a notification hook on every plugin; log any exception and continue."""
        for name in self._implementing(hook):
            try:
                self._call(name, hook, arguments)
            except PluginError as e:
                log.error("%s", e)

    def collect(self, hook: str, *, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a registering hook and return the registered values by name.

        Args:
            hook: The hook.
            own: The values that redhost itself registers, by name.

        Raises:
            PluginError: If two plugins, or a plugin and redhost, register the same name.
        """
        registered = {key: (BUILTIN, value) for key, value in (own or {}).items()}
        for name in [BUILTIN, *self._implementing(hook)]:

            def register(key: str, value: Any, owner: str = name) -> None:
                if key in registered:
                    raise PluginError(f"{key!r} is registered by {registered[key][0]} and {owner}")
                registered[key] = (owner, value)

            self._call(name, hook, {"register": register})
        return {key: value for key, (_, value) in registered.items()}

    def _implementing(self, hook: str) -> list[str]:
        """Return the third-party plugins that implement a hook and may be used, sorted."""
        names = {i.plugin_name for i in getattr(self.manager.hook, hook).get_hookimpls()}
        return sorted(
            name
            for name in names - {BUILTIN}
            if self._allowed is None or self._dists[name] in self._allowed
        )

    def _call(self, name: str, hook: str, arguments: Mapping[str, Any]) -> Any:
        """Call one plugin's implementation of a hook; return None if it has none."""
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
        """Import and register one plugin; turn any failure into its state."""

        def state(name: str, reason: str | None = None, hint: str | None = None) -> PluginState:
            return PluginState(
                name=entry.name,
                dist=entry.dist,
                version=entry.version,
                state=name,
                reason=reason,
                hint=hint,
            )

        # A distribution may contain several plugins; the first takes the distribution's name.
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
            plugin = importlib.import_module(entry.value)
            self._dists[name] = entry.dist
            self.manager.register(plugin, name=name)
            self.manager.check_pending()
        except (Exception, SystemExit) as e:
            # pluggy leaves a plugin half registered when it rejects it.
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            self._dists.pop(name, None)
            if isinstance(e, RedhostError):
                return state("failed", e.reason, e.hint)
            return state("failed", f"{type(e).__name__}: {e}", f"Ask the author of {entry.dist}.")
        self._digests[entry.dist] = digest
        return state("loaded")

    def untrusted_hint(self) -> str:
        """Return a hint on which plugins to trust, for messages about missing parts."""
        names = [s.dist for s in self.states if s.state == "untrusted"]
        return f"Not trusted yet: {', '.join(names)} ('redhost trust DIST')." if names else ""
