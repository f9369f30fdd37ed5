"""No path of the host unpickles or runs what a file says: read off the syntax tree of all of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VERBS = tuple(
    f"plugins/redhost-{n}/src"
    for n in (
        "author",
        "doctor",
        "gateway",
        "generate",
        "merge",
        "port",
        "ray",
        "report",
        "revoke",
        "spans",
        "sync",
    )
)
"""Verbs that are released with the host, on its own modules."""
FOLDERS = ("core", "registry", "commands", "src/redhost", *VERBS)
SOURCES = sorted(
    {p.resolve() for f in FOLDERS for p in (ROOT / f).rglob("*.py")} | {ROOT / "cli.py"}
)

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
MODULES |= {"yaml", "jsonpickle", "pandas"}
BUILTINS = {"eval", "exec", "compile", "__import__"}
SHUT = {"allow_pickle": False, "trust_remote_code": False, "weights_only": True}
"""Keyword arguments that may only be this constant."""

SPREAD = {
    ("core/backbones/identity.py", "options"),
    ("core/backbones/loading.py", "options"),
    ("plugins/redhost-author/src/redhost_author/backbone/trial.py", "trunk.cut"),
    ("plugins/redhost-author/src/redhost_author/backbone/cli.py", "fields"),
    ("commands/common.py", "options"),
    ("core/plugins/manager.py", "{argument: arguments[argument] for argument in taken}"),
    ("core/live.py", "keywords"),
    ("commands/compose.py", "keywords"),
    ("commands/evaluate.py", "fields"),
    ("commands/packages.py", "keywords"),
    ("plugins/redhost-port/src/redhost_port/cli.py", "keywords"),
    ("plugins/redhost-generate/src/redhost_generate/batch.py", "options"),  # transformers'
    ("plugins/redhost-generate/src/redhost_generate/tables.py", "options"),  # transformers'
    ("plugins/redhost-generate/src/redhost_generate/cli.py", "limits"),  # click's options
    ("plugins/redhost-generate/src/redhost_generate/systems.py", "options"),  # adapter_names
    (
        "plugins/redhost-author/src/redhost_author/training/packaging.py",
        "fields",
    ),  # what a form writes, not what it reads
    ("core/bus/signals.py", "kwargs"),
    (
        "core/composition/options.py",
        "{f.name: given.get(f.name, getattr(self, f.name)) for f in fields(self)}",
    ),
    ("core/routers/base.py", "kwargs"),
    ("plugins/redhost-merge/src/redhost_merge/distill.py", "shared"),
    ("registry/package/checked.py", "kwargs"),
    ("core/plugins/manager.py", "arguments"),
    ("core/routers/__init__.py", "options"),
    ("core/backbones/backbone.py", "self.trunk.cut"),
    ("core/backbones/encoder.py", "self.cut"),
    ("core/backbones/encoder.py", "self._wanted_states"),
    ("core/backbones/packs.py", "options"),
    (
        "core/evaluation/judge.py",
        "{n: torch.cat(tensors) for n, tensors in columns.items() if tensors}",
    ),
    ("core/model/conformal.py", "safetensors.torch.load(data)"),
    ("core/model/moments.py", "safetensors.torch.load(data)"),
    ("core/composition/recompose.py", "_made_with(lock)"),  # five options by name
    ("core/composition/publish.py", "msgspec.structs.asdict(p)"),  # of the record, not of a package
    ("plugins/redhost-ray/src/redhost_ray/cluster.py", "logging_options"),
    ("plugins/redhost-ray/src/redhost_ray/deploy.py", "scale"),
    ("plugins/redhost-ray/src/redhost_ray/sweep_command.py", "fields"),
    ("core/backbones/encoder.py", "options"),
    ("registry/queries/settings.py", "{k: v for k, v in mine.items() if v is not None}"),
}
"""Every ``f(**x)`` of the host. None spreads a manifest: look at a new one before adding it."""


def roots_of(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield each import with the top-level names it brings in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node, (node.module or "").partition(".")[0]


def dotted(node: ast.expr) -> str:
    """Return the words of a name such as ``torch.load``; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ""


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    return ((n, dotted(n.func)) for n in ast.walk(tree) if isinstance(n, ast.Call))


def problems(source: str) -> list[str]:
    """Return every place of a source that could run what a file says."""
    tree = ast.parse(source)
    found = [f"import of {name}" for _, name in roots_of(tree) if name in MODULES]
    found += [
        f"import of {node.module}.load"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module in {"torch", "numpy"}
        and any(alias.name == "load" for alias in node.names)
    ]
    for call, name in calls(tree):
        given = {k.arg: k.value for k in call.keywords if k.arg}
        if name in BUILTINS:
            found.append(f"call of {name}")
        if name in {"torch.load", "torch.serialization.load"} and "weights_only" not in given:
            found.append(f"{name} without weights_only=True")
        if name in {"np.load", "numpy.load"} and len(call.args) > 2:
            found.append(f"{name} with more than a file and a mode")
        if name.split(".")[-1] == "from_pretrained" and "trust_remote_code" not in given:
            found.append(f"{name} without trust_remote_code=False")
        found += [
            f"{key}={ast.unparse(given[key])}"
            for key, only in SHUT.items()
            if key in given
            and not (isinstance(given[key], ast.Constant) and given[key].value is only)
        ]
    return found


def spreads(source: str) -> Iterator[str]:
    """Yield what is handed on with ``**`` in calls."""
    for call, _ in calls(ast.parse(source)):
        yield from (ast.unparse(k.value) for k in call.keywords if k.arg is None)


def test_the_whole_host_is_looked_at() -> None:
    names = {p.relative_to(ROOT).as_posix() for p in SOURCES}
    assert {
        "cli.py",
        "core/backbones/encoder.py",
        "registry/package/readers.py",
        "commands/lazy.py",
    } <= names
    assert len(names) > 100


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    assert problems(path.read_text("utf-8")) == []


def test_no_manifest_is_ever_spread_into_keyword_arguments() -> None:
    found = {
        (p.relative_to(ROOT).as_posix(), what)
        for p in SOURCES
        for what in spreads(p.read_text("utf-8"))
    }
    assert found == SPREAD


PLANTED = {
    "import pickle": 1,
    "from dill import load": 1,
    "import joblib.numpy_pickle": 1,
    "import shelve, marshal": 2,
    "import yaml\nyaml.load(f)": 1,
    "import torch\ntorch.load(f)": 1,
    "import torch\ntorch.load(f, weights_only=False)": 1,
    "import torch\ntorch.load(f, weights_only=flag)": 1,
    "from torch import load\nload(f)": 1,
    "import numpy as np\nnp.load(f, allow_pickle=True)": 1,
    "import numpy as np\nnp.load(f, None, True)": 1,
    "def f():\n    eval('1')": 1,
    "exec(text)": 1,
    "__import__('pickle')": 1,
    "AutoModel.from_pretrained(x)": 1,
    "AutoModel.from_pretrained(x, trust_remote_code=True)": 1,
    "AutoModel.from_pretrained(x, trust_remote_code=manifest.trust)": 1,
    "import torch\ntorch.load(f, weights_only=True)": 0,
    "model.eval()": 0,
}


@pytest.mark.parametrize(("source", "count"), PLANTED.items(), ids=PLANTED)
def test_control_with_a_planted_one_is_caught(source: str, count: int) -> None:
    """Each attack put at the end of a real source of the host is found."""
    host = (ROOT / "core/backbones/encoder.py").read_text("utf-8")
    assert len(problems(f"{host}\n{source}\n")) == count


def test_control_that_spreads_a_manifest_is_caught() -> None:
    planted = "AutoModel.from_pretrained(where, trust_remote_code=False, **manifest.options)"
    assert list(spreads(planted)) == ["manifest.options"]
    assert ("core/backbones/encoder.py", "manifest.options") not in SPREAD
