"""One package brings a task, a form, a router, a combiner and an engine, to every verb."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from warm_start import warm_command

from redhost.registry.home.generations import Generations

CODE = """
import redhost
import redhost_ray.jobs
import torch
from redhost import hookimpl
from redhost.plugins import make_task


class OrdinalHead(type(make_task("classification").head)):
    name = "ordinal"


class Nearest(redhost.Router):
    '''The column whose mean is nearest; no step of training.'''

    kind = "nearest"
    closed_form = True
    options = {"sharp": float}

    def __init__(self, *, width, columns, seed=0, sharp=1.0):
        super().__init__(width=width, columns=columns, seed=seed)
        self.sharp = sharp
        self.means = torch.nn.Parameter(torch.zeros(len(columns), width))

    def forward(self, z, signals=None):
        return -self.sharp * torch.cdist(z, self.means)

    def solve(self, columns, *, only=None):
        with torch.no_grad():
            self.means.copy_(torch.stack([c.z.mean(0) for c in columns]))


class Loudest(redhost.plugins.Combiner):
    '''Adds the Δ of the expert with the largest weight, and no other.'''

    def forward(self, base, alpha, delta):
        top = alpha.argmax(-1)
        return base + delta[torch.arange(len(base)), top]


class Here:
    def run(self, jobs, *, inputs, workers):
        for job in jobs:
            yield redhost_ray.jobs.run_job(job, inputs)


class Classifier(redhost.Expert):
    def __init__(self, tensors, *, labels):
        super().__init__(space="labels", labels=labels)
        self.W, self.b = (torch.nn.Parameter(tensors[name]) for name in ("W", "b"))

    def forward(self, z):
        return z @ self.W.T + self.b


def classifier(manifest, tensors):
    return Classifier(tensors, labels=manifest.labels)


@hookimpl
def redhost_register_tasks(register):
    register("grades", OrdinalHead)


@hookimpl
def redhost_register_forms(register):
    register("acme-toy:classifier", classifier)


@hookimpl
def redhost_register_routers(register):
    register("nearest", redhost.plugins.router_factory(Nearest))


@hookimpl
def redhost_register_combiners(register):
    register("residual", Loudest)


@hookimpl
def redhost_register_engines(register):
    register("here", Here())
"""

SERVE = """
import sys
import redhost
from redhost_serve.client import Client
from redhost_serve.server import running

with running(redhost.Live.open(sys.argv[1])) as (url, _), Client(url) as client:
    print(client.infer(["red 3"]).body)
"""


LINEAR = ("--form", "linear")
"""The toy form reads all of z; by default an expert of text would read states and words."""


@pytest.fixture
def toy(make_venv, draft, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A real environment with the plugin's wheel, not trusted yet."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    wheel = draft("toy")
    wheel.dist, wheel.members = (
        "acme-toy",
        {
            "acme_toy/__init__.py": CODE.encode(),
            "acme_toy-0.1.0.dist-info/METADATA": (
                b"Metadata-Version: 2.1\nName: acme-toy\nVersion: 0.1.0\n"
            ),
            "acme_toy-0.1.0.dist-info/WHEEL": (
                b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            ),
            "acme_toy-0.1.0.dist-info/entry_points.txt": b"[redhost.plugins]\ntoy = acme_toy\n",
        },
    )
    venv = make_venv(tmp_path / "venv")
    assert venv.install(wheel.write(tmp_path)).returncode == 0
    return venv


def test_one_package_replaces_every_part_and_every_verb_works_with_it(
    toy, model_folder: Path, tmp_path: Path
) -> None:
    home, place = tmp_path / "home", toy.folder
    rows = [{"text": f"{w} {n}", "label": w} for w in ("red", "blue") for n in range(40)]
    (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*commands: tuple[str, ...]) -> list[str]:
        done = toy.session(*commands, home=home)
        assert [(code, out, err) for code, out, err in done if code] == []
        return [out for _, out, _ in done]

    run(
        ("trust", "acme-toy"),
        ("new-backbone", "b", "--from", f"hf:{model_folder}", "--task", "grades"),
        ("check", "red-backbone-b"),
        ("pack", "red-backbone-b", "--out", "wheels"),
    )
    [backbone] = (place / "wheels").glob("*.whl")
    assert toy.install(backbone).returncode == 0
    run(
        ("new-expert", "x", "--backbone", "b", *LINEAR),
        ("train-expert", "red-expert-x", "--data", "rows.jsonl", "--backbone", "b"),
    )
    manifest = place / "red-expert-x/src/red_expert_x/expert.json"
    written = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**written, "form": "acme-toy:classifier"}))
    checked, *_ = run(
        ("check", "red-expert-x", "--backbone", "b", "--engine", "here"),
        ("pack", "red-expert-x", "--out", "wheels", "--backbone", "b"),
    )
    assert "ok" in checked
    [expert] = (place / "wheels").glob("red_expert_x*.whl")
    router = "nearest:sharp=2"
    _, composed, evaluated, predicted = run(
        ("add", str(expert), "--backbone", "b", "--router", router, "--accept"),
        ("recompose", "--backbone", "b", "--router", router, "--accept", "--json"),
        ("evaluate", "--data", "rows.jsonl", "--json"),
        ("predict", "--json", "red 3"),
    )
    receipt = json.loads(composed)
    assert (receipt["router"]["kind"], [*receipt["experts"]]) == (router, ["x"])
    record = Generations(home).load(receipt["generation"])
    assert record.providers.keys() == {"acme-toy"}
    assert json.loads(evaluated)["overall"] > 0.9
    assert json.loads(predicted)[0]["label"] == "red"
    command = warm_command("-c", SERVE, str(home), python=toy.python)
    served = subprocess.run(command, check=True, capture_output=True, text=True, cwd=place)
    assert "'red'" in served.stdout


def test_no_trust_no_part(toy, model_folder: Path, tmp_path: Path) -> None:
    made = ("new-backbone", "b", "--from", f"hf:{model_folder}", "--task", "grades")
    [(code, _, err)] = toy.session(made, home=tmp_path / "home")
    assert code == 2 and "Not trusted yet: acme-toy" in err
