"""Every task by name: the units and heads that manifests can ask for, and how to add one."""

from __future__ import annotations

from typing import Any

from ..registry.environment.extras import how_to_install
from ..registry.errors import MissingError, UnknownNameError
from ..registry.package.forms import PLUGIN_TASKS, TASKS, TaskSpec
from .bus.head import Head
from .bus.label_set_head import SigmoidHead
from .bus.task import NumberHead, SoftmaxHead, Task
from .bus.unit import Unit, WholeText

HEADS: dict[str, type[Head]] = {h.name: h for h in (SoftmaxHead, SigmoidHead, NumberHead)}
"""Every head, by the name that `TASKS` uses."""

UNITS: dict[str, type[Unit[Any]]] = {u.name: u for u in (WholeText,)}
"""Every unit, by the name that `TASKS` uses."""


def make_task(name: str, *, resolution: float = 1.0) -> Task:
    """Return the task that a backbone's manifest names.

    Raises:
        MissingError: If the plugin of this project that has the task is not loaded.
        UnknownNameError: If no such task is registered.
    """
    if not is_registered(name):
        extra = PLUGIN_TASKS.get(name)
        if extra is None:
            raise UnknownNameError("task", name, TASKS)
        raise MissingError(f"task {name!r} is part of redhost-{extra}", hint=how_to_install(extra))
    spec = TASKS[name]
    return Task(name=name, unit=UNITS[spec.unit](), head=HEADS[spec.head](resolution=resolution))


def is_registered(name: str) -> bool:
    """Return whether a task has its head and unit in this process."""
    return name in TASKS and TASKS[name].head in HEADS


def register_task(name: str, head: type[Head], *, unit: type[Unit[Any]] = WholeText) -> None:
    """Register a task, its head and its unit, under a name that manifests may use.

    The same task may be registered again.

    Raises:
        ValueError: If the name, or that of the head or unit, is another's.
    """
    spec = TaskSpec(
        unit=unit.name,
        head=head.name,
        noun=head.noun,
        classifier=unit.classifier,
        several="labels" in head.fields,
        generates=unit.generates,
    )
    alike = HEADS.get(head.name, head) is head and UNITS.get(unit.name, unit) is unit
    if not alike or TASKS.get(name, spec) != spec:
        raise ValueError(f"task {name!r} with head {head.name!r} is registered already")
    TASKS[name], HEADS[head.name], UNITS[unit.name] = spec, head, unit
