"""Blocks of Python: which of them are complete programs."""

from __future__ import annotations

import ast
import builtins

__all__ = ["unbound"]


def unbound(source: str) -> frozenset[str]:
    """Return the names that a block uses but never binds; a complete block has none.

    Raises:
        SyntaxError: If it is not Python.
    """
    used: set[str] = set()
    bound = set(dir(builtins))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
    return frozenset(used - bound)
