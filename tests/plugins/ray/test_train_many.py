"""Many experts from a plan: the same bytes as one by one, each finished one cached."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redhost_author
import redhost_ray.jobs
from redhost_author.project import package_in, read_plan, write_plan
from redhost_author.testing import backbone_project
from redhost_author.training.context import open_for_training
from redhost_author.training.data import split_rows
from redhost_author.training.expert import ExpertSettings
from redhost_author.training.recipes import split_for, train_package, train_project
from redhost_ray.local import LocalEngine
from redhost_ray.train_many import read_plan_file, train_many

import redhost
from redhost.core.training.rows import read_table
from redhost.core.types import write_rows
from redhost.registry.home.composition import LOCK, BackboneRecord, LockedRouter, LockFile
from redhost.registry.package.discover import from_folder
from redhost.registry.package.manifest import dumps

NAMES = ("sun", "moon", "star")


class Counting:
    """The local engine, remembering the jobs it started."""

    def __init__(self, *, stop_after: int | None = None) -> None:
        self.started: list[str] = []
        self.stop_after = stop_after

    def run(self, jobs, *, inputs, workers):
        self.started += [job.arguments["plan"]["id"] for job in jobs]
        results = LocalEngine().run(jobs, inputs=inputs, workers=workers)
        for n, result in enumerate(results):
            if n == self.stop_after:
                raise KeyboardInterrupt
            yield result


@pytest.fixture
def plan(tmp_path: Path, environment, backbone_folder) -> Path:
    """Three projects with their data, and a plan that trains them."""
    environment.install(backbone_folder.parents[1])
    lines = []
    for name in NAMES:
        project = tmp_path / f"red-expert-{name}"
        redhost_author.write_project(project, kind="expert", package_id=name, summary=name)
        write_plan(project, redhost_author.ExpertPlan(id=name, backbone="toy", rank=4))
        rows = [redhost.Row(text=f"{name} {n} up", label=f"{name}{n % 2}") for n in range(60)]
        (tmp_path / f"{name}.jsonl").write_bytes(write_rows(rows))
        lines.append({"dir": project.name, "data": f"{name}.jsonl", "epochs": 3, "seed": 1})
    path = tmp_path / "plan.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def contents(plan: Path) -> dict[str, bytes]:
    return {
        p.relative_to(plan.parent).as_posix(): p.read_bytes()
        for p in plan.parent.glob("red-expert-*/src/*/*")
    }


def train(plan: Path, *, engine=None, workers: int = 1, cache=None, **options):
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=engine or LocalEngine(), workers=workers)
    lines = read_plan_file(plan)
    return train_many(lines, pool=pool, plugins=redhost.plugins.Plugins(()), cache=cache, **options)


def test_any_number_of_workers_writes_the_bytes_of_one_by_one(plan, backbone_folder) -> None:
    context = open_for_training(backbone_folder)
    for name in NAMES:
        project = plan.parent / f"red-expert-{name}"
        splits = split_rows(read_table(plan.parent / f"{name}.jsonl"))
        settings = ExpertSettings(space="labels", rank=4, epochs=3, seed=1)
        train_package(project, read_plan(project), splits, context=context, settings=settings)
    alone = contents(plan)
    assert len(alone) == 3 * 5
    for workers in (1, 2):
        for path in plan.parent.glob("red-expert-*/src/*/expert.*"):
            path.unlink()
        done = train(plan, workers=workers)
        assert [x.error for x in done] == [None] * 3 and contents(plan) == alone
        assert [x.manifest.id for x in done] == list(NAMES)


def test_a_card_that_is_replaced_leaves_no_text_behind(plan, tmp_path) -> None:
    path = tmp_path / "red-expert-sun" / "pyproject.toml"
    plain = path.read_text()
    for card in ("texts", "statistics"):
        path.write_text(f'{plain}card = "{card}"\n')
        train(plan)
    cards = {p.name for p in package_in(path.parent).glob("card.*")}
    assert cards == {"card.safetensors"}


def test_the_lock_of_a_plans_question_names_its_backbone(plan, tmp_path, environment) -> None:
    environment.install(backbone_project(tmp_path / "red-backbone-tiny-random"))
    path = tmp_path / "red-expert-sun" / "pyproject.toml"
    path.write_text(path.read_text().replace('backbone = "toy"', 'question = "parity"'))
    plan.write_text(plan.read_text().splitlines()[0])
    lock = LockFile(
        backbone=BackboneRecord(id="toy", fingerprint="0" * 64),
        experts={},
        router=LockedRouter(kind="linear", level="full", digest="0" * 64, seed=0),
    )
    (tmp_path / "home/questions/parity").mkdir(parents=True)
    (tmp_path / "home/questions/parity" / LOCK).write_bytes(dumps(lock))
    [done] = train(plan, home=tmp_path / "home")
    assert done.manifest.backbone.name == "toy"


def test_an_adapter_is_trained_as_train_expert_trains_it(plan, backbone_folder) -> None:
    """No line says for how many epochs: the recipe of its form does."""
    plan.write_text('{"dir": "red-expert-sun", "data": "sun.jsonl"}')
    project, home = plan.parent / "red-expert-sun", plan.parent / "home"
    path, package = project / "pyproject.toml", from_folder(backbone_folder)
    path.write_text(path.read_text().replace("rank = 4", 'rank = 2\nblocks = 1\nform = "lora"'))
    rows = read_table(plan.parent / "sun.jsonl")
    train_project(project, split_for(package, rows), package=package, home=home)
    alone = contents(plan)
    for name in ("adapter_model.safetensors", "expert.json"):
        (package_in(project) / name).unlink()
    assert train(plan)[0].error is None and contents(plan) == alone


def test_a_stopped_run_goes_on_and_trains_nothing_twice(plan, tmp_path) -> None:
    cache = redhost_ray.jobs.JobCache(tmp_path / "jobs")
    with pytest.raises(KeyboardInterrupt):
        train(plan, engine=Counting(stop_after=1), cache=cache)
    [first] = [
        n for n in NAMES if (package_in(tmp_path / f"red-expert-{n}") / "expert.json").is_file()
    ]
    engine = Counting()
    train(plan, engine=engine, cache=cache)
    assert sorted(engine.started) == sorted(set(NAMES) - {first})
    again = Counting()
    train(plan, engine=again, cache=cache)
    assert again.started == []


def test_what_one_depends_on_trains_that_one_again(plan, tmp_path) -> None:
    cache = redhost_ray.jobs.JobCache(tmp_path / "jobs")
    train(plan, cache=cache)
    with (tmp_path / "moon.jsonl").open("ab") as file:
        file.write(write_rows([redhost.Row(text="moon 99 up", label="moon1")]))
    plan.write_text(
        plan.read_text().replace('"star.jsonl", "epochs": 3', '"star.jsonl", "epochs": 2')
    )
    engine = Counting()
    train(plan, engine=engine, cache=cache)
    assert sorted(engine.started) == ["moon", "star"]


def test_one_that_cannot_be_trained_is_named_and_the_others_are(plan, tmp_path) -> None:
    rows = [redhost.Row(text=f"moon {n}", label="one") for n in range(20)]
    (tmp_path / "moon.jsonl").write_bytes(write_rows(rows))
    done = train(plan)
    assert [x.error is None for x in done] == [True, False, True]
    reason = "red-expert-moon (expert 'moon'): the data has one label only"
    assert reason in str(done[1].error)
    assert not (package_in(tmp_path / "red-expert-moon") / "expert.json").exists()


def test_progress_counts_experts(plan) -> None:
    seen: list[tuple[int, int]] = []
    train(plan, progress=lambda *x: seen.append(x))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_plugin_that_makes_backbones_is_refused(plan, environment, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    code = (
        "import redhost\n@redhost.hookimpl\ndef redhost_register_backbones(register):\n"
        "    for kind in ('carried', 'hub', 'file'):\n        register(kind, dict)\n"
    )
    environment.install_code("own", {"__init__.py": code}, {"redhost.plugins": "o = own"})
    from redhost.registry.environment import trust

    trust.trust("own")
    pool = redhost_ray.jobs.WorkerPool(name="c", engine=LocalEngine(), workers=1)
    with pytest.raises(redhost.errors.PluginError, match="plugin 'own' makes backbones"):
        train_many(read_plan_file(plan), pool=pool, plugins=redhost.plugins.Plugins())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no lines"),
        ("{}\n", "line 1: expected a JSON object with dir, data"),
        ('{"dir": "a", "data": "d", "sead": 1}\n', "unknown field `sead`"),
        ('{"dir": "a", "data": "d"}\n{"dir": "./a", "data": "e"}\n', "trains ./a twice"),
        ('{"dir": "a", "data": "d", "epochs": 0}\n', ">= 1"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_one_line(tmp_path, text, message) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_text(text)
    with pytest.raises(redhost.UsageError) as e:
        read_plan_file(path)
    assert message in str(e.value)


def test_paths_of_a_plan_start_where_it_lies(tmp_path) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_text('{"dir": "a", "data": "d", "valid": "/v"}\n')
    [line] = read_plan_file(path)
    assert (line.dir, line.data, line.valid) == (f"{tmp_path}/a", f"{tmp_path}/d", "/v")
