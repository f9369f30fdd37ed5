"""The command line: what it imports, what it prints, how it exits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from warm_start import warm_command

import redhost
from redhost.cli import HOMELESS, KNOWN, cli, main
from redhost.core.backbones.backbone import Backbone

SHIPPED = ["range1", "range2", "range3", "range4", "range5"]


def run(
    *arguments: str,
    home: Path,
    code: int = 0,
    stdin: str | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    done = subprocess.run(
        warm_command("-m", "redhost", *arguments),
        check=False,
        capture_output=True,
        text=True,
        input=stdin,
        cwd=home.parent,
        env={**os.environ, "REDHOST_HOME": str(home), **(env or {})},
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the shipped experts composed, by the command."""
    home = tmp_path_factory.mktemp("composed") / "home"
    receipt = json.loads(run("recompose", "--json", home=home).stdout)
    assert receipt["generation"] == 1
    return home


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr."""
    with pytest.raises(SystemExit) as e:
        main(arguments)
    out, err = capsys.readouterr()
    return int(e.value.code or 0), out, err


LIGHT = [
    ["--help"],
    [],
    ["list-experts"],
    ["list-experts", "--json"],
    ["status"],
    ["history"],
    ["schema"],
    ["schema", "backbone"],
    ["recompose", "--help"],
    ["generate", "--help"],
    ["--version"],
]


@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_light_commands_import_neither_torch_nor_any_package(composed, arguments) -> None:
    code = (
        "import sys\nfrom redhost.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as e: assert not e.code, e.code\n"
        "heavy = {'torch', 'transformers'} & sys.modules.keys()\n"
        "packages = {m for m in sys.modules if m.startswith('red_')}\n"
        "sys.exit(str(heavy | packages) if heavy | packages else 0)"
    )
    run_code(code, composed)
    run_code(code, composed)  # and again, with verdicts remembered


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "What is 1 plus 2?"],
        ["recompose", "--dry-run", "--router", "linear"],
        ["train-expert", "red-expert-one", "--data", "rows.jsonl", "--epochs", "1"],
    ],
    ids=" ".join,
)
def test_what_computes_imports_no_transformers_and_nothing_it_does_not_need(
    composed, tmp_path, monkeypatch, capsys, arguments
) -> None:
    """Importing transformers' models takes longer than all else that a cold predict does."""
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": f"one {n}", "label": "ab"[n % 2]}) for n in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    assert call(capsys, "new-expert", "one", "--backbone", "tiny")[0] == 0
    heavy = "{'transformers', 'scipy', 'sympy', 'torch._dynamo', 'pandas', 'sklearn'}"
    code = (
        "import sys\nfrom redhost.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as e: assert not e.code, e.code\n"
        f"found = {heavy} & sys.modules.keys()\n"
        "packages = {m for m in sys.modules if m.startswith('red_')}\n"
        "sys.exit(str(found | packages) if found | packages else 'torch' not in sys.modules)"
    )
    run_code(code, composed)


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--data", "{rows}"],
        ["evaluate", "--data", "{good}", "--domain-field", "owner"],
        ["evaluate", "--outside", "{none}"],
        ["sweep", "--data", "{rows}"],
        ["merge", "one", "--data", "{none}"],
        ["train-expert", "{project}", "--backbone", "tiny", "--data", "{rows}"],
        [
            "train-expert",
            "{project}",
            "--backbone",
            "tiny",
            "--data",
            "{good}",
            "--valid",
            "{rows}",
        ],
        ["new-backbone", "one", "--from", "hf:{none}", "--data", "{rows}"],
        ["new-backbone", "one", "--from", "hf:{none}", "--background", "{none}"],
    ],
    ids=" ".join,
)
def test_a_wrong_file_is_reported_before_torch_is_loaded(composed, tmp_path, arguments) -> None:
    """A wrong name, or a column that is called otherwise, is no reason to wait for a backbone."""
    paths = {name: tmp_path / name for name in ("rows", "good", "none", "project")}
    paths["rows"].write_text("sentence,intent\nx,a\n")
    paths["good"].write_text("text,label\nx,a\n")
    paths["project"].mkdir()
    (paths["project"] / "pyproject.toml").write_text('[tool.redhost.expert]\nid = "one"\n')
    command = [a.format(**paths) for a in arguments]
    code = (
        "import sys\nfrom redhost.cli import main\n"
        f"try: main({command!r})\nexcept SystemExit as e: assert e.code == 2, e.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    err = run_code(code, composed)
    assert err.count("\n") == 1 and any(str(p) in err for p in paths.values())
    if "{rows}" in arguments:
        assert "'sentence', 'intent'" in err and "--text-field" in err


def run_code(code: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "REDHOST_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_importing_redhost_does_not_import_torch() -> None:
    code = "import sys, redhost; sys.exit('torch' in sys.modules or 'click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_public_name_can_be_had() -> None:
    import redhost

    assert sorted(redhost.__all__) == sorted(set(redhost.__all__))
    assert all(getattr(redhost, name) is not None for name in redhost.__all__)
    with pytest.raises(AttributeError, match="attribute nothing"):
        _ = redhost.nothing


def test_list_experts_never_imports_a_package_that_raises(environment, tmp_path) -> None:
    import importlib.util
    import shutil

    origin = importlib.util.find_spec("red_expert_range1").origin
    folder = environment.folder / "raising"
    shutil.copytree(Path(origin).parent, folder)
    (folder / "__init__.py").write_text("raise SystemExit('imported')")
    manifest = json.loads((folder / "expert.json").read_text())
    (folder / "expert.json").write_text(json.dumps({**manifest, "id": "raising"}))
    environment.write_info("raising", "1.0", "raising", {"redhost.experts": "raising = raising"})
    done = run(
        "list-experts",
        "--json",
        home=tmp_path / "home",
        env={"PYTHONPATH": str(environment.folder)},
    )
    assert {x["id"]: x["state"] for x in json.loads(done.stdout)}["raising"] == "enabled"


def test_list_experts_json_has_the_promised_keys(composed) -> None:
    found = json.loads(run("list-experts", "--json", home=composed).stdout)
    assert [x["id"] for x in found] == SHIPPED
    for x in found:
        assert set(x) == {
            "id",
            "dist",
            "version",
            "state",
            "code",
            "reason",
            "hint",
            "form",
            "rank",
            "writes",
            "backbone",
            "question",
            "editable",
        }
        assert x["state"] == "attached" and x["code"] is None


def test_receipt_json_has_the_promised_keys(composed) -> None:
    receipt = json.loads(run("recompose", "--dry-run", "--json", home=composed).stdout)
    assert {
        "generation",
        "parent",
        "router",
        "backbone",
        "experts",
        "left_out",
        "withdrawn",
        "not_gated",
        "accuracy",
        "seconds",
        "seed",
    } <= set(receipt)
    assert {"kind", "level", "seconds", "rows", "digest"} <= set(receipt["router"])
    assert receipt["backbone"]["before"] == receipt["backbone"]["after"]
    assert {"before", "after", "overall", "oracle"} <= set(receipt["accuracy"])
    assert receipt["generation"] is None and set(receipt["experts"]) == set(SHIPPED)


def test_predict_answers_with_weights(composed) -> None:
    done = run("predict", "--json", "What is 37 plus 12?", home=composed)
    [answer] = json.loads(done.stdout)
    assert set(answer) == {
        *("input", "label", "probability", "value", "weights", "generation", "cut"),
        *("declined", "labels", "scores", "spans", "by_expert"),
    }
    assert answer["label"] == "49" and answer["generation"] == 1
    assert max(answer["weights"], key=answer["weights"].get) == "range3"


def test_predict_reads_standard_input(composed) -> None:
    done = run("predict", "-", home=composed, stdin="What is 1 plus 2?\n\nWhat is 50 plus 50?\n")
    assert "→ 3 " in done.stdout and "→ 100 " in done.stdout


def test_evaluate_json_has_the_promised_keys(composed, tmp_path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"text": "What is 3 plus 4?", "label": "7", "domain": "range1"}\n')
    result = json.loads(run("evaluate", "--json", "--data", str(data), home=composed).stdout)
    assert {"overall", "macro", "worst", "domains", "oracle", "baselines", "rows"} <= set(result)
    assert {"backbone", "best_single", "uniform", "centroid", "hard"} <= set(result["baselines"])
    assert result["rows"] == 1 and set(result["domains"]) == {"range1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '{"text": "a", "label": "1"}\n{"text": "b"}\n',
            "line 2: expected a label in 'label', found no such field",
        ),
        ("not json\n", "line 1: expected a JSON object"),
        ("", "has no rows"),
    ],
)
def test_bad_rows_are_named_by_their_line(composed, tmp_path, capsys, text, words) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text(text)
    code, _, err = call(capsys, "evaluate", "--home", str(composed), "--data", str(data))
    assert code == 2 and words in err and err.count("\n") == 1


def test_a_label_that_nobody_answers_is_named_with_its_row(composed, tmp_path, capsys) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\nWhat is 1 plus 1?,2\nWhat is 1 plus 2?,3o\n")
    evaluate = ("evaluate", "--home", str(composed), "--data", str(data))
    code, out, _ = call(capsys, *evaluate)
    assert code == 0 and "1 of 2 rows" in out and "row 2: '3o'" in out and "Did you mean" in out
    data.write_text("text,label\nWhat is 1 plus 1?,2\nhello,none\n")
    assert "a label that no expert has" not in call(capsys, *evaluate)[1]


def test_check_passes_what_is_sound(composed) -> None:
    found = json.loads(run("check", "--json", "range3", home=composed).stdout)
    assert found == [{"target": "range3", "ok": True, "violations": []}]


def test_check_takes_folders_and_names_every_violation(composed, tmp_path) -> None:
    import importlib.util
    import shutil

    origin = Path(importlib.util.find_spec("red_expert_range2").origin)
    folder = tmp_path / "copy"
    shutil.copytree(origin.parent, folder)
    weights = folder / "expert.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    done = run("check", "--json", str(folder), home=composed, code=1)
    [report] = json.loads(done.stdout)
    assert not report["ok"]
    assert {"field", "expected", "found", "hint"} <= set(report["violations"][0])


def test_unknown_ids_are_suggested(composed, capsys) -> None:
    code, _, err = call(capsys, "check", "rnage3", "--home", str(composed))
    assert code == 2
    assert "unknown expert 'rnage3'. Did you mean 'range3'? Known: range1, range2" in err


def test_the_version_needs_no_metadata(capsys, monkeypatch) -> None:
    """A frozen program has none, and an interrupted upgrade leaves a folder without any."""

    def version(name: str) -> None:
        return None

    monkeypatch.setattr("importlib.metadata.version", version)
    with pytest.raises(SystemExit) as e:
        main(["--version"])
    assert (e.value.code or 0, capsys.readouterr().out) == (0, "redhost, version 0.1.0\n")


def test_unknown_commands_are_suggested(capsys) -> None:
    code, _, err = call(capsys, "recompse")
    assert code == 2 and "Did you mean 'recompose'?" in err


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (("-v", "add", "x.whl"), "; no generation is half published"),
        (("train-expert", "x"), "; the same command goes on where it stopped"),
        (
            ("predict", "--in", "a.csv", "--out=b.csv"),
            "; the same command goes on where it stopped",
        ),
        (("predict", "x"), ""),
        (("new-backbone", "x"), ""),
    ],
)
def test_ctrl_c_says_what_is_so_of_the_command(capsys, monkeypatch, arguments, known) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupt)
    assert call(capsys, *arguments) == (130, "", f"redhost: stopped{known}\n")


def test_nothing_composed_is_exit_3(tmp_path, capsys) -> None:
    code, _, err = call(capsys, "predict", "x", "--home", str(tmp_path / "none"))
    assert code == 3
    assert err.startswith("redhost: nothing is composed in ") and err.count("\n") == 1


@pytest.mark.parametrize("command", [["rollback"], ["predict", "x"]])
@pytest.mark.parametrize("form", ["--home {}", "--home={}"])
def test_commands_in_an_error_act_on_the_home_that_was_typed(
    tmp_path, capsys, monkeypatch, command, form
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "a home"
    typed = [part.format(place) for part in form.split(" ")]
    code, _, err = call(capsys, *command, *typed)
    assert code in {2, 3}
    proposed = re.findall(r"'redhost (.*?)(?:'(?= |,|\.|;)|$)", err)
    assert proposed and all(one.count(f"--home '{place}'") == 1 for one in proposed)
    assert "--home" not in call(capsys, *command)[2]


def test_what_acts_on_no_home_is_known_before_its_plugin_is_loaded() -> None:
    def options(name: str) -> set[str | None]:
        context = click.Context(cli)
        context.meta["redhost.typed"] = name  # else a stub stands for it
        command = cli.get_command(context, name)
        assert command is not None, name
        return {p.name for p in command.params}

    assert {name for name in KNOWN if "home" not in options(name)} == HOMELESS


def test_debug_shows_the_traceback(tmp_path, capsys) -> None:
    _, _, err = call(capsys, "--debug", "rollback", "--home", str(tmp_path / "none"))
    assert "Traceback" in err


def test_rollback_status_history_and_gc(composed, tmp_path, capsys) -> None:
    import shutil

    home = tmp_path / "copy"
    shutil.copytree(composed, home)
    at = ("--home", str(home))
    assert call(capsys, "recompose", "--router", "centroid", "--accept", *at)[0] == 0
    status = json.loads(call(capsys, "status", "--json", *at)[1])
    assert (status["generation"], status["parent"], status["drift"]) == (2, 1, [])
    assert [r["number"] for r in json.loads(call(capsys, "history", "--json", *at)[1])] == [1, 2]
    assert json.loads(call(capsys, "rollback", "--json", *at)[1])["generation"] == 1
    code, _, err = call(capsys, "rollback", "7", *at)
    assert code == 2 and "unknown generation '7'" in err
    purged = json.loads(call(capsys, "gc", "--keep", "1", "--json", *at)[1])
    assert purged["generations"] == [2]


def test_disable_and_enable_show_in_list_and_status(composed, tmp_path, capsys) -> None:
    import shutil

    home = tmp_path / "copy"
    shutil.copytree(composed, home)
    at = ("--home", str(home))
    call(capsys, "disable", "range2", *at)
    listed = json.loads(call(capsys, "list-experts", "--json", *at)[1])
    assert {x["id"]: x["code"] for x in listed}["range2"] == "disabled"
    assert "drift       range2: disabled, build locked" in call(capsys, "status", *at)[1]
    assert "was disabled already" in call(capsys, "disable", "range2", *at)[1]
    call(capsys, "enable", "range2", *at)
    assert "drift" not in call(capsys, "status", *at)[1]


DESTRUCTED = """
import time
import click

class Cut:
    def __del__(self):
        raise KeyboardInterrupt  # which Python passes over

@click.command()
def linger():
    Cut()
    time.sleep(20)
"""


def test_ctrl_c_in_a_destructor_ends_the_command_without_a_traceback(environment, capsys) -> None:
    entries = {"redhost.commands": "linger = lingerer:linger"}
    environment.install_code("lingerer", {"__init__.py": DESTRUCTED}, entries)
    assert call(capsys, "linger") == (130, "", "\nredhost: stopped\n")


def test_bare_redhost_says_where_one_stands(composed, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("REDHOST_HOME", str(composed))
    out = call(capsys)[1]
    assert "composed   generation 1" in out and 'next: redhost predict "What is 37' in out
    assert len(out.splitlines()) <= 10
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "none"))
    assert "next: redhost recompose" in call(capsys)[1]


def test_bare_redhost_suggests_arithmetic_of_the_demo_alone(
    redhost_environment, redhost_fake_expert, tmp_path, capsys, monkeypatch
) -> None:
    redhost_fake_expert("apples")
    redhost.Host.open(tmp_path / "home", backbone="tiny-random").recompose()
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    assert 'next: redhost predict "TEXT"' in call(capsys)[1]


COMMAND = "import click\n\n@click.command()\ndef hello():\n    click.echo('hello')\n"


def test_commands_of_packages_are_listed_without_being_imported(environment) -> None:
    environment.install_code(
        "shouter",
        {"__init__.py": "raise SystemExit('imported')"},
        {"redhost.commands": "shout = shouter:hello"},
    )
    help_text = CliRunner().invoke(cli, ["--help"]).output
    assert "shout" in help_text and "Made for a test." in help_text


def test_commands_of_packages_run_when_typed(environment, capsys) -> None:
    environment.install_code(
        "greeter", {"__init__.py": COMMAND}, {"redhost.commands": "hello = greeter:hello"}
    )
    assert call(capsys, "hello")[:2] == (0, "hello\n")


def test_a_broken_command_is_one_clear_line(environment, capsys) -> None:
    environment.install_code(
        "shouter",
        {"__init__.py": "raise RuntimeError('no voice')"},
        {"redhost.commands": "shout = shouter:hello"},
    )
    code, _, err = call(capsys, "shout")
    assert code == 1 and "shouter 1.0 cannot be loaded: found RuntimeError: no voice" in err
    assert call(capsys, "--help")[0] == 0


def test_built_in_commands_win(environment, capsys) -> None:
    environment.install_code(
        "imposter", {"__init__.py": COMMAND}, {"redhost.commands": "schema = imposter:hello"}
    )
    assert "hello" not in call(capsys, "schema")[1]


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["serve"], "uvicorn", "redhost-serve"),
        (["gateway"], "httpx2", "redhost-gateway"),
        (["report", "page.html"], "jinja2", "redhost-report"),
        (["predict", "text"], "torch", "install redhost"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_one_line_says_what_to_install_where_dependencies_were_left_out(
    composed: Path, command: list[str], module: str, extra: str
) -> None:
    code = (
        f"import sys\nsys.modules[{module!r}] = None  # as pip leaves it with --no-deps\n"
        f"from redhost.cli import main\nmain({command!r})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=False,
        capture_output=True,
        text=True,
        cwd=composed.parent,
        env={**os.environ, "REDHOST_HOME": str(composed)},
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert f"command {command[0]!r} needs the module {module!r}" in done.stderr
    assert "Run: pip install" in done.stderr and done.stderr.endswith(f"{extra}\n")


def test_a_module_that_an_installed_package_lacks_is_a_mistake_of_its_author(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'json.nothing'", name="json.nothing")

    monkeypatch.setattr(cli.commands["status"], "callback", fail)
    with pytest.raises(ModuleNotFoundError, match=r"json\.nothing"):
        main(["status"])


def test_ctrl_c_while_a_backbone_is_made_names_no_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(Backbone, "from_package", interrupted)
    with pytest.raises(SystemExit) as e:
        main(["recompose", "--backbone", "tiny"])
    err = capsys.readouterr().err
    assert e.value.code == 130 and "plugin" not in err
    assert "redhost: stopped in the factory of backbone 'tiny'; no generation" in err


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(tmp_path) -> None:
    code = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Stop(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'click': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Stop())\n"
        "from redhost.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "redhost: stopped\n")
    [script] = metadata.entry_points(group="console_scripts", name="redhost")
    assert script.value == "redhost.__main__:main"
