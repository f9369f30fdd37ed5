"""`tools/house.py`: what counts as a statement, as a banned word, as a circle."""

from __future__ import annotations

import ast

from house import (
    Banned,
    circles,
    comments,
    count_words,
    flags,
    given_host,
    parameters,
    read_banned,
    split_name,
    statements,
    vague_names,
)

SOURCE = '''
"""A docstring."""
import os
from typing import Protocol

__all__ = ["A", "f"]

class A(Protocol):
    """Another."""

    size: int
    """A third."""

    def go(self) -> None: ...

def f(x):
    import re
    if x:
        return [y for y in x]
    pass
'''


def test_statements_without_imports_and_bare_constants():
    # __all__, class, size, go, f, if, return, pass
    assert statements(SOURCE) == 8
    assert statements('"""Only a docstring."""\n') == 0


def test_names_are_split_at_underscores_and_capitals():
    assert split_name("_open_ShopWindow") == ["open", "shop", "window"]
    assert split_name("HTTPEar2_HEARD") == ["http", "ear", "heard"]


def test_banned_words_in_names_and_prose():
    banned = read_banned(
        "# no words: here\neverywhere: told shop\nnames: kept  # prose: may\nexact: Order\n"
    )
    assert banned == Banned(frozenset({"told", "shop"}), frozenset({"kept"}), frozenset({"Order"}))
    source = (
        "kept_rows = open_shop(Order, order)  # told once, kept\nx = 'a shop' + reorder(Orders)\n"
    )
    names, prose = count_words(source, banned)
    assert names == {"kept_rows": 1, "open_shop": 1, "Order": 1}
    assert prose == {"told": 1, "shop": 1}
    assert count_words("Told by `shop_of`.", banned, python=False) == ({}, {"told": 1, "shop": 1})
    allowing = banned._replace(allowed=frozenset({"told"}))
    assert count_words("told = told_of  # told\n", allowing) == ({"told_of": 1}, {})


def test_circles_are_the_strongly_connected_modules():
    graph = {"a": ["b"], "b": ["c"], "c": ["a", "d"], "d": ["e"], "e": ["d"], "f": ["a", "f"]}
    assert circles(graph) == [["a", "b", "c"], ["d", "e"]]
    assert circles({"a": ["b"], "b": []}) == []


def test_functions_given_a_host_outside_of_it():
    source = """
def one(host): ...
def two(*, x: "Host | None"): ...
def three(host: nn.Module, hosts: Hosts): ...
class Host:
    def four(self, other: Host): ...
class Live:
    def five(self, host: Host): ...
"""
    assert given_host(ast.parse(source)) == ["one", "two", "five"]


def test_flags_are_questions_to_heads_units_and_spaces():
    source = (
        "if task.head.several or task.unit is Unit.WORD and m.writes.space == 'labels': ahead.x"
    )
    assert flags(ast.parse(source)) == 3


def test_parameters_are_those_of_functions_that_click_does_not_call():
    source = "class A:\n def f(self, a, *, b): ...\n@click.command()\ndef g(a, b, c, d): ...\n"
    assert parameters(ast.parse(source)) == 2


def test_vague_names_are_assigned_passed_or_parameters():
    assert vague_names(ast.parse("found = f(own=1)\ndef g(some, other): return found\n")) == 3


def test_comments_are_no_strings():
    assert comments("x = '# none'  # one\n# two\n") == 2
