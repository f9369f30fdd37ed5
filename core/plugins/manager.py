"""Third-party code in the host: found without importing, imported only when trusted.

Plugins of this project wait until one of their parts is asked for by name. Each `Host` has one
plugin manager. A plugin that is misspelt, raises on import or is not trusted gets a state and never
crashes the host; a command that needs its parts then fails with its name.
"""

from __future__ import annotations

import copy
import inspect
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import pluggy

from ... import __version__
from ...registry.environment import trust
from ...registry.environment.extras import how_to_install
from ...registry.environment.importing import import_digested, stoppable
from ...registry.errors import PluginError, RedhostError, UsageError, short, suggest, summary
from ...registry.package.discover import EntryPointInfo, canonical, plugin_entry_points
from ...registry.package.forms import PLUGIN_TASKS, TASKS
from ..bus.head import Head
from ..bus.task import Task
from ..bus.unit import Unit, WholeText
from ..tasks import is_registered, make_task, register_task
from . import builtin
from .hooks import OF_THIS_PROJECT, PROJECT, HookSpec, extra_of

log = logging.getLogger("redhost")

PartT = TypeVar("PartT")

BUILTIN = "redhost itself"  # no name of a distribution

REGISTER_TASKS = "redhost_register_tasks"


@dataclass(frozen=True, kw_only=True)
class PluginState:
    """One installed plugin and its state.

    Attributes:
        name: The name of its entry point.
        dist: The distribution that contains it.
        version: The distribution's version.
        state: ``loaded``, ``untrusted`` or ``failed``.
        reason: Why it is not loaded, or why it is without `redhost trust`; else None.
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

    # A plugin's task may have to wait for another plugin; and standard output is everyone's.
    _loading = threading.RLock()

    def __init__(self, entry_points: Sequence[EntryPointInfo] | None = None) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(HookSpec)
        self.manager.register(builtin, name=BUILTIN)
        self._digests: dict[str, str] = {}
        self._tasks: dict[str, str] = {}
        self._dists: dict[str, str] = {}
        self._allowed: frozenset[str] | None = None
        self._registered: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._states: list[PluginState] = []
        self._waiting: dict[str, list[EntryPointInfo]] = {}
        entries = plugin_entry_points("redhost.plugins") if entry_points is None else entry_points
        for entry in sorted(entries, key=lambda e: (e.dist, e.name)):
            self._waiting.setdefault(canonical(entry.dist), []).append(entry)
        ours = {f"redhost-{extra}" for of in OF_THIS_PROJECT.values() for extra in of.values()}
        self._load_waiting(self._waiting.keys() - ours)  # what others register is not known

    @property
    def states(self) -> tuple[PluginState, ...]:
        """The state of every installed plugin; those that waited are loaded for it."""
        self.load_all()
        return tuple(sorted(self._states, key=lambda s: (s.dist, s.name)))

    def load_all(self) -> None:
        """Load the plugins of this project too whose parts nobody has asked for."""
        self._load_waiting(tuple(self._waiting))

    def only(self, providers: Mapping[str, str]) -> Self:
        """Return only those of these plugins that provided a part of a composition.

        A published generation answers with the code it was composed with. A plugin installed later
        changes nothing; a plugin that is gone or has changed is an error, not another answer.

        Args:
            providers: Distribution → digest, as recorded in the composition.

        Raises:
            PluginError: If one of them is not loaded, or has changed.
        """
        self._load_waiting(map(canonical, providers))
        for dist, digest in sorted(providers.items()):
            loaded_digest = self._digests.get(dist, "")
            if loaded_digest != digest:
                hint = next(
                    (s.hint for s in self.states if s.dist == dist and s.hint),
                    f"Install this build ('pip install {dist}'), and 'redhost trust {dist}'.",
                )
                if not loaded_digest and (extra := extra_of(dist)):
                    hint = self._absent_hint(extra)
                raise PluginError(
                    f"plugin {dist!r} made a part of this composition",
                    expected=short(digest),
                    found=short(loaded_digest) if loaded_digest else "no such plugin loaded",
                    hint=f"{hint.removesuffix('.')}. Or compose anew, with what is here: "
                    "'redhost recompose --accept'; or without it, after 'redhost disable' of its "
                    "experts, with another --router if it made that.",
                )
        allowed = copy.copy(self)
        allowed._allowed = frozenset(providers)
        return allowed

    def make(
        self,
        hook: str,
        name: str,
        part_type: type[PartT],
        *,
        what: str,
        providers: MutableMapping[str, str] | None = None,
        instead: Callable[[], str] = str,
        **arguments: Any,
    ) -> PartT:
        """Make a part with the factory that is registered under a name.

        Args:
            hook: The hook that registers such factories.
            name: The factory's name. A plugin's takes precedence over the built-in one.
            part_type: The class that such a part is an instance of.
            what: The part being made, for messages.
            providers: Receives the distribution that provided the part, with its digest, unless
                the part is a built-in one.
            instead: Returns what to choose from if nobody registers a name that users type.
            arguments: What the factory may take.

        Raises:
            PluginError: If two plugins register the name or none does, or if the factory fails or
                makes something else.
            UsageError: If none does, and there are others to choose from.
        """
        factories = self._registrations(hook, name).get(name, {})
        if not factories:
            extra = OF_THIS_PROJECT.get(hook, {}).get(name)
            problem, absent = f"no trusted plugin provides {what}", self._absent_hint(extra, name)
            if not extra and (choices := instead()):
                raise UsageError(problem, hint=f"{choices}{absent}".rstrip())
            raise PluginError(problem, hint=absent or "Install its plugin.")
        plugins = factories.keys() - {BUILTIN}
        if len(plugins) > 1:
            raise PluginError(
                f"two plugins provide {what}: "
                + " and ".join(sorted(self._dists[plugin] for plugin in plugins)),
                hint="Uninstall one of them.",
            )
        [plugin] = plugins or {BUILTIN}
        factory = factories[plugin]
        taken = inspect.signature(factory).parameters.keys() & arguments.keys()
        with _named(plugin, f"the factory of {what}"):
            part = factory(**{argument: arguments[argument] for argument in taken})
        if not isinstance(part, part_type):
            raise PluginError(
                f"plugin {plugin!r} made {what}",
                expected=f"an instance of {part_type.__name__}",
                found=type(part).__name__,
            )
        if providers is not None and plugin != BUILTIN:
            providers[self._dists[plugin]] = self._digests[self._dists[plugin]]
        return part

    def task(
        self,
        name: str,
        *,
        resolution: float = 1.0,
        providers: MutableMapping[str, str] | None = None,
    ) -> Task:
        """Return a task, redhost's or a plugin's.

        Args:
            name: Its name in manifests.
            resolution: The smallest difference that matters, where answers are numbers.
            providers: Receives the distribution that registered it, as for `make`.

        Raises:
            PluginError: If no trusted plugin registers it.
        """
        self._load_named(REGISTER_TASKS, name)
        if not is_registered(name):
            extra = PLUGIN_TASKS.get(name)
            hint = f"{'' if extra else suggest(name, TASKS)}{self._absent_hint(extra)}".rstrip()
            raise PluginError(
                f"no trusted plugin provides task {name!r}", hint=hint or "Install its plugin."
            )
        if providers is not None and name in self._tasks:
            dist = self._tasks[name]
            providers[dist] = self._digests[dist]
        return make_task(name, resolution=resolution)

    def _register_task(
        self, dist: str, name: str, head: type[Head], *, unit: type[Unit[Any]] = WholeText
    ) -> None:
        # A name of this project's plugin is that one's, in whatever order they are loaded.
        self._load_named(REGISTER_TASKS, name)
        register_task(name, head, unit=unit)
        self._tasks[name] = dist

    def names(self, hook: str) -> tuple[str, ...]:
        """Return the names that are registered with a hook, redhost's included, sorted."""
        return tuple(sorted(self._registrations(hook)))

    def providers(self, hook: str, name: str) -> dict[str, str]:
        """Return the distributions whose plugins register a name with a hook: name → digest."""
        plugins = self._registrations(hook, name).get(name, {}).keys() - {BUILTIN}
        return {d: self._digests[d] for d in sorted(self._dists[plugin] for plugin in plugins)}

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call a notification hook on every plugin; log any exception and continue."""
        for name in self._implementing(hook):
            try:
                self._call(name, hook, arguments)
            except PluginError as e:
                log.error("%s", e)

    def collect(self, hook: str, *, builtin: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call a registering hook and return the registered values by name.

        Args:
            hook: The hook.
            builtin: The values that redhost itself registers, by name.

        Raises:
            PluginError: If two plugins, or a plugin and redhost, register the same name.
        """
        collected = dict(builtin or {})
        for name, values in self._registrations(hook).items():
            plugins = [*([BUILTIN] if name in collected else []), *values]
            if len(plugins) > 1:
                raise PluginError(f"{name!r} is registered by {' and '.join(plugins)}")
            collected[name] = values[plugins[0]]
        return collected

    def _registrations(self, hook: str, name: str | None = None) -> Mapping[str, Mapping[str, Any]]:
        """Return what is registered with a hook: name → plugin → value.

        Args:
            hook: The hook.
            name: The name that is asked for; by default all of them are.
        """
        self._load_named(hook, name)
        registered_by: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        for plugin in [BUILTIN, *self._implementing(hook)]:
            for registered, value in self._registered_by(plugin, hook).items():
                registered_by[registered][plugin] = value
        return registered_by

    def _registered_by(self, plugin: str, hook: str) -> Mapping[str, Any]:
        """Return what one plugin registers with a hook, which is called once."""
        if (plugin, hook) not in self._registered:
            values = dict[str, Any]()

            def register(name: str, value: Any) -> None:
                if not isinstance(name, str) or name in values:
                    raise PluginError(
                        f"plugin {plugin!r} registers {name!r}", expected="another name each time"
                    )
                values[name] = value

            self._call(plugin, hook, {"register": register})
            self._registered[plugin, hook] = values
        return self._registered[plugin, hook]

    def _implementing(self, hook: str) -> list[str]:
        """Return the third-party plugins that implement a hook and may be used, sorted."""
        names = {i.plugin_name for i in getattr(self.manager.hook, hook).get_hookimpls()}
        return sorted(
            name
            for name in names - {BUILTIN}
            if self._allowed is None or self._dists[name] in self._allowed
        )

    def _call(self, name: str, hook: str, arguments: Mapping[str, Any]) -> None:
        """Call one plugin's implementation of a hook, if it has one."""
        others = [p for n, p in self.manager.list_name_plugin() if n != name and p is not None]
        caller = self.manager.subset_hook_caller(hook, remove_plugins=others)
        with _named(name, hook):
            caller(**arguments)

    def _load_named(self, hook: str, name: str | None) -> None:
        """Load the plugins of this project that register a name with a hook; None is any name."""
        self._load_waiting(
            {
                f"redhost-{extra}"
                for part, extra in OF_THIS_PROJECT.get(hook, {}).items()
                if name in {None, part}
            }
        )

    def _load_waiting(self, dists: Iterable[str]) -> None:
        """Load the plugins of some distributions, as far as they wait for it."""
        with self._loading:
            for dist in sorted(dists):
                self._states += [self._load(entry) for entry in self._waiting.pop(dist, ())]

    def _load(self, entry: EntryPointInfo) -> PluginState:
        """Import and register one plugin; turn any failure into its state."""
        state = partial(PluginState, name=entry.name, dist=entry.dist, version=entry.version)
        # A distribution may contain several plugins; the first takes the distribution's name.
        first = entry.dist not in self._dists
        name = entry.dist if first else f"{entry.dist}:{entry.name}"
        try:
            agreement = trust.agreed(entry)
            if agreement is None:
                outdated = entry.version != __version__ and extra_of(entry.dist)
                return state(
                    state="untrusted",
                    reason="its code has changed since you trusted it"
                    if canonical(entry.dist) in trust.trusted()
                    else "its code was not read or allowed by you",
                    hint=how_to_install(outdated)
                    if outdated
                    else f"Run 'redhost trust {entry.dist}'.",
                )
            # What a command prints is its own.
            with redirect_stdout(sys.stderr), stoppable(f"the import of plugin {entry.dist!r}"):
                plugin = import_digested(entry.value, agreement.contents.by_path, dist=entry.dist)
            self._dists[name] = entry.dist
            self.manager.register(plugin, name=name)
            self.manager.check_pending()
            register = partial(self._register_task, entry.dist)
            self._call(name, REGISTER_TASKS, {"register": register})
        except Exception as e:
            # pluggy leaves a plugin half registered when it rejects it.
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            self._dists.pop(name, None)
            if isinstance(e, RedhostError):
                return state(state="failed", reason=e.reason, hint=e.hint)
            return state(state="failed", reason=summary(e), hint=f"Ask the author of {entry.dist}.")
        self._digests[entry.dist] = agreement.contents.digest
        return state(state="loaded", reason=agreement.reason and f"trusted: {agreement.reason}")

    def _absent_hint(self, extra: str | None, name: str = "") -> str:
        """Return a hint on how to get a plugin that makes a part: of this project, or another's."""
        state = next((s for s in self.states if extra and extra_of(s.dist) == extra), None)
        if state is not None and state.state == "failed":
            return f"{state.dist} cannot be loaded: {state.reason} {state.hint or ''}".rstrip()
        if extra and (state is None or state.version != __version__):
            return how_to_install(extra)
        failed = [s.dist for s in self.states if s.state == "failed"]
        named = f"Failed: {', '.join(failed)} (see 'redhost plugins')." if failed else ""
        return f"{self.untrusted_hint(name)} {named}".strip()

    def untrusted_hint(self, name: str = "") -> str:
        """Return which plugins to trust, for a missing part: those that its name begins with."""
        names = [s.dist for s in self.states if s.state == "untrusted"]
        commands = " or ".join(
            f"'redhost trust {dist}'"
            for dist in [dist for dist in names if name.startswith(f"{dist}:")] or names
        )
        return f"Not trusted yet: {', '.join(names)}. Run {commands}." if names else ""


@contextmanager
def _named(plugin: str, doing: str) -> Iterator[None]:
    """Run code of a plugin, which is named if it fails, ends the program or is interrupted."""
    try:
        with stoppable(doing if plugin == BUILTIN else f"{doing} of plugin {plugin!r}"):
            yield
    except Exception as e:
        if plugin == BUILTIN or isinstance(e, RedhostError):
            raise
        raise PluginError(f"plugin {plugin!r} raised in {doing}", found=summary(e)) from e
