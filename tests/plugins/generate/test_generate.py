"""From documents to a text that goes on: the author's path of a causal expert, and generate."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest
import redhost_generate
import torch
from click.testing import CliRunner
from warm_start import warm_command

import redhost
from redhost.cli import cli
from redhost.core.types import MAX_SEED
from redhost.testing import Environment

PROMPT = "the cat "


@dataclass(frozen=True)
class Studio:
    """An author's folder, an environment, and the home that was composed in it."""

    folder: Path
    site: Environment
    printed: dict[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "home"


def run(*arguments: str) -> str:
    """Run a command that must succeed; return what it prints."""
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def studio(shipped, speaker_model, documents, tmp_path_factory) -> Iterator[Studio]:
    """The author's path, command by command; `shipped` is made before there are two backbones."""
    folder, site = tmp_path_factory.mktemp("studio"), tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("REDHOST_HOME", str(folder / "home"))
        patch.setenv("REDHOST_CONFIG", str(folder / "config"))
        patch.syspath_prepend(str(site))
        torch.set_num_threads(1)
        made = Studio(folder, Environment(site), {})
        (folder / "background.txt").write_text("nothing of note\nelse, perhaps?\n")
        made.printed["new-backbone"] = run(
            *("new-backbone", "speaker", "--from", f"hf:{speaker_model}", "--task", "generation"),
            *("--background", "background.txt"),
        )
        made.site.install(folder / "red-backbone-speaker")
        for name in ("sums", "tales"):
            data = "".join(json.dumps(row) + "\n" for row in documents(name))
            (folder / f"{name}.jsonl").write_text(data)
            run("new-expert", name, "--backbone", "speaker", "--rank", "8")
            project = f"red-expert-{name}"
            made.printed[f"train {name}"] = run(
                "train-expert", project, "--data", f"{name}.jsonl", "--epochs", "20"
            )
            made.printed[f"pack {name}"] = run("pack", project)
            made.site.install(folder / project)
        made.printed["recompose"] = run("recompose", "--backbone", "speaker", "--json")
        yield made


@pytest.fixture
def home(studio: Studio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the composed home, which commands use by default."""
    home = tmp_path / "home"
    shutil.copytree(studio.home, home)
    monkeypatch.setenv("REDHOST_HOME", str(home))
    return home


# -- the author's path -----------------------------------------------------------------------------


def test_every_step_says_what_it_made(studio) -> None:
    assert "width 16, next tokens, fingerprint" in studio.printed["new-backbone"]
    for name in ("sums", "tales"):
        printed = studio.printed[f"train {name}"]
        assert "bits per byte" in printed and "accuracy" not in printed and "card texts" in printed
        assert f"redhost pack red-expert-{name}" in printed
        assert list((studio.folder / f"red-expert-{name}").rglob("*.whl"))


def test_the_receipt_names_a_causal_router(studio) -> None:
    receipt = json.loads(studio.printed["recompose"])
    assert receipt["router"]["kind"] == "causal"
    assert set(receipt["experts"]) == {"sums", "tales"}
    assert {x["code"] for x in receipt["left_out"]} == {"backbone_mismatch"}  # the shipped ones
    assert all(x["before"] == x["after"] for x in receipt["experts"].values())


def test_a_causal_package_is_checked_like_any_other(studio, home, call) -> None:
    folder = studio.site.package("red-expert-sums")
    assert call("check", "sums", "--backbone", "speaker")[:2] == (0, "sums: ok\n")
    [wheel] = (studio.folder / "red-expert-tales").rglob("*.whl")
    assert call("check", str(wheel))[0] == 0
    printed = json.loads((folder / "expert.json").read_text())
    assert printed["reads"]["causal"] is True and len(printed["writes"]["vocabulary"]) == 64
    broken = shutil.copytree(folder, home / "broken")
    del printed["writes"]["vocabulary"]
    (broken / "expert.json").write_text(json.dumps(printed))
    code, out, _ = call("check", str(broken), "--json")
    assert code == 1
    assert json.loads(out)[0]["violations"][0]["field"] == "writes.vocabulary"


def test_an_expert_for_labels_is_refused_on_a_backbone_that_generates(studio, call) -> None:
    call("new-expert", "odd", "--backbone", "speaker", "--writes", "labels")
    code, _, err = call("train-expert", "red-expert-odd", "--data", f"{studio.folder}/sums.jsonl")
    assert code == 2 and err.count("\n") == 1
    assert "expert 'odd' is for a backbone that generates text: expected writes hidden" in err


def test_many_at_once_are_refused_on_a_backbone_that_generates(studio, tmp_path, call) -> None:
    call("new-expert", "odd", "--backbone", "speaker")
    plan = tmp_path / "plan.jsonl"
    line = {"dir": "red-expert-odd", "data": f"{studio.folder}/sums.jsonl"}
    plan.write_text(json.dumps(line) + "\n")
    code, _, err = call("train-many", str(plan))
    assert code == 2 and err.count("\n") == 1
    assert "which generates text" in err and "redhost train-expert" in err


def test_other_commands_that_ask_it_labels_say_so_in_a_line(home, call) -> None:
    code, out, err = call("predict", "the cat")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "tells next tokens, not" in err and "redhost generate" in err


def test_bare_redhost_tells_it_to_go_on_with_a_prompt(home, call) -> None:
    assert 'next: redhost generate "PROMPT"' in call()[1]


def test_a_composition_that_tells_a_domain_worse_is_refused(home, call) -> None:
    """Weights that are the same for every token cost both domains; accepting it is the control."""
    worse = ("recompose", "--backbone", "speaker", "--router", "blend", "--dry-run")
    code, out, err = call(*worse)
    assert (code, out, err.count("\n")) == (1, "", 1) and "gate rows" in err
    assert call(*worse, "--accept")[0] == 0


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        (("merge", "both"), "merge folds answers that are labels: found a bus that answers tokens"),
        (("sweep", "linear"), "found backbone 'speaker', which generates text"),
    ],
)
def test_what_a_bus_of_tokens_cannot_do_is_a_line(home, call, command, printed) -> None:
    code, out, err = call(*command)
    assert (code, out, err.count("\n")) == (2, "", 1) and printed in err


def test_what_joins_and_leaves_leaves_the_others_alone(studio, home) -> None:
    host = redhost.Host.open(home, backbone="speaker")
    host.detach("tales")
    alone = host.composed
    host.attach("tales")
    first, again = host.load(1), host.composed
    assert first.bus.ids == again.bus.ids == ("sums", "tales") and alone.bus.ids == ("sums",)
    h = first.backbone.encode([PROMPT])
    with torch.inference_mode():
        z = first.bus.norm(h)
        printed = [c.bus.delta(z, 0) for c in (first, alone, again)]
        assert torch.equal(printed[0], printed[1]) and torch.equal(printed[0], printed[2])
        own = [c.bus.alone(h, z, 0) for c in (first, alone, again)]
        assert torch.allclose(own[0], own[1], atol=1e-6) and torch.equal(own[0], own[2])
        base = [c.bus.alone(h, z, len(c.bus.ids)) for c in (first, alone, again)]
        assert torch.equal(base[0], base[1]) and torch.equal(base[0], base[2])
        assert torch.equal(first.bus(h)[0], again.bus(h)[0])  # the same members, the same router


# -- generate --------------------------------------------------------------------------------------


def test_the_prompt_reads_on(home, call) -> None:
    code, out, err = call("generate", PROMPT, "--max-tokens", "30", "--seed", "4")
    assert (code, err) == (0, "")
    assert out.startswith(PROMPT) and out.endswith("\n") and len(out) > len(PROMPT) + 5
    assert call("generate", PROMPT, "--max-tokens", "30", "--seed", "4")[1] == out
    assert call("generate", PROMPT, "--max-tokens", "30", "--seed", "5")[1] != out
    printed = json.loads(call("generate", PROMPT, "--max-tokens", "30", "--seed", "4", "--json")[1])
    assert printed["prompt"] + printed["text"] + "\n" == out


def test_json_is_one_object(home, call) -> None:
    options = ("--max-tokens", "12", "--temperature", "0.5", "--json")
    printed = json.loads(call("generate", PROMPT, *options)[1])
    assert set(printed) == {
        "prompt", "text", "generation", "seed", "temperature", "sampling", "tokens", "weights"
    }  # fmt: skip
    limited = json.loads(call("generate", PROMPT, *options, "--top-k", "3")[1])
    assert (printed["sampling"]["top_k"], limited["sampling"]["top_k"]) == (0, 3)
    assert limited["text"] != printed["text"]
    penalties = ("--presence-penalty", "2", "--frequency-penalty", "2")
    varied = json.loads(call("generate", PROMPT, *options, *penalties)[1])
    assert varied["text"] != printed["text"]
    assert {varied["sampling"][f"{x}_penalty"] for x in ("presence", "frequency")} == {2.0}
    assert (printed["generation"], printed["seed"], printed["temperature"]) == (1, 0, 0.5)
    assert printed["tokens"] == 12 and sum(printed["weights"].values()) == pytest.approx(1)
    more = json.loads(call("generate", PROMPT, *options, "--explain")[1])
    table = more.pop("table")
    assert more == printed and len(table) == 12
    assert "".join(row["text"] for row in table) == printed["text"]
    assert all(set(row) == {"text", "id", "probability", "weights"} for row in table)
    for column, mean in printed["weights"].items():
        assert sum(row["weights"][column] for row in table) / 12 == pytest.approx(mean)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}, "s": {"enum": ["ab"]}},
    "required": ["n", "s"],
    "additionalProperties": False,
}


def test_a_text_can_be_json_of_a_schema(home, call) -> None:
    """Where the limit ends it, a line says so, with exit 1."""
    file = home / "schema.json"
    file.write_text(json.dumps(SCHEMA))
    options = ("--json-schema", str(file), "--seed", "4", "--top-p", "0.9", "--max-tokens")
    code, out, err = call("generate", PROMPT, *options, "60")
    assert (code, err) == (0, "")
    jsonschema.validate(json.loads(out.removeprefix(PROMPT)), SCHEMA)
    code, printed, err = call("generate", PROMPT, *options, "60", "--json")
    report = json.loads(printed)
    assert (code, err, report["complete"]) == (0, "", True)
    assert PROMPT + report["text"] + "\n" == out
    cut = call("generate", PROMPT, *options, "6", "--json")
    assert (cut[0], json.loads(cut[1])["complete"]) == (1, False)
    code, shown, err = call("generate", PROMPT, *options, "6")
    assert (code, err.count("\n")) == (1, 1) and out.startswith(shown.removesuffix("\n"))
    assert "the text is not complete JSON" in err and "Raise --max-tokens" in err
    assert err == cut[2] and "the model reads 512 tokens" in err


AFTER_READING, AFTER_PARSING = (
    "Correct the file, or name another",
    "Leave out what is named, or see https://",
)


@pytest.mark.parametrize(
    ("text", "printed", "hint"),
    [
        ("{", "cannot be read: expected a file with one JSON object", AFTER_READING),
        ("[]", "found no object", AFTER_READING),
        (None, "found No such file or directory. ", AFTER_READING),
        ("[" * 100_000, "cannot be read", AFTER_READING),
        ('{"type": "thing"}', "llguidance supports, found Invalid type: thing", AFTER_PARSING),
        ('{"not": {}}', 'found Unimplemented keys: ["not"]', AFTER_PARSING),
    ],
)
def test_a_schema_that_cannot_be_used_is_exit_2_and_a_line(home, call, text, printed, hint) -> None:
    file = home / "schema.json"
    if text is not None:
        file.write_text(text)
    code, out, err = call("generate", PROMPT, "--json-schema", str(file))
    assert (code, out, err.count("\n")) == (2, "", 1) and printed in err
    assert hint in err


def test_standard_input_is_a_prompt_less_its_last_newline(home) -> None:
    given = CliRunner().invoke(cli, ["generate", "-", "--json"], input="two\nlines\n")
    assert json.loads(given.output)["prompt"] == "two\nlines"
    broken = CliRunner().invoke(cli, ["generate", "-"], input=b"a\xff")
    assert "expected UTF-8, found byte 0xff" in str(broken.exception)


def test_an_empty_prompt_starts_a_text(home, call) -> None:
    printed = json.loads(call("generate", "", "--max-tokens", "5", "--json")[1])
    assert printed["prompt"] == "" and printed["tokens"] == 5


def test_explained_without_a_terminal_a_table_follows(home, call) -> None:
    plain = call("generate", PROMPT, "--max-tokens", "20")[1]
    code, out, _ = call("generate", PROMPT, "--max-tokens", "20", "--explain")
    assert code == 0 and out.startswith(plain) and "\x1b" not in out
    table = out[len(plain) :]
    assert "mean weight" in table and "of the tokens" in table
    assert all(column in table for column in ("sums", "tales", "backbone"))


@pytest.fixture
def sit(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return the function that makes standard output a terminal; it is another for each phase."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    return lambda: monkeypatch.setattr(sys.stdout, "isatty", lambda: True)


def test_a_terminal_shows_each_token_in_its_experts_colour(home, call, sit) -> None:
    sit()
    plain = call("generate", PROMPT, "--max-tokens", "20")[1]
    out = call("generate", PROMPT, "--max-tokens", "20", "--explain")[1]
    assert "\x1b[3" in out and "mean weight" in out
    text, _, legend = out.rpartition(" of the tokens")
    assert unpainted(text).startswith(plain)
    assert legend.count("mean weight") == 1 and out.count("mean weight") == 3


def test_who_wants_no_colour_gets_none(home, call, sit, monkeypatch) -> None:
    sit()
    monkeypatch.setenv("NO_COLOR", "1")
    out = call("generate", PROMPT, "--max-tokens", "20", "--explain")[1]
    assert "\x1b[3" not in out and "mean weight" in out


def test_a_model_sends_a_terminal_no_commands(sit, capsys) -> None:
    """What is no terminal gets every sign; control of the guard."""
    from redhost_generate.cli import stream
    from redhost_generate.decode import Token

    tokens = [Token(text="a\x1b]0;owned\x07\x9b2J\tb\n", id=0, probability=1.0, weights={"x": 1.0})]
    stream("", tokens, explain=False)
    assert "\x1b]0;" in capsys.readouterr().out
    sit()
    stream("", tokens, explain=False)
    assert capsys.readouterr().out == "a]0;owned2J\tb\n\n"


def unpainted(text: str) -> str:
    from click import unstyle

    return unstyle(text)


@pytest.mark.skipif(sys.platform != "linux", reason="a pipe of one page")
def test_ctrl_c_keeps_what_was_printed_and_ends_the_line(home) -> None:
    """Its pipe has room for less than it has to say, so it cannot end before it is interrupted."""
    import fcntl

    ours, its = os.pipe()
    page = fcntl.fcntl(its, fcntl.F_SETPIPE_SZ, 4096)
    filled = os.write(its, bytes(page - len(PROMPT) - 100))
    command = warm_command("-m", "redhost", "generate", PROMPT, "--temperature", "0")
    process = subprocess.Popen(
        [*command, "--max-tokens", "500"],
        stdout=its,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    os.close(its)
    while process.poll() is None and waiting(ours) < filled + len(PROMPT) + 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    with os.fdopen(ours, "rb") as printed:
        whole = printed.read()[filled:]
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in err
    assert whole.startswith(PROMPT.encode()) and whole.endswith(b"\n")
    assert len(whole) < 400  # it did stop
    assert err.decode().strip() == "redhost: stopped"


def waiting(pipe: int) -> int:
    """Return how many bytes of a pipe nobody has read yet."""
    import fcntl
    import termios

    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (("--max-tokens", "0"), "max-tokens"),
        (("--temperature", "-1"), "temperature"),
        (("--temperature", "nan"), "no such temperature"),
        (("--top-p", "nan"), "no such top_p"),
        (("--seed", "-1"), "seed"),
        (("--seed", str(MAX_SEED + 1)), "seed"),
    ],
)
def test_wrong_numbers_are_exit_2(home, call, options, printed) -> None:
    code, out, err = call("generate", PROMPT, *options)
    assert (code, out) == (2, "") and printed in err and "Traceback" not in err
    assert ("Leave it out for 1" in err) == (options[1] == "nan")


def test_the_largest_seed_is_one_for_all(studio, home, call) -> None:
    assert call("generate", PROMPT, "--max-tokens", "2", "--seed", str(MAX_SEED))[0] == 0
    with pytest.raises(redhost.UsageError, match="no such seed"):
        redhost_generate.generate(redhost.Host.open(home).composed, PROMPT, seed=MAX_SEED + 1)
    assert call("recompose", "--seed", str(MAX_SEED + 1))[0] == 2


def test_a_prompt_that_is_too_long_is_a_line(home, call) -> None:
    code, out, err = call("generate", "x" * 600)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the prompt is too long: expected fewer than 512 tokens, found 601" in err


def test_a_composition_that_answers_labels_is_a_line(shipped, call) -> None:
    code, out, err = call("generate", PROMPT, "--home", str(shipped))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "does not generate text" in err and "redhost predict" in err


def test_nothing_composed_is_exit_3(tmp_path, call) -> None:
    code, out, err = call("generate", PROMPT, "--home", str(tmp_path / "none"))
    assert (code, out, err.count("\n")) == (3, "", 1) and "redhost recompose" in err


def test_the_last_generation_can_be_queried_without_any_package(studio, home, call, monkeypatch):
    """Everything it needs is in the store."""
    want = call("generate", PROMPT)[1]
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(studio.site.folder)])
    assert call("generate", PROMPT)[1] == want
