"""new-workflow: what is written holds what a publisher asks for, and its steps run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from warm_start import warm_command

import redhost

Call = Callable[..., tuple[int, str, str]]
WORKFLOW = Path(".github/workflows/publish.yml")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project with a trained expert; copy it before changing it."""
    from redhost.cli import main

    folder = tmp_path_factory.mktemp("trained")
    rows = [{"text": f"{y} {n}", "label": y} for n in range(160) for y in ("hello", "goodbye")]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("REDHOST_CONFIG", str(folder / "config"))
        for words in (
            "new-expert mine --backbone tiny",
            "train-expert red-expert-mine --data rows.jsonl",
        ):
            with pytest.raises(SystemExit) as e:
                main(words.split())
            assert not e.value.code
    return folder / "red-expert-mine"


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commands that start in milliseconds, and do what those of this environment do."""
    folder = tmp_path_factory.mktemp("tools")
    for name, how in {"python": (), "redhost": ("-P", "-m", "redhost")}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(warm_command(*how))} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def project(trained: Path, folder: Path) -> Path:
    return Path(shutil.copytree(trained, folder / trained.name))


@pytest.fixture
def workflow(project: Path, call: Call) -> dict[str, Any]:
    code, out, _ = call("new-workflow", project.name)
    assert (code, out.splitlines()[0]) == (0, str(project.name / WORKFLOW))
    text = (project / WORKFLOW).read_text("utf-8")
    return yaml.load(text, yaml.BaseLoader)


def steps_of(workflow: Mapping[str, Any], *jobs: str) -> Iterator[dict[str, Any]]:
    for job in jobs or workflow["jobs"]:
        yield from workflow["jobs"][job]["steps"]


def test_it_runs_on_pull_requests_and_tags_of_versions(workflow: dict[str, Any]) -> None:
    assert workflow["on"] == {"pull_request": "", "push": {"tags": ["v*"]}}
    jobs = workflow["jobs"]
    assert {name: job.get("needs") for name, job in jobs.items()} == {
        "check": None,
        "build": "check",
        "publish": "build",  # skipped where that is skipped
    }
    assert jobs["build"]["if"] == "startsWith(github.ref, 'refs/tags/v')"
    assert "if" not in jobs["check"]


def test_it_has_the_least_permissions_and_every_action_is_pinned(workflow: dict[str, Any]) -> None:
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in workflow["jobs"].items()} == {
        "check": {"contents": "read"},
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
    }
    used = [step["uses"] for step in steps_of(workflow) if "uses" in step]
    assert all(re.fullmatch(r"[a-z-]+/[a-z-]+@[0-9a-f]{40}", name) for name in used)
    publish = workflow["jobs"]["publish"]
    assert publish["environment"] == "pypi" and not any("run" in s for s in publish["steps"])
    assert publish["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")
    checkouts = [s for s in steps_of(workflow) if s.get("uses", "").startswith("actions/checkout@")]
    assert [s["with"]["persist-credentials"] for s in checkouts] == ["false"] * 2


def test_secrets_and_values_of_the_service_enter_no_shell_as_text(workflow: dict[str, Any]) -> None:
    assert not [s for s in steps_of(workflow) if "${{" in s.get("run", "")]
    keyed = [s["name"] for s in steps_of(workflow) if "secrets." in json.dumps(s)]
    assert keyed == ["Pack"]
    assert "secrets." not in json.dumps(workflow["jobs"]["check"])


def test_it_trains_nothing_and_installs_what_made_the_expert(
    workflow: dict[str, Any], project: Path
) -> None:
    commands = [s["run"] for s in steps_of(workflow) if "run" in s]
    assert not [c for c in commands if re.search(r"redhost (train|new-expert)", c)]
    needed = f"'redhost[author,sign]=={redhost.__version__}' red-backbone-tiny==0.1.0"
    form = json.loads(next(project.glob("src/*/expert.json")).read_text("utf-8"))["form"]
    installs = {c for c in commands if "pip install" in c}
    assert installs == {f"python -m pip install {needed}"} and form != "words"


def run(step: Mapping[str, Any], project: Path, runner: Path, tools: Path, **values: str) -> Any:
    """Run a step as the service does: bash, in the root of the repository."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("REDHOST", "GITHUB"))}
    script = runner / "step.sh"
    script.write_text(step["run"], "utf-8")
    given = {
        "PATH": f"{tools}{os.pathsep}{env['PATH']}",
        "RUNNER_TEMP": str(runner),
        "REDHOST_CONFIG": str(runner / "config"),
        "GITHUB_REF_NAME": "v0.1.0",
        "PIP_NO_INDEX": "1",  # all that it installs is here: anything else fails
        "OMP_NUM_THREADS": "1",
        **{name: values[name] for name in step.get("env", {})},
    }
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
        cwd=project,
        env={**env, **given, **{k: v for k, v in values.items() if k.startswith("GITHUB")}},
        check=False,
        capture_output=True,
        text=True,
    )


def test_every_step_that_needs_no_service_runs_and_the_wheel_is_signed(
    workflow: dict[str, Any], project: Path, folder: Path, tools: Path, call: Call
) -> None:
    assert call("new-key", "author.pem")[0] == 0
    runner = folder / "runner"
    runner.mkdir()
    ran = []
    for step in steps_of(workflow, "check", "build"):
        if "run" in step:
            key = Path("author.pem").read_text("utf-8")
            done = run(step, project, runner, tools, SIGNING_KEY=key)
            assert done.returncode == 0, f"{step['name']}\n{done.stdout}{done.stderr}"
            ran.append(step["name"])
    assert ran == ["Install", "Check", "Compare tag and version", "Install", "Pack"]
    assert not (runner / "author.pem").exists()
    [wheel] = (runner / "dist").glob("*.whl")
    assert [p.name for p in (runner / "dist").glob("*.whl.sig")] == [f"{wheel.name}.sig"]
    assert call("check", str(wheel), "--key", "author.pub.pem")[0] == 0
    paths = [s["with"]["path"] for s in steps_of(workflow, "build") if "path" in s.get("with", {})]
    assert paths == [f"${{{{ runner.temp }}}}/dist/*.{end}" for end in ("whl", "whl.sig")]


def test_without_a_key_the_wheel_is_not_signed(
    workflow: dict[str, Any], project: Path, folder: Path, tools: Path
) -> None:
    [pack] = [s for s in steps_of(workflow) if s.get("name") == "Pack"]
    done = run(pack, project, folder, tools, SIGNING_KEY="")
    assert done.returncode == 0, done.stderr
    assert [p.suffix for p in (folder / "dist").iterdir()] == [".whl"]


def test_a_tag_of_another_version_stops_it(
    workflow: dict[str, Any], project: Path, folder: Path, tools: Path
) -> None:
    [compare] = [s for s in steps_of(workflow) if s.get("name") == "Compare tag and version"]
    done = run(compare, project, folder, tools, GITHUB_REF_NAME="v0.2.0")
    assert done.returncode == 1 and "expected v0.1.0" in done.stdout


def test_a_damaged_expert_stops_it(
    workflow: dict[str, Any], project: Path, folder: Path, tools: Path
) -> None:
    [check] = [s for s in steps_of(workflow) if s.get("name") == "Check"]
    [weights] = project.glob("src/*/expert.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert run(check, project, folder, tools).returncode == 1


def test_a_workflow_is_replaced_only_with_force(
    workflow: dict[str, Any], project: Path, call: Call
) -> None:
    (project / WORKFLOW).write_text("mine", "utf-8")
    code, out, err = call("new-workflow", project.name)
    assert (code, out) == (2, "") and "--force" in err
    assert (project / WORKFLOW).read_text("utf-8") == "mine"
    assert call("new-workflow", project.name, "--force")[0] == 0
    assert yaml.load((project / WORKFLOW).read_text("utf-8"), yaml.BaseLoader) == workflow


def test_a_project_that_cannot_be_published_yet_is_refused(project: Path, call: Call) -> None:
    code, out, _ = call("new-expert", "raw", "--backbone", "tiny")
    assert code == 0
    code, out, err = call("new-workflow", "red-expert-raw")
    assert (code, out) == (2, "") and "redhost train-expert red-expert-raw" in err
    [manifest] = project.glob("src/*/expert.json")
    manifest.write_text(manifest.read_text("utf-8").replace('"tiny"', '"other"'), "utf-8")
    code, out, err = call("new-workflow", project.name)
    assert code in {2, 3} and out == "" and "'other'" in err
    assert not (project / ".github").exists()


def test_a_project_below_the_root_of_a_repository_is_noticed(
    project: Path, folder: Path, call: Call
) -> None:
    (folder / ".git").mkdir()
    assert str(folder) in call("new-workflow", project.name)[1]
    (project / ".git").mkdir()
    assert "warning" not in call("new-workflow", project.name, "--force")[1]
