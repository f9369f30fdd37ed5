"""The page on the public names."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any

from .docstrings import first_line, markdown
from .markdown import fence, joined
from .signatures import flat_signature, signature_of

__all__ = ["PUBLIC", "page"]

PUBLIC = (
    "redhost",
    "redhost.errors",
    "redhost.pipelines",
    "redhost.plugins",
    "redhost.testing",
    "redhost_author",
    "redhost_generate",
    "redhost_ray.jobs",
    "redhost_robust",
    "redhost_mechanisms",
)


def page() -> str:
    """Return the page."""
    return joined(
        "The Python API",
        "All public names, by the module to import them from, and within it by the module that "
        "defines them. Other modules are internal and may change. `import redhost` does not "
        "import torch; a name is loaded when it is first used.",
        *(part for name in PUBLIC for part in _package(importlib.import_module(name))),
    )


def _package(package: ModuleType) -> Iterator[str]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name in package.__all__:
        thing = getattr(package, name)
        if not inspect.ismodule(thing):  # public modules have parts of their own
            names[_home(package, name, thing)].append(name)
    yield f"## {package.__name__}\n\n{first_line(package)}"
    for module, listed in sorted(names.items()):
        yield f"### {module}"
        for name in listed:
            yield _entry(name, getattr(package, name), importlib.import_module(module))


def _entry(name: str, thing: Any, module: ModuleType) -> str:
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        value, text = _assignments(module)[name]
        return f"#### {name}\n\n{fence(f'{name} = {value}')}\n\n{text}"
    parts = [f"#### {name}", fence(_call(name, thing)), first_line(thing)]
    if inspect.isclass(thing):
        parts.append("\n".join(_members(thing)))
    return "\n\n".join(p for p in parts if p)


def _call(name: str, thing: Any) -> str:
    if getattr(thing, "_is_protocol", False):
        return f"class {name}(Protocol)"
    return f"{'class ' if inspect.isclass(thing) else ''}{name}{signature_of(thing)}"


def _members(kind: type) -> Iterator[str]:
    """Yield a line for each public, documented method and property that a class itself defines."""
    for name, member in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(member, (property, cached_property)):
            call, summary = name, first_line(member)
        elif inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod)):
            bound = getattr(kind, name)
            call = name + flat_signature(bound, skip_self=inspect.isfunction(member))
            summary = first_line(bound)
        else:
            continue
        if summary:
            yield f"- `{call}`: {summary}"


def _home(package: ModuleType, name: str, thing: Any) -> str:
    """Return the module that defines a public name."""
    if inspect.isclass(thing) or inspect.isfunction(thing):
        return str(thing.__module__)
    return _imports(package).get(name, package.__name__)


def _imports(package: ModuleType) -> Mapping[str, str]:
    """Return name → module of a package's imports, from its stub if it has one."""
    source = Path(inspect.getfile(package))
    stub = source.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else source).read_text("utf-8"))
    above = package.__name__ if source.name == "__init__.py" else package.__package__
    return {
        alias.name: resolve_name("." * node.level + (node.module or ""), above)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _assignments(module: ModuleType) -> Mapping[str, tuple[str, str]]:
    """Return name → value and explanation of a module's assignments, as in its source."""
    body = ast.parse(Path(inspect.getfile(module)).read_text("utf-8")).body
    found = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = ""
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = markdown(" ".join(str(after.value.value).split()))
            found[node.targets[0].id] = (ast.unparse(node.value), text)
    return found
