"""new-expert, train-expert and pack, for people."""

from __future__ import annotations

import errno
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.backbone.trial import BackboneTrial
from redhost_author.project import package_in
from redhost_author.testing import backbone_project

import redhost
from redhost.testing import tiny_backbone


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project of a second backbone, which answers nothing itself."""
    return backbone_project(tmp_path_factory.mktemp("other") / "red-backbone-tiny-random")


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder: three blocks, sixteen numbers wide."""
    return tiny_backbone(tmp_path_factory.mktemp("model"))


@pytest.fixture
def two(environment, other: Path) -> str:
    """Install it beside the one of the real environment; return its id."""
    environment.install(other)
    return "tiny-random"


def write_rows(path: Path, count: int = 80) -> str:
    """Write labelled rows: even numbers and odd ones."""
    rows = ({"text": f"number {n}", "label": "ab"[n % 2]} for n in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def manifest(project: str) -> dict:
    return json.loads((package_in(Path(project)) / "expert.json").read_text())


def test_every_command_of_an_author_takes_the_backbone_that_is_named(two, call, tmp_path) -> None:
    data, project = write_rows(tmp_path / "rows.jsonl"), "red-expert-odd"
    train = ("train-expert", project, "--data", data, "--epochs", "1")
    assert call("new-expert", "odd")[0] == 0
    code, _, err = call(*train)
    assert code == 3 and "Choose one with --backbone NAME" in err
    assert f'backbone = "NAME" in [tool.redhost.expert] of {Path(project, "pyproject.toml")}' in err
    assert call(*train, "--backbone", two)[0] == 0
    named = manifest(project)["backbone"]
    assert named["name"] == two
    assert call(*train, "--seed", "1")[0] == 0  # what was trained before names it
    assert manifest(project)["backbone"] == named
    assert call("pack", project)[0] == 0
    [report] = json.loads(call("check", "--strict", "--json", project)[1])
    assert "backbone" not in {v["field"] for v in report["violations"]}
    other = call("check", "--json", project, "--backbone", "tiny")
    assert other[0] == 1
    assert json.loads(other[1])[0]["violations"][0]["code"] == "backbone_mismatch"
    assert call("pack", project, "--backbone", "tiny")[0] == 1


def test_a_path_in_a_printed_command_is_one_word_for_a_shell(call, tmp_path) -> None:
    assert call("new-expert", "odd")[0] == 0
    (tmp_path / "sp ace").mkdir()
    project = shutil.move("red-expert-odd", tmp_path / "sp ace")
    data = write_rows(tmp_path / "rows.jsonl")
    out = call("train-expert", str(project), "--data", data, "--epochs", "1")[1]
    assert out.endswith(f"next: redhost pack '{project}'\n")
    out = call("pack", str(project))[1]
    assert f"next: redhost add '{project}/dist/red_expert_odd-" in out and out.endswith(".whl'\n")
    key = call("new-key", str(tmp_path / "sp ace" / "my key.pem"))[1]
    assert key.endswith(f"next: redhost pack DIR --sign '{tmp_path}/sp ace/my key.pem'\n")


def test_a_project_or_a_file_that_is_not_there_has_a_next_step(call) -> None:
    for command in (("pack", "nowhere"), ("train-expert", "nowhere", "--data", "x.jsonl")):
        code, _, err = call(*command)
        assert (code, err.count("\n")) == (2, 1)
        assert "'nowhere' does not exist. 'redhost new-expert NAME' makes one" in err
    assert call("new-expert", "odd")[0] == 0
    code, _, err = call("train-expert", "red-expert-odd", "--data", "nope.jsonl")
    assert code == 2 and "cannot read nope.jsonl: found No such file" in err
    assert err.endswith("Name a file of rows, or '-' for standard input.\n")


def test_a_backbone_that_is_not_installed_is_named(two, call) -> None:
    code, out, err = call("new-expert", "odd", "--backbone", "tiny-rendom")
    assert (code, out, err.count("\n")) == (2, "", 1) and not Path("red-expert-odd").exists()
    assert "backbone 'tiny-rendom' is not installed: expected " in err
    assert "Did you mean 'tiny-random'?" in err and "leave out --backbone" in err
    code, out, _ = call("new-expert", "even", "--backbone", two)
    assert code == 0 and "warning" not in out


def test_labels_that_look_alike_are_named_in_one_line(two, call, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    labels = ("Spam", "spam", " spam ", "not  spam", "not spam", "ham")
    rows = [{"text": f"number {n}", "label": labels[n % 6]} for n in range(240)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert call("new-expert", "odd", "--backbone", two)[0] == 0
    code, out, _ = call("train-expert", "red-expert-odd", "--data", str(path), "--epochs", "1")
    assert code == 0 and len(manifest("red-expert-odd")["labels"]) == 5
    [line] = [x for x in out.splitlines() if "differ in case or blanks alone" in x]
    assert line.startswith("warning    ")
    assert line.endswith(": 'Spam', 'not  spam', 'not spam', 'spam'")
    data = write_rows(path)  # control: a and b
    assert call("train-expert", "red-expert-odd", "--data", data, "--epochs", "1")[0] == 0
    assert "differ in case" not in call("train-expert", "red-expert-odd", "--data", data)[1]


def test_a_weight_file_is_held_to_its_own_backbone_when_packed(two, call, tmp_path) -> None:
    """Control of a pack that found several backbones and held the expert to none."""
    assert call("new-expert", "odd", "--backbone", two)[0] == 0
    data = write_rows(tmp_path / "rows.jsonl")
    assert call("train-expert", "red-expert-odd", "--data", data, "--epochs", "1")[0] == 0
    path = package_in(Path("red-expert-odd")) / "expert.json"
    changed = manifest("red-expert-odd")
    changed["backbone"]["fingerprint"] = "0" * 64
    path.write_text(json.dumps(changed))
    code, _, err = call("pack", "red-expert-odd")
    assert code == 1 and "fingerprint" in err


def test_pack_says_what_the_card_gives_away(two, call, tmp_path) -> None:
    data = write_rows(tmp_path / "rows.jsonl")
    lines = {}
    for name, options in (
        ("plain", ()),
        ("sums", ("--card", "statistics")),
        ("noisy", ("--card", "statistics", "--epsilon", "2", "--delta", "0.001")),
    ):
        assert call("new-expert", name, "--backbone", two, *options)[0] == 0
        trained = call("train-expert", f"red-expert-{name}", "--data", data, "--epochs", "1")
        assert trained[0] == 0
        assert ("gate rows say little" in trained[1]) == (name == "plain")  # the others show none
        column = {"plain": "card: gate", "sums": "aside: gate", "noisy": "aside: gate"}[name]
        assert column in trained[1]
        form = manifest(f"red-expert-{name}")["form"]
        assert f"; form {form}, trained on " in trained[1]
        assert ("card statistics (sums of all 80 rows)" in trained[1]) == (name != "plain")
        code, out, _ = call("pack", f"red-expert-{name}")
        assert code == 0
        [lines[name]] = [x for x in out.splitlines() if x.startswith("card of ")]
    assert len({*lines.values()}) == 3 and "(2, 0.001)" in lines["noisy"]
    noise = manifest("red-expert-noisy")["card"]["noise"]
    assert (noise["epsilon"], noise["delta"]) == (2.0, 0.001)
    assert "noise" not in manifest("red-expert-sums")["card"]


def test_pack_refuses_what_the_manifest_does_not_name(two, call, tmp_path) -> None:
    assert call("new-expert", "odd", "--backbone", two)[0] == 0
    data = write_rows(tmp_path / "rows.jsonl")
    assert call("train-expert", "red-expert-odd", "--data", data, "--epochs", "1")[0] == 0
    package = package_in(Path("red-expert-odd"))
    (package / "LICENSE").write_text("mine")
    assert call("pack", "red-expert-odd")[0] == 0
    (package / "card.jsonl").write_text("{}")
    code, out, err = call("pack", "red-expert-odd")
    assert code == 1 and not out
    assert "found card.jsonl. Move them out of the package's folder" in err


def test_pack_refuses_strangers_in_a_backbone_as_well(call, other, tmp_path) -> None:
    project = tmp_path / other.name
    shutil.copytree(other, project)
    assert call("pack", str(project))[0] == 0
    (package_in(project) / "rows.jsonl").write_text("{}")
    code, _, err = call("pack", str(project))
    assert code == 1 and "found rows.jsonl. " in err


def test_noise_without_a_card_of_sums_is_refused(two, call) -> None:
    code, _, err = call("new-expert", "odd", "--backbone", two, "--epsilon", "1")
    assert code == 2 and "--card statistics" in err and not Path("red-expert-odd").exists()


def test_training_tells_what_its_rows_are_too_few_or_too_uneven_for(two, call, tmp_path) -> None:
    assert call("new-expert", "odd", "--backbone", two)[0] == 0
    rows = [{"text": f"number {n}", "label": "often"} for n in range(40)]
    rows += [{"text": f"{n} " * 40, "label": "rare"} for n in range(3)]  # longer than 64 characters
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = ("train-expert", "red-expert-odd", "--data", str(data), "--epochs", "1")
    code, out, _ = call(*train)
    assert code == 0 and "rows by label" in out and "macro F1 " in out
    warnings = [line for line in out.splitlines() if line.startswith("warning    ")]
    assert len(warnings) == 4 and any("rare (" in w for w in warnings)
    assert warnings[-1] == "warning    3 of 43 texts cut after 64 tokens"
    metrics = manifest("red-expert-odd")["training"]["metrics"]
    assert f"macro F1 {metrics['macro_f1']:.3f} on rows set aside, which " in out


@pytest.mark.parametrize(
    ("spec", "width", "features"),
    [
        ("wide", 96, {"layers": [0, 3], "tokens": 64}),
        ("0,2+16", 48, {"layers": [0, 2], "tokens": 16}),
        ("1", 16, {"layers": [1], "tokens": 0}),
        ("last", 16, None),
    ],
)
def test_the_author_of_a_backbone_says_what_experts_read(
    call, small_model, tmp_path, monkeypatch, spec, width, features
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("new-backbone", "mine", "--from", f"hf:{small_model}", "--features", spec)[0] == 0
    found = json.loads((package_in(Path("red-backbone-mine")) / "backbone.json").read_text())
    assert (found["width"], found.get("features")) == (width, features)
    assert found["schema"] == "redhost.backbone/1"


@pytest.mark.parametrize("spec", ["", "0,", "first", "0,99", "0,0", "0+99999999"])
def test_what_no_backbone_has_is_refused(call, small_model, tmp_path, monkeypatch, spec) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call("new-backbone", "mine", "--from", f"hf:{small_model}", "--features", spec)
    assert code == 2 and len(err.strip().splitlines()) <= 4  # click shows the usage as well
    assert not Path("red-backbone-mine").exists()


@pytest.mark.parametrize("command", ["new-expert", "new-backbone"])
def test_a_disk_that_takes_no_project_is_one_line_and_leaves_nothing(
    call, small_model, monkeypatch, command
) -> None:
    def full(path: Path, *_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_text", full)
    source = ("--from", f"hf:{small_model}") if command == "new-backbone" else ()
    code, _, err = call(command, "odd", *source)
    assert code == 3 and "no space left" in err and "Traceback" not in err
    assert not list(Path().glob("red-*"))


class _Untried(BackboneTrial):
    """The trial of an author who wrote the package without one."""

    def run(self, package: Path, source: redhost.Backbone) -> None: ...


def test_a_backbone_that_cannot_encode_a_text_fails_its_check_by_name(
    call, small_model, tmp_path
) -> None:
    """Its files are what its manifest says; a letter stands for a row that is not there."""
    model = tmp_path / "model"
    shutil.copytree(small_model, model)
    rules = json.loads((model / "tokenizer.json").read_text())
    rules["model"]["vocab"]["m"] = 5000
    (model / "tokenizer.json").write_text(json.dumps(rules))
    for name, trial in (("tried", None), ("untried", _Untried())):
        project, source = Path(f"red-backbone-{name}"), f"hf:{model}"
        with suppress(redhost.UsageError):
            new_backbone(project, BackbonePlan(id=name, source=source), trial=trial)
    assert not Path("red-backbone-tried").exists()
    code, out, _ = call("check", "--json", "red-backbone-untried")
    [violation] = json.loads(out)[0]["violations"]
    assert (code, violation["code"]) == (1, "not_computable")
    assert "tokens" in violation["expected"]


def test_the_backbone_is_named_where_several_are_installed(two, call, tmp_path) -> None:
    _, out, _ = call("new-expert", "odd")
    assert "backbone   none yet: " in out and out.endswith("--data YOUR.jsonl --backbone NAME\n")
    assert "backbone" not in call("new-expert", "even", "--backbone", two)[1]
    Path("pyproject.toml").write_text(f'[tool.redhost]\nbackbone = "{two}"\n')
    _, out, _ = call("new-expert", "some")
    assert "backbone   red-backbone-tiny-random " in out and "--backbone" not in out


def test_forms_of_a_trusted_plugin_are_named_and_taken(call, environment, tmp_path) -> None:
    assert call("new-plugin", "bump", "--kind", "form")[0] == 0
    environment.install(tmp_path / "redhost-bump")
    code, _, err = call("new-expert", "odd", "--form", "bump")
    assert code == 2 and err.count("\n") == 1 and "Run 'redhost trust redhost-bump'." in err
    assert call("trust", "redhost-bump")[0] == 0
    code, _, err = call("new-expert", "odd", "--form", "bomp")
    assert code == 2 and "lora, words, redhost-bump:bump. Did you mean 'bump'?" in err
    assert call("new-expert", "odd", "--form", "bump")[0] == 0
    plan = Path("red-expert-odd/pyproject.toml")
    text = plan.read_text()
    assert 'form = "redhost-bump:bump"' in text
    data = write_rows(tmp_path / "rows.jsonl")
    train = ("train-expert", "red-expert-odd", "--data", data)
    for form, found in (
        ("bimp", "[tool.redhost.expert]: nothing trains a form 'bimp': expected one of residual"),
        ("redhost-bump:bimp", "Did you mean 'redhost-bump:bump'? Known: residual, linear, mlp"),
    ):
        plan.write_text(text.replace("redhost-bump:bump", form))
        code, _, err = call(*train)
        assert code in {1, 2} and err.count("\n") == 1 and found in err
    plan.write_text(text.replace("redhost-bump:bump", "bump"))  # for short
    assert call(*train)[0] == 0 and manifest("red-expert-odd")["form"] == "redhost-bump:bump"


def test_without_its_trust_every_verb_says_what_to_type(call, environment, tmp_path) -> None:
    trust = "redhost trust redhost-bump"
    assert call("new-plugin", "bump", "--kind", "form")[0] == 0
    environment.install(tmp_path / "redhost-bump")
    assert call("trust", "redhost-bump")[0] == 0
    assert call("new-expert", "odd", "--form", "bump")[0] == 0
    data = write_rows(tmp_path / "rows.jsonl", 160)
    assert call("train-expert", "red-expert-odd", "--data", data)[0] == 0
    environment.install(Path("red-expert-odd"))
    assert call("trust", "redhost-bump", "--revoke")[0] == 0
    assert f"'{trust}'" in call("list-experts")[1]
    assert call("recompose")[0] == 0  # without it, of which these say why:
    assert trust in call("why", "odd")[1] and trust in call("doctor")[1]
    assert f"Run '{trust}'" in call("check", "odd")[1]
    assert call("trust", "redhost-bump")[0] == 0 and call("recompose")[0] == 0
    assert "'redhost trust" not in call("list-experts")[1]
    assert call("trust", "redhost-bump", "--revoke")[0] == 0
    for verb in (("predict", "number 3"), ("recompose",), ("route", "number 3")):
        code, _, err = call(*verb)
        assert code == 1 and err.count("\n") == 1 and f"Run '{trust}'. Or compose" in err
    why = call("why", "odd")[1]
    assert "composed: but the plugin of its form is not trusted" in why and trust in why
    # The other way: without the expert.
    assert call("disable", "odd")[0] == 0
    assert call("recompose", "--accept")[0] == 0 and call("predict", "number 3")[0] == 0
    # The first way.
    assert call("enable", "odd")[0] == 0
    assert call("trust", "redhost-bump")[0] == 0 and "odd" in call("recompose")[1]


def test_few_gate_rows_are_counted_with_what_is_needed(two, call, tmp_path) -> None:
    assert call("new-expert", "odd", "--backbone", two)[0] == 0
    data = write_rows(tmp_path / "rows.jsonl")
    assert call("train-expert", "red-expert-odd", "--data", data, "--epochs", "1")[0] == 0
    code, out, _ = call("check", "--strict", "red-expert-odd", "--backbone", two)
    assert (
        code == 1 and "expected at least 32 gate rows, found 10 gate rows. Train it on 256" in out
    )
    data = write_rows(tmp_path / "rows.jsonl", 256)
    assert call("train-expert", "red-expert-odd", "--data", data, "--epochs", "1")[0] == 0
    assert "gate rows" not in call("check", "--strict", "red-expert-odd", "--backbone", two)[1]


TEAMS = {
    "mail": {"urgent": "answer today", "spam": "win a prize", "none": "see you soon"},
    "news": {"sport": "the match ended", "money": "the bank paid"},
    "chat": {"greeting": "good morning", "farewell": "good night"},
}
"""Three teams with labels of their own, of which one is called none."""

FORMATS = ("csv", "tsv", "jsonl")


def write_team(path: Path, team: str, count: int = 240) -> str:
    """Write a team's rows in the format of a file's suffix."""
    rows = [(f"{TEAMS[team][y]} {n}", y) for n in range(count) for y in TEAMS[team]]
    if path.suffix == ".jsonl":
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    else:
        between = "," if path.suffix == ".csv" else "\t"
        lines = [between.join(row) for row in (("text", "label"), *rows)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return path.name


def test_three_teams_own_texts_are_answered_after_seven_commands(
    environment, call, tmp_path
) -> None:
    files = [
        write_team(tmp_path / f"{t}.{kind}", t) for t, kind in zip(TEAMS, FORMATS, strict=True)
    ]
    for team, file in zip(TEAMS, files, strict=True):
        code, out, _ = call("new-expert", team, "--backbone", "tiny", "--data", file)
        assert code == 0 and out.startswith(f"red-expert-{team}\n")
        assert out.endswith(f"next: redhost pack red-expert-{team}\n")
    projects = [f"red-expert-{team}" for team in TEAMS]
    out = call("pack", *projects)[1].splitlines()
    wheels = [str(*Path(project, "dist").glob("*.whl")) for project in projects]
    assert out[::2][:-1] == wheels
    assert out[-1] == f"next: pip install --no-deps {' '.join(wheels)} && redhost recompose"
    for project in projects:  # by pip, in tests/fresh
        environment.install(Path(project))
    assert call("recompose")[0] == 0
    texts = ["win a prize 900", "see you soon 901", "the match ended 902", "good night 903"]
    out = call("predict", *texts)[1].splitlines()
    answers = [line for line in out if " → " in line]
    right = ("spam", "none", "sport", "farewell")
    assert all(
        line.startswith(f"{text} → {label}  (p = ") and line.endswith(")")
        for line, text, label in zip(answers, texts, right, strict=True)
    )
    # A text of the label none is not as a declined one.
    assert call("recompose", "--decline", "10%")[0] == 0
    lines = call("predict", texts[1], "1 2 3 4 5 6 7 8 9", "--each")[1].splitlines()
    own, declined = (line for line in lines if not line.startswith(" "))
    assert own.startswith(f"{texts[1]} → none  (p = ") and own.endswith(")")
    assert " → none  (p = " in declined and declined.endswith(")  declined")


@pytest.mark.parametrize("data", ["text,label\na,b\n", "text\na\n", None])
def test_a_new_expert_of_rows_that_cannot_be_learnt_from_is_not_begun(call, tmp_path, data) -> None:
    if data is not None:
        (tmp_path / "rows.csv").write_text(data)
    code, out, err = call("new-expert", "odd", "--backbone", "tiny", "--data", "rows.csv")
    assert (code, out, err.count("\n")) == (2, "", 1) and not Path("red-expert-odd").exists()


def test_what_cannot_be_packed_keeps_all_from_being_packed(call, tmp_path) -> None:
    write_team(tmp_path / "chat.jsonl", "chat")
    assert call("new-expert", "chat", "--backbone", "tiny", "--data", "chat.jsonl")[0] == 0
    assert call("new-expert", "odd", "--backbone", "tiny")[0] == 0
    code, out, err = call("pack", "red-expert-chat", "red-expert-odd")
    assert (code, out, err.count("\n")) == (1, "", 1) and "red-expert-odd" in err
    assert not Path("red-expert-chat/dist").exists()


@pytest.mark.parametrize("moment", ["_read", "_train"])
def test_ctrl_c_in_new_expert_keeps_the_project_and_prints_what_goes_on(
    call, tmp_path, monkeypatch, moment
) -> None:
    data = write_rows(tmp_path / "rows.jsonl")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"redhost_author.expert_cli.{moment}", interrupt)
        code, _, err = call("new-expert", "odd", "--backbone", "tiny", "--data", data)
    following = f"redhost train-expert red-expert-odd --data {data}"
    assert code == 130 and f"next: {following}\n" in err
    assert call(*following.split()[1:], "--epochs", "1")[0] == 0
