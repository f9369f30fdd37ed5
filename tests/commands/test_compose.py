"""recompose, predict and evaluate, for people."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
from click.testing import CliRunner

import redhost
from redhost.cli import cli


def test_a_receipt_says_that_nothing_else_moved(home, call) -> None:
    code, out, err = call("recompose", "--dry-run")
    assert code == 0 and "dry run (parent 1)" in out
    assert out.count("unchanged") == 6 and "CHANGED" not in out  # five experts, one backbone
    assert "router evidence/full trained on " in out
    assert "dry run" not in err  # the bar goes to stderr, the result to stdout


def test_where_nothing_changed_there_is_no_table_of_changes(home, call) -> None:
    code, out, _ = call("recompose")
    first, *others = out.splitlines()
    assert (code, first) == (0, "nothing changed: generation 1 stays")
    assert not [x for x in others if x[:1] in "┃│"] and "parent" not in out
    assert [x.split()[0] for x in others] == ["backbone", "overall"]
    call("disable", "range2")
    out = call("recompose")[1]
    assert "nothing changed" not in out and "┃ expert ┃" in out


def test_a_home_of_which_only_the_lock_is_here_names_sync_as_well(home, call, tmp_path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    shutil.copy(home / "redhost.lock", clone)
    for words in (("predict", "What is 37 plus 12?"), ("explain", "hello")):
        code, _, err = call(*words, "--home", str(clone))
        at = f"--home {clone}'"
        assert code == 3 and f"Run 'redhost recompose {at}, or 'redhost sync {at} for " in err
    (clone / "redhost.lock").unlink()
    code, _, err = call("predict", "hello", "--home", str(clone))
    assert code == 3 and "sync" not in err and "Run 'redhost recompose --home" in err


def test_a_receipt_names_who_left(home, call) -> None:
    call("disable", "range2")
    out = call("recompose")[1]
    assert "generation 2 (parent 1)" in out
    assert re.search(
        r"withdrawn  range2: 1\.000 before, 0\.\d{3} after, on the \d+ gate rows of its former", out
    )
    assert "left out   range2: disabled: " in out


def test_without_a_closed_form_level_zero_is_wrong_usage(home, call) -> None:
    code, _, err = call("recompose", "--router", "mlp", "--level", "zero", "--accept")
    assert code == 2 and "closed form" in err and "--level full" in err


def test_an_unknown_router_is_one_line(home, call) -> None:
    code, _, err = call("recompose", "--router", "evidense")
    assert code == 2 and "no trusted plugin provides a router of kind 'evidense'" in err
    assert "Did you mean 'evidence'?" in err and err.endswith("topk, words.\n")
    assert "linear" in err and err.count("\n") == 1


INFINITE = """
import redhost, torch

class Infinite(redhost.Router):
    kind = "infinite"
    closed_form = True
    def __init__(self, **settings):
        super().__init__(**settings)
        self.w = torch.nn.Parameter(torch.tensor([float("nan")]))
    def forward(self, z, signals=None):
        return z.new_zeros(len(z), len(self.columns))
    def solve(self, columns, *, only=None):
        pass

@redhost.hookimpl
def redhost_register_routers(register):
    register("infinite", redhost.plugins.router_factory(Infinite))
"""


def test_a_plugin_s_router_with_infinite_weights_is_named_with_its_plugin(
    home, call, environment
) -> None:
    entry = {"redhost.plugins": "infinite = endless"}
    environment.install_code("endless", {"__init__.py": INFINITE}, entry)
    assert call("trust", "endless")[0] == 0
    code, out, err = call("recompose", "--router", "infinite", "--accept")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "a 'infinite' router cannot be made of these cards: expected finite weights" in err
    assert "Choose another --router; this one is of 'endless'." in err


@pytest.mark.parametrize("body", ["pass", "return z.new_zeros(len(z), len(self.columns))"])
def test_an_error_names_the_plugins_of_its_parts(home, call, environment, body) -> None:
    code = INFINITE.replace('float("nan")', "0.0").replace(body, "return 1 / 0")
    entry = {"redhost.plugins": "infinite = breaking"}
    environment.install_code("breaking", {"__init__.py": code}, entry)
    assert call("trust", "breaking")[0] == 0
    code, out, err = call("recompose", "--router", "infinite", "--accept")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "found ZeroDivisionError: division by zero (parts from breaking)" in err


@pytest.mark.parametrize("flag", ["--level=half", "--seed=-1", "--tolerance=-1", "--colour=red"])
def test_impossible_flags_are_wrong_usage(home, call, flag) -> None:
    assert call("recompose", flag)[0] == 2


@pytest.mark.parametrize("command", ["predict", "route"])
def test_of_a_long_text_only_json_has_all(home, call, command) -> None:
    text = "What is 8 plus 9?\n" * 100
    if command == "route":
        assert call("recompose", "--router", "ridge", "--accept")[0] == 0  # which reads no answers
    [line, *_] = call(command, text)[1].splitlines()
    beginning, _, answer = line.partition("… → ")
    assert beginning == text[:160].replace("\n", "\\n") and answer
    assert json.loads(call(command, text, "--json")[1])[0]["input"] == text
    assert call(command, "What is 8 plus 9?")[1].startswith("What is 8 plus 9? → ")


def test_locked_and_another_router_are_wrong_usage(home, call) -> None:
    code, _, err = call("recompose", "--locked", "--router", "mlp")
    assert code == 2 and "--locked uses the router of the lock: expected evidence, found mlp" in err


def test_locked_refuses_drift_with_exit_1_and_a_missing_router_with_exit_3(home, call) -> None:
    assert call("recompose", "--locked")[0] == 0
    call("disable", "range2")
    code, _, err = call("recompose", "--locked")
    assert code == 1 and "range2 is disabled" in err
    call("enable", "range2")
    (home / "current").unlink()
    for path in (home / "generations").glob("*/composition.json"):
        path.unlink()
    code, _, err = call("recompose", "--locked")
    assert code == 3 and "no generation in" in err


def test_a_share_to_decline_stays_with_the_home_until_another_is_given(home, call) -> None:
    receipt = json.loads(call("recompose", "--decline", "5%", "--json")[1])
    decline = receipt["decline"]
    assert (decline["share"], decline["needed"]) == (0.05, 19)
    assert set(decline["thresholds"]) == set(decline["rows"]) == {f"range{n}" for n in range(1, 6)}
    assert receipt["generation"] == 2 and sum(decline["rows"].values()) == 187
    lock = json.loads((home / "redhost.lock").read_text())
    assert lock["settings"] == {"decline": 0.05}
    texts = ("What is 37 plus 12?", "good morning to you", "What is 3000 plus 4000?")
    answers = json.loads(call("predict", *texts, "--json")[1])
    assert [a["declined"] for a in answers] == [False, True, True]
    assert [a["label"] for a in answers] == ["49", "none", "none"]
    assert json.loads(call("recompose", "--json")[1])["decline"] == decline
    assert json.loads(call("recompose", "--locked", "--json")[1])["decline"] == decline
    code, _, err = call("recompose", "--locked", "--decline", "1%")
    assert code == 2 and "--locked uses the decline of the lock" in err
    fewer = redhost.Host.open(home).detach("range5").decline
    assert fewer is not None and (fewer.share, len(fewer.rows)) == (0.05, 4)
    assert json.loads(call("recompose", "--decline", "0%", "--json")[1])["decline"] is None
    assert json.loads((home / "redhost.lock").read_text())["settings"] == {}
    assert not any(a["declined"] for a in json.loads(call("predict", *texts, "--json")[1]))
    call("rollback", "2")
    assert [a["declined"] for a in json.loads(call("predict", *texts, "--json")[1])][1]


def test_what_is_declined_is_evaluated_and_printed(home, call, tmp_path) -> None:
    code, out, _ = call("recompose", "--decline", "5%")
    assert code == 0 and "declines 5.00% of the experts' own texts at most" in out
    assert "'range1' answers 15 gate rows, 19 are needed for 5 %" in out
    report = json.loads(call("evaluate", "--json")[1])
    assert set(report["declined"]) == {"overall", *report["domains"]}
    # 187 rows of five groups: 3.3 to 5 percent, give or take three standard deviations of each.
    assert 0.0 < report["declined"]["overall"] < 0.05 + 3 * (0.05 / 187 + 0.05 / 734) ** 0.5
    assert "declined" in call("evaluate")[1]
    outside = tmp_path / "outside.txt"
    outside.write_text("good morning to you\nthe sea is blue\nWhat is 3000 plus 4000?\n")
    found = json.loads(call("evaluate", "--outside", str(outside), "--json")[1])["outside"]
    assert found["declined"] == 1.0 and found["auroc"] > 0.99
    assert found["declined_inside"] == report["declined"]["overall"]


def test_label_sets_hold_more_labels_the_more_often_they_are_to_hold_the_right_one(
    home, call
) -> None:
    texts = ("What is 37 plus 12?", "What is 8 plus 9?")
    sizes = []
    for level in ("80%", "0.95"):
        answers = json.loads(call("predict", "--set", level, *texts, "--json")[1])
        assert all(a["labels"][0] == a["label"] for a in answers)
        sizes.append([len(a["labels"]) for a in answers])
    assert all(a <= b for a, b in zip(*sizes, strict=True))
    code, out, err = call("predict", "--set", "99.9%", *texts)
    assert code == 0 and err.count("999 are needed for 0.1 %: there is no threshold") == 5
    assert "17, " in out  # nothing can be promised, so every label is in the set
    assert "labels" not in call("predict", *texts)[1]


def test_each_shows_every_experts_own_answer(home, call) -> None:
    text = "What is 37 plus 12?"
    [answer] = json.loads(call("predict", "--each", text, "--json")[1])
    own = answer["by_expert"]
    assert list(own) == [f"range{n}" for n in range(1, 6)]
    assert own["range3"]["label"] == "49" == answer["label"]
    assert own["range3"]["probability"] == pytest.approx(answer["probability"], abs=0.01)
    out = call("predict", "--each", text)[1]
    assert out.count("→") == 6 and "declined" not in out


@pytest.mark.parametrize("share", ["100%", "-1%", "five", "5"])
def test_a_share_that_is_none_is_wrong_usage(home, call, share) -> None:
    code, _, err = call("recompose", f"--decline={share}")
    assert code == 2 and "Write 5% or 0.05." in err
    assert call("predict", f"--set={share}", "What is 8 plus 9?")[0] == 2


def test_a_project_says_what_to_decline(home, call, tmp_path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.redhost]\ndecline = "10%"\n')
    assert json.loads(call("recompose", "--json")[1])["decline"]["share"] == 0.1


def test_predict_draws_the_weights(home, call) -> None:
    code, out, _ = call("predict", "What is 37 plus 12?")
    first, second, *_ = out.splitlines()
    assert code == 0 and first.startswith("What is 37 plus 12? → 49  (p = ")
    assert second.split()[0] == "range3" and "█" in second


def test_predict_says_how_many_texts_were_cut(home, call) -> None:
    code, out, err = call("predict", "What is 3 plus 4?", "7 " * 4000)
    assert code == 0 and out.startswith("What is 3 plus 4? → 7")
    longest = redhost.Host.open(home).composed.backbone.trunk.longest
    assert err == f"1 of 2 texts cut after {longest} tokens\n"
    assert [a["cut"] for a in json.loads(call("predict", "7 " * 4000, "--json")[1])] == [longest]


@pytest.mark.parametrize("arguments", [[], ["--colour"]])
def test_predict_without_texts_is_wrong_usage(home, call, arguments) -> None:
    assert call("predict", *arguments)[0] == 2


def test_predict_reads_lines_of_standard_input_in_utf_8_alone(home) -> None:
    given = CliRunner().invoke(cli, ["predict", "-", "--json"], input="What is 3 plus 4?\r\n\n")
    assert [a["input"] for a in json.loads(given.output)] == ["What is 3 plus 4?"]
    broken = CliRunner().invoke(cli, ["predict", "-"], input=b"a\xff")
    assert "standard input cannot be read: expected UTF-8, found byte 0xff" in str(broken.exception)
    broken = CliRunner().invoke(cli, ["predict", "a\udcff"])
    assert "the text cannot be read: expected UTF-8, found byte 0xff" in str(broken.exception)


@pytest.mark.parametrize("command", ["predict", "route"])
def test_a_blank_text_is_refused_so_that_answers_stand_where_their_texts_do(
    home, call, command
) -> None:
    for place, texts in ((1, ["", "What is 3 plus 4?"]), (2, ["What is 3 plus 4?", "  "])):
        refused = f"redhost: argument {place} of TEXTS: expected a text, found {texts[place - 1]!r}"
        code, out, err = call(command, "--json", *texts)
        assert (code, out, err.count("\n")) == (2, "", 1) and err.startswith(f"{refused}. ")
    given = CliRunner().invoke(cli, ["predict", "-", "--json"], input=" \n\n")
    assert (given.exit_code, given.output) == (0, "[]\n")


def test_python_drops_no_text_either(home) -> None:
    with pytest.raises(redhost.UsageError, match="a text has no tokens"):
        redhost.Host.open(home).predict(["", "What is 3 plus 4?"])


def test_evaluate_prints_every_system_and_what_each_expert_is_good_for(
    home, call, tmp_path
) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\nWhat is 3 plus 4?,7\nWhat is 30 plus 4?,34\n")
    jsonl = tmp_path / "rows.jsonl"
    row = {"text": "What is 3 plus 4?", "label": "7", "domain": "range1"}
    jsonl.write_text(json.dumps(row) + "\n")
    out = call("evaluate", "--data", str(data))[1]
    assert "generation 1, accuracy" in out
    assert all(name in out for name in ("backbone", "best_single", "uniform", "routed", "oracle"))
    out = call("evaluate", "--data", str(jsonl), "--leave-one-out")[1]
    assert "leave one out" in out and "without range3" in out


def test_evaluate_says_why_there_is_no_oracle_and_which_field_to_name(home, call, tmp_path) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label,owner\nWhat is 3 plus 4?,7,range1\nWhat is 9 plus 4?,13,range1\n")
    code, out, _ = call("evaluate", "--data", str(data), "--labels")
    [oracle] = [line for line in out.splitlines() if line.startswith("oracle     n/a")]
    assert code == 0 and "--domain-field" in oracle and "labels, macro F1 1.000" in out
    report = json.loads(call("evaluate", "--data", str(data), "--json")[1])
    assert report["oracle"] is None and report["macro_f1"] == 1.0
    assert report["labels"]["7"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "rows": 1}
    assert report["confusion"] == {"13": {"13": 1}, "7": {"7": 1}}
    named = ("evaluate", "--data", str(data), "--domain-field", "owner")
    assert json.loads(call(*named, "--json")[1])["domains"] == {"range1": 1.0}
    assert "n/a" not in call(*named)[1]


def test_evaluate_draws_which_label_is_taken_for_which(home, call, tmp_path, monkeypatch) -> None:
    data = tmp_path / "rows.csv"
    data.write_text("text,label\nWhat is 3 plus 4?,7\nWhat is 9 plus 4?,13\n")
    plot = ("evaluate", "--data", str(data), "--plot", str(tmp_path / "c.png"))
    curves = tmp_path / "curves.svg"
    assert call("evaluate", "--data", str(data), "--curves", str(curves))[0] == 0
    assert "ECE" in curves.read_text("utf-8")
    assert call(*plot)[0] == 0 and (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = call(*plot)
    assert (code, out) == (3, "") and "pip install 'redhost[plot]'" in err


def test_evaluate_leave_one_out_in_json_is_a_matrix(home, call, tmp_path) -> None:
    jsonl = tmp_path / "rows.jsonl"
    row = {"text": "What is 3 plus 4?", "label": "7", "domain": "range1"}
    jsonl.write_text(json.dumps(row) + "\n")
    result = json.loads(call("evaluate", "--json", "--data", str(jsonl), "--leave-one-out")[1])
    assert set(result["leave_one_out"]) == {f"range{n}" for n in range(1, 6)}
    assert all(set(row) == {"range1"} for row in result["leave_one_out"].values())


def test_outside_texts_are_reported_with_the_auroc(home, call, tmp_path) -> None:
    texts = tmp_path / "outside.txt"
    texts.write_text("Is 3 more than 4?\nhello there\n")
    out = call("evaluate", "--outside", str(texts))[1]
    assert "of 2 texts declined" in out and "AUROC" in out


def test_evaluate_tells_how_the_weight_is_spread(home, call) -> None:
    code, out, _ = call("evaluate", "--routing")
    assert code == 0 and "routes of 734 rows" in out and "usage entropy" in out
    assert "warning" not in out
    printed = json.loads(call("evaluate", "--json")[1])
    assert sum(printed["routing"]["usage"].values()) == pytest.approx(1, abs=1e-4)


def test_a_router_that_ignores_its_input_is_warned_of(home, call) -> None:
    out = call("recompose", "--router", "blend", "--accept")[1]
    assert "warning    " in out and "Try " in out


@pytest.mark.parametrize("router", ["topk:k=1", "hard"])
def test_a_sparse_router_gives_one_expert_all_the_weight(home, call, router) -> None:
    assert call("recompose", "--router", router, "--accept")[0] == 0
    [answer] = json.loads(call("predict", "What is 37 plus 12?", "--json")[1])
    assert sorted(answer["weights"].values())[-1] == 1.0


def test_unknown_options_of_a_router_are_wrong_usage(home, call) -> None:
    code, _, err = call("recompose", "--router", "topk:best=2")
    assert code == 2 and "balance, k, noise" in err and err.count("\n") == 1


def test_a_robust_router_names_its_worst_domain(home, call, quick_game) -> None:
    out = call("recompose", "--router", "robust", "--accept")[1]
    assert "robust: worst domain range" in out and "an estimate" in out


def test_route_says_whose_a_text_is_and_reads_no_expert(home, call, expert_reads) -> None:
    code, _, err = call("route", "What is 37 plus 12?")
    assert code == 2 and "found evidence" in err and "--router ridge" in err
    assert call("recompose", "--router", "ridge", "--accept")[0] == 0
    with expert_reads() as reads:
        out = call("route", "What is 37 plus 12?", "What is 3 plus 4?")[1]
        printed = json.loads(call("route", "What is 37 plus 12?", "--json")[1])
    assert reads == []
    with expert_reads() as reads:
        [answer] = json.loads(call("predict", "What is 37 plus 12?", "--json")[1])
    assert reads != []
    [route] = printed
    assert route["weights"] == answer["weights"] and route["expert"] == "range3"
    assert out.startswith("What is 37 plus 12? → range3\n  range3 ") and " → range1\n" in out


def test_route_reads_lines_of_standard_input(home, monkeypatch) -> None:
    runner = CliRunner()
    runner.invoke(cli, ["recompose", "--router", "ridge", "--accept"])
    found = runner.invoke(cli, ["route", "-", "--json"], input="What is 37 plus 12?\n\nhello\n")
    assert [r["input"] for r in json.loads(found.stdout)] == ["What is 37 plus 12?", "hello"]
