"""The page on the public names."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import redhost.core
import redhost.registry

from .docstrings import first_line, markdown
from .markdown import fence, joined
from .signatures import flat_signature, signature_of

__all__ = ["PUBLIC", "page"]

PUBLIC = ("redhost", "redhost.robust", "redhost.mechanisms", "redhost.testing")


def page() -> str:
    """Return the page."""
    return joined(
        "The Python API",
        "Everything public, by the module to import it from, and there by the module that defines "
        "it. Other modules are the host's own business and may change. `import redhost` does not "
        "import torch; a name is loaded when it is first used.",
        *(part for name in PUBLIC for part in _package(importlib.import_module(name))),
    )


def _package(package: ModuleType) -> Iterator[str]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name in package.__all__:
        names[_home(name, getattr(package, name)) or package.__name__].append(name)
    yield f"## {package.__name__}\n\n{first_line(package)}"
    for module, told in sorted(names.items()):
        yield f"### {module}"
        for name in told:
            yield _entry(name, getattr(package, name), importlib.import_module(module))


def _entry(name: str, thing: Any, module: ModuleType) -> str:
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        value, said = _assignments(module)[name]
        return f"#### {name}\n\n{fence(f'{name} = {value}')}\n\n{said}"
    parts = [f"#### {name}", fence(_call(name, thing)), first_line(thing)]
    if inspect.isclass(thing):
        parts.append("\n".join(_members(thing)))
    return "\n\n".join(p for p in parts if p)


def _call(name: str, thing: Any) -> str:
    if getattr(thing, "_is_protocol", False):
        return f"class {name}(Protocol)"
    return f"{'class ' if inspect.isclass(thing) else ''}{name}{signature_of(thing)}"


def _members(kind: type) -> Iterator[str]:
    """Yield a line for each public method and property that a class itself defines and explains."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, (property, cached_property)):
            call, said = name, first_line(member)
        elif inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            bound = getattr(kind, name)
            call = name + flat_signature(bound, skip_self=inspect.isfunction(member))
            said = first_line(bound)
        else:
            continue
        if said:
            yield f"- `{call}`: {said}"


@cache
def _modules() -> Mapping[str, tuple[str, ...]]:
    """Return the names that each module of the host exports, packages left out."""
    found = {}
    for package in (redhost.core, redhost.registry):
        prefix = f"{package.__name__}."
        for info in pkgutil.walk_packages(package.__path__, prefix):
            if not info.ispkg:
                found[info.name] = tuple(getattr(importlib.import_module(info.name), "__all__", ()))
    return found


def _home(name: str, thing: Any) -> str:
    """Return the module that defines a public name; empty for one of the face itself."""
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return str(thing.__module__)
    return next((module for module, names in _modules().items() if name in names), "")


def _assignments(module: ModuleType) -> Mapping[str, tuple[str, str]]:
    """Return name → value and explanation of what a module assigns, as its source has them."""
    body = ast.parse(Path(inspect.getfile(module)).read_text("utf-8")).body
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            said = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                said = markdown(" ".join(str(after.value.value).split()))
            found[node.targets[0].id] = (ast.unparse(node.value), said)
    return found
