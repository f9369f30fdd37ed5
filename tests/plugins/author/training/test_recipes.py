"""The author's path: one expert trained, a package that any host accepts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import redhost_author
import safetensors.torch
import torch
from redhost_author.disclosure import card_discloses
from redhost_author.project import (
    ExpertPlan,
    check_id,
    package_in,
    read_plan,
    write_plan,
)
from redhost_author.training import solving
from redhost_author.training.context import AuthoringContext
from redhost_author.training.data import split_rows
from redhost_author.training.expert import (
    ExpertRows,
    ExpertSettings,
    read_checkpoint,
    train_expert,
)
from redhost_author.training.linear_head import solve_linear_head
from redhost_author.training.recipes import train_package

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.temperature import fit_temperature, shown_temperature
from redhost.core.composition.recompose import compose
from redhost.core.types import StagedProgress
from redhost.registry.errors import HarmError, UsageError

ROWS = [
    redhost.Row(text=f"{'red' if n % 2 else 'blue'} {n}", label="xy"[n % 2]) for n in range(240)
]


@pytest.fixture(scope="module")
def context(backbone_folder, tmp_path_factory) -> AuthoringContext:
    """What training has; as for its users, a text is encoded once."""
    return redhost_author.open_for_training(
        backbone_folder, cache=tmp_path_factory.mktemp("features")
    )


class Seen(StagedProgress):
    """A progress that remembers every stage."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, int]] = []

    def __call__(self, done: int, total: int) -> None:
        self.calls.append(("", "", done, total))

    def stage(self, name: str, note: str = ""):
        return lambda done, total: self.calls.append((name, note, done, total))


def test_epochs_are_a_stage_with_their_validation_accuracy(tmp_path, context) -> None:
    seen, plain = Seen(), []
    train(tmp_path / "a", context, epochs=3, progress=seen)
    train(tmp_path / "b", context, epochs=3, progress=lambda *x: plain.append(x))
    assert [c[::2] for c in seen.calls] == [("epochs", n) for n in (1, 2, 3)]
    assert all(note.startswith("validation accuracy ") for _, note, *_ in seen.calls)
    assert plain == [c[2:] for c in seen.calls]  # others are called as ever


def project(tmp_path, plan: ExpertPlan):
    redhost_author.write_project(tmp_path, kind="expert", package_id=plan.id, summary="mine")
    write_plan(tmp_path, plan)
    return tmp_path


def train(tmp_path, context, *, seed: int = 0, epochs: int = 30, progress=None, **plan):
    made = ExpertPlan(**{"id": "mine", "rank": 4, **plan})
    settings = ExpertSettings(
        form=made.form or "residual",
        space=made.writes,
        rank=made.rank,
        epochs=epochs,
        learning_rate=1e-2,
        off_domain=1e-3,
        seed=seed,
    )
    return train_package(
        project(tmp_path, made),
        made,
        split_rows(ROWS),
        context=context,
        settings=settings,
        progress=progress,
    )


@pytest.mark.parametrize("form", ["residual", "linear", "mlp"])
def test_an_expert_with_labels_of_its_own_learns_and_passes_every_check(tmp_path, context, form):
    from redhost_author.verifying import Verifier

    from redhost.registry.package.readers import read_expert

    manifest = train(tmp_path, context, form=form)
    assert manifest.labels == ("x", "y") and manifest.writes.space == "labels"
    assert manifest.training.metrics["gate"] >= 0.8
    files = read_expert(
        {
            p.name: p.read_bytes()
            for p in (tmp_path / "src/red_expert_mine").iterdir()
            if p.is_file()
        }
    ).unwrap("it")
    assert Verifier().expert(files, backbone=None) == ()


def test_training_is_deterministic_for_a_seed(tmp_path, context) -> None:
    one, two = train(tmp_path / "a", context), train(tmp_path / "b", context)
    other = train(tmp_path / "c", context, seed=1)
    assert one.weights == two.weights != other.weights


def test_a_card_that_is_replaced_leaves_no_text_behind(tmp_path, context) -> None:
    train(tmp_path, context, epochs=1, card="texts")
    package = package_in(tmp_path)
    (package / "NOTES.txt").write_text("the author's own")
    texts = {p.name for p in package.iterdir()}
    train(tmp_path, context, epochs=1, card="statistics")
    assert {p.name for p in package.iterdir()} == texts - {"card.jsonl"} | {"card.safetensors"}


def test_an_expert_that_learnt_another_thing_is_refused_and_left_on_disk(tmp_path, context) -> None:
    """The card has the labels swapped; the control, everywhere else here, has them right."""
    splits, swap = split_rows(ROWS), {"x": "y", "y": "x"}
    aside = tuple(redhost.Row(text=r.text, label=swap[r.label]) for r in splits.gate)
    plan = ExpertPlan(id="mine", rank=4, writes="labels")
    settings = ExpertSettings(space="labels", rank=4, epochs=20, learning_rate=1e-2)
    with pytest.raises(HarmError, match="expert 'mine'") as e:
        train_package(
            project(tmp_path, plan),
            plan,
            dataclasses.replace(splits, gate=aside, valid=()),
            context=context,
            settings=settings,
        )
    assert e.value.exit_code == 1
    assert (package_in(tmp_path) / "expert.json").exists()
    assert [*tmp_path.glob(".redhost-training*")] == []


def test_training_resumes_after_ctrl_c_with_the_same_bits(tmp_path, context) -> None:
    whole = train(tmp_path / "a", context)

    def stop(done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", context, progress=stop)
    [left] = (tmp_path / "b").glob(".redhost-training-*.safetensors")
    state = read_checkpoint(left)
    assert state is not None and 1 <= state["numbers"][0] <= 7
    assert train(tmp_path / "b", context).weights == whole.weights
    assert not left.exists()


def test_another_training_does_not_go_on_from_weights_that_learnt_something_else(
    tmp_path, context
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", context, seed=1, progress=stop)
    assert train(tmp_path / "b", context).weights == train(tmp_path / "a", context).weights
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "b", context, rank=8, progress=stop)
    assert train(tmp_path / "b", context).weights == train(tmp_path / "a", context).weights
    assert not list((tmp_path / "b").glob(".redhost-training*"))


@pytest.mark.parametrize("card", ["texts", "vectors", "statistics", "none"])
def test_the_author_chooses_what_the_card_shows(
    tmp_path, context, card, backbone_folder, expert_folders
) -> None:
    manifest = train(tmp_path, context, card=card)
    assert manifest.card.kind == card
    folder = tmp_path / "src" / "red_expert_mine"
    others = [expert_folders["red"], folder]
    if card == "none":
        [left] = compose(backbone_folder, others).receipt.left_out
        assert (left.id, left.code) == ("mine", "card_rows")
        return
    receipt = compose(backbone_folder, others).receipt
    assert set(receipt.experts) == {"red", "mine"}
    assert ("mine" in receipt.not_gated) == (card == "statistics")
    if card != "texts":
        assert not any(b"red 1" in p.read_bytes() for p in folder.iterdir() if p.is_file())


def test_sums_with_noise_show_no_row_of_the_author_anywhere(
    tmp_path, context, backbone_folder, expert_folders
) -> None:
    exact = train(tmp_path / "exact", context, card="statistics")
    noisy = train(tmp_path / "noisy", context, card="statistics", epsilon=2.0, delta=1e-3)
    assert not exact.card.noise and exact.schema == "redhost.expert/1"
    assert noisy.card.noise and noisy.schema == "redhost.expert/1"
    assert (noisy.card.noise.epsilon, noisy.card.noise.delta) == (2.0, 1e-3)
    assert noisy.card.noise.clip == pytest.approx(noisy.reads.width**0.5)
    assert (noisy.weights, noisy.labels) == (exact.weights, exact.labels)
    folder = tmp_path / "noisy" / "src" / "red_expert_mine"
    shown = safetensors.torch.load((folder / "canary.safetensors").read_bytes())["z"]
    norm = LayerNorm(width=noisy.reads.width, eps=context.backbone.eps)
    public = norm(context.encode([r.text for r in context.background]))
    assert float(torch.cdist(shown, public).amin(-1).max()) < 1e-3
    receipt = compose(backbone_folder, [expert_folders["red"], folder]).receipt
    assert set(receipt.experts) == {"red", "mine"}
    assert card_discloses(noisy) != card_discloses(exact)
    assert "(2, 0.001)-differentially private" in card_discloses(noisy)


@pytest.mark.parametrize("card", ["texts", "vectors", "none"])
def test_noise_is_for_cards_of_sums_alone(tmp_path, context, card) -> None:
    with pytest.raises(UsageError, match="noise is for sums without rows"):
        train(tmp_path, context, card=card, epsilon=1.0)


def test_labels_the_backbone_cannot_answer_need_rows_of_their_own(tmp_path, context) -> None:
    with pytest.raises(UsageError, match=r'found x, y\. Set writes = "labels"'):
        train(tmp_path, context, writes="hidden")


def test_too_few_rows_for_a_card_are_refused_before_training(tmp_path, context) -> None:
    plan = ExpertPlan(id="mine", rank=4)
    with pytest.raises(redhost.UsageError, match="too few rows for a card of vectors"):
        train_package(
            project(tmp_path, plan),
            plan,
            split_rows(ROWS[:3]),
            context=context,
            settings=ExpertSettings(form="residual", space="labels", rank=4),
        )


def test_early_stopping_takes_the_best_epoch(context) -> None:
    norm = LayerNorm(width=context.backbone.width, eps=1e-5)
    h = torch.randn(40, context.backbone.width, generator=torch.Generator().manual_seed(0))
    answers = ["xy"[n % 2] for n in range(40)]  # nothing to learn
    trained = train_expert(
        ExpertRows(h=h[:20], z=norm(h[:20]), answers=answers[:20]),
        Readout(),
        labels=("x", "y"),
        valid=ExpertRows(h=h[20:], z=norm(h[20:]), answers=answers[20:]),
        settings=ExpertSettings(
            form="linear", space="labels", epochs=400, learning_rate=0.05, patience=5
        ),
    )
    assert trained.epoch < 100 and trained.loss is not None


def test_temperature_is_what_makes_the_answers_honest() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=g)
    targets = torch.multinomial(torch.softmax(logits, -1), 1, generator=g)[:, 0]
    assert fit_temperature(logits, targets) == pytest.approx(1.0, abs=0.1)
    assert fit_temperature(3 * logits, targets) == pytest.approx(3.0, abs=0.3)


def test_a_temperature_is_taken_as_far_as_rows_show_it() -> None:
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4000, 5, generator=g)
    targets = torch.multinomial(torch.softmax(logits, -1), 1, generator=g)[:, 0]
    assert shown_temperature(logits, targets) == 1.0
    assert 2.5 < shown_temperature(3 * logits, targets) < fit_temperature(3 * logits, targets)
    assert 0.3 < shown_temperature(logits / 3, targets) < 0.4
    assert 1 < shown_temperature(3 * logits[:60], targets[:60]) < 3  # fewer rows show less


def test_rows_that_are_all_right_make_no_one_sure() -> None:
    """The likeliest T of such rows is the smallest there is."""
    logits = torch.tensor([[3.0, 0.0]]).repeat(64, 1)
    targets = torch.zeros(64, dtype=torch.long)
    assert fit_temperature(logits, targets) < 0.1
    assert 0.8 < shown_temperature(logits, targets) < 1
    assert shown_temperature(logits[:20], targets[:20]) == 1.0


def test_a_solved_head_that_is_too_unsure_of_rows_it_has_not_seen_is_made_surer(
    tmp_path, context, monkeypatch
) -> None:
    plain = solve_linear_head

    def unsure(*given: Any) -> Any:
        solved = plain(*given)
        with torch.no_grad():
            for parameter in solved.expert.parameters():
                parameter.mul_(0.3)
        return solved

    honest = train(tmp_path / "a", context, form="linear", writes="labels", card="vectors")
    monkeypatch.setattr(solving, "solve_linear_head", unsure)
    made = train(tmp_path / "b", context, form="linear", writes="labels", card="vectors")
    assert made.temperature < 0.8 and made.temperature < honest.temperature <= 1


def test_a_plan_survives_its_file(tmp_path) -> None:
    plan = ExpertPlan(id="mine", rank=7, domain='says "so"', card="vectors")
    assert read_plan(project(tmp_path, plan)) == plan


def test_a_plan_with_an_unknown_key_is_refused(tmp_path) -> None:
    path = project(tmp_path, ExpertPlan(id="mine")) / "pyproject.toml"
    path.write_text(path.read_text() + "colour = 'red'\n")
    with pytest.raises(UsageError, match="colour"):
        read_plan(tmp_path)
    with pytest.raises(UsageError, match="redhost new-expert NAME"):
        read_plan(tmp_path / "src")


@pytest.mark.parametrize("name", ["Upper", "with space", "../up", "backbone", ""])
def test_names_that_cannot_be_ids_are_refused(name) -> None:
    with pytest.raises(UsageError, match="cannot be an id"):
        check_id(name)


def test_from_data_to_a_wheel_that_a_host_composes(tmp_path, monkeypatch, capsys, environment):
    """The four commands, as typed; the wheel is unpacked as pip would."""
    import zipfile

    from redhost.cli import main

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as e:
            main(arguments)
        out, err = capsys.readouterr()
        assert not e.value.code, err
        return out

    monkeypatch.chdir(tmp_path)
    data = "".join(json.dumps({"text": r.text, "label": r.label}) + "\n" for r in ROWS)
    (tmp_path / "mine.jsonl").write_text(data)
    run("new-expert", "mine", "--backbone", "tiny")
    trained = json.loads(
        run("train-expert", "red-expert-mine", "--data", "mine.jsonl", "--epochs", "40", "--json")
    )
    run("pack", "red-expert-mine")
    [wheel] = (tmp_path / "red-expert-mine" / "dist").glob("*.whl")
    assert json.loads(run("check", "--json", str(wheel)))[0]["ok"]
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(environment.folder)
    receipt = json.loads(run("recompose", "--backbone", "tiny", "--json"))
    assert "mine" in receipt["experts"]
    answers = json.loads(run("predict", "--json", "red 999", "What is 37 plus 12?"))
    assert answers[0]["label"] in trained["labels"] and answers[1]["label"] == "49"


@pytest.mark.parametrize("count", [4, 8, 16])
def test_few_rows_make_an_expert_without_a_warning(tmp_path, context, count) -> None:
    """Where one row or none is left to validate or to judge, no spread is taken."""
    plan = ExpertPlan(id="few", writes="labels", card="vectors")
    folder = project(tmp_path / "few", plan)
    settings = ExpertSettings(space="labels", epochs=2)
    made = train_package(folder, plan, split_rows(ROWS[:count]), context=context, settings=settings)
    assert made.card.kind == "vectors" and made.labels == ("x", "y")


@pytest.mark.parametrize("form", ["linear", "mlp", "residual"])
def test_the_plans_form_holds_whatever_the_settings_say(context, tmp_path, form) -> None:
    plan = ExpertPlan(id="mine", form=form, writes="labels", card="texts", rank=3)
    for name, settings in (("own", None), ("given", ExpertSettings(epochs=2))):
        project = tmp_path / name
        redhost_author.write_project(project, kind="expert", package_id="mine", summary="mine")
        manifest = train_package(
            project, plan, split_rows(ROWS), context=context, settings=settings
        )
        assert manifest.form == form
        assert manifest.rank == (0 if form == "linear" else 3)
