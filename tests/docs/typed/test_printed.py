"""What commands print with ``--json`` is what the reference says, run for run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest
from reference.fits import misfits
from reference.printed import printed_types

RUN = (
    ("list-experts", ""),
    ("check", "range1 range2"),
    ("check", "broken.whl"),
    ("recompose", ""),
    ("recompose", "--dry-run --router linear"),
    ("predict", "'What is 37 plus 12?' hello"),
    ("explain", "'What is 37 plus 12?' hello"),
    ("evaluate", "--data rows.jsonl --outside texts.txt --leave-one-out"),
    ("evaluate", "--data rows.jsonl --mixtures"),
    ("sweep", "centroid --data rows.jsonl"),
    ("remove", "range5 --accept"),
    ("add", "red-expert-range5 --find-links dist"),
    ("status", ""),
    ("doctor", ""),
    ("why", "range1"),
    ("export-wheels", "wheels --only-named"),
    ("sync", "--dry-run --from wheels"),
    ("catalogue", "wheels --simple"),
    ("search", "range --catalogue wheels"),
    ("outdated", "--find-links wheels"),
    ("upgrade", "--find-links wheels"),
    ("history", ""),
    ("recompose", "--router linear --accept"),
    ("route", "'What is 37 plus 12?' hello"),
    ("rollback", ""),
    ("gc", "--keep 1"),
    ("merge", "one --epochs 1"),
    ("plugins", ""),
    ("new-key", "author.pem"),
    ("revoke", f"{'0' * 64} --reason bad --key author.pem"),
    ("revoked", ""),
    ("train-expert", "red-expert-sun --data sun.jsonl --epochs 2"),
    ("train-many", "plan.jsonl"),
)
"""Commands in an order in which each has something to say; `generate` is run by its page, `port`
by `tests/commands/test_port.py`, `migrate` by `tests/plugins/port/test_migrate.py`."""


def test_every_command_prints_what_its_type_says(make_stage: Callable[[str], Any]) -> None:
    stage = make_stage("docs/engines.md")
    (stage.folder / "broken.whl").write_bytes(b"no zip")
    rows = [
        {"text": f"What is {n} plus 2?", "label": str(n + 2), "domain": f"range{1 + n // 20}"}
        for n in range(10, 30)
    ]
    (stage.folder / "rows.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
    (stage.folder / "texts.txt").write_text("once upon a time\nthe end\n")
    types = printed_types()
    assert {name for name, _ in RUN} | {"generate", "migrate", "port"} == set(types)
    printed = stage.session([f"redhost {name} {arguments} --json" for name, arguments in RUN])
    for (name, arguments), (_, out, err) in zip(RUN, printed, strict=True):
        assert out, f"{name} {arguments}: {err}"
        type_, also = types[name]
        assert not misfits(json.loads(out), type_, also=also), f"{name} {arguments}"


class Inner(msgspec.Struct):
    """An example.

    Attributes:
        n: A number.
    """

    n: int


class Outer(TypedDict):
    """An example.

    Attributes:
        several: Some.
        last: Maybe one.
    """

    several: list[Inner]
    last: NotRequired[Inner | None]


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ({"several": [{"n": 1}], "last": None}, []),
        ({"several": [{"n": 1}, {"n": 2, "m": 3}]}, ["$.several[1]: unknown key 'm'"]),
        ({"several": [], "last": {"n": "x"}}, ["Expected `int`, got `str` - at `$.last.n`"]),
        ({}, ["Object missing required field `several`"]),
    ],
)
def test_a_value_that_differs_from_its_type_is_noticed(value: Any, faults: list[str]) -> None:
    assert misfits(value, Outer) == faults


def test_keys_that_options_add_are_looked_at_as_well() -> None:
    also = {"more": Inner}
    assert misfits({"n": 1, "more": {"n": 2}}, Inner, also=also) == []
    assert misfits({"n": 1, "more": {"n": 2, "o": 3}}, Inner, also=also) == ["$: unknown key 'o'"]
