"""Numbers in place of labels: the same bus, packages and commands, one output, no softmax."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
import redhost_author
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redhost_author.backbone.adapt import AdaptSettings
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import ExpertPlan, write_plan
from redhost_author.testing import assert_expert_contract
from redhost_author.training.context import AuthoringContext, open_backbone
from redhost_author.training.data import split_rows
from redhost_author.training.expert import ExpertRows, train_expert
from redhost_author.training.recipes import train_package

import redhost
from redhost.core.bus.bus import Readout
from redhost.core.bus.task import CLASSIFICATION, NumberHead, SoftmaxHead
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.label_sets import DECLINED
from redhost.core.tasks import HEADS, make_task, register_task
from redhost.core.training.rows import read_table
from redhost.core.types import BackgroundRow
from redhost.registry.environment.extras import how_to_install
from redhost.registry.errors import MissingError, UnknownNameError, UsageError
from redhost.registry.package.forms import PLUGIN_TASKS, TASKS
from redhost.registry.package.manifest import parse_backbone
from redhost.registry.package.rules import check_backbone

NUMBER = NumberHead(resolution=1.0)
DOMAINS = {"low": range(40), "high": range(500, 540)}


def rows_of(domain: str) -> list[redhost.Row]:
    """Texts that say a number, and the number twice over."""
    return [
        redhost.Row(text=f"{domain} {n}", label=f"{2 * n}", domain=domain) for n in DOMAINS[domain]
    ]


def logits(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def labelled(*labels: str) -> list[redhost.Row]:
    return [redhost.Row(text=str(n), label=y) for n, y in enumerate(labels)]


def test_a_number_is_right_when_it_rounds_to_the_target() -> None:
    hits = NUMBER.right(logits(48.6, 49.4, 49.6, -0.2), labelled("49", "49", "49", "0"))
    assert hits.tolist() == [1, 1, 0, 1]
    fine = NumberHead(resolution=1 / 200)  # seed 000: y = (a + b) / 200
    assert fine.right(logits(0.2449, 0.2476), labelled("0.245", "0.245")).tolist() == [1, 0]


def test_the_mean_absolute_error_is_in_the_targets_units() -> None:
    error = NUMBER.error(logits(1.0, 7.5), labelled("3", "7"))
    assert error.tolist() == [2.0, 0.5]


@pytest.mark.parametrize(
    ("resolution", "number", "spelt"),
    [
        (1.0, 48.6, "49"),
        (1.0, -0.2, "0"),
        (0.5, 3.3, "3.5"),
        (0.005, 0.2449, "0.245"),
        (10, 44, "40"),
    ],
)
def test_numbers_are_spelt_to_the_resolution(resolution, number, spelt) -> None:
    assert NumberHead(resolution=resolution).rounded(number) == spelt


@pytest.mark.parametrize(
    ("task", "given", "written"),
    [
        ("regression", " 48.60", "49"),
        ("regression", "forty", None),
        ("regression", "1e300", None),
        ("multi-label", "b | a", "a|b"),
        ("multi-label", "a||b", None),
        ("classification", "any", "any"),
        ("classification", "none", "none"),
    ],
)
def test_what_people_write_has_one_spelling(task, given, written) -> None:
    assert make_task(task).head.canonical(given, "a b") == written


@settings(deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    st.booleans(),
)
@example([0.0, 1.401298464324817e-45], False)  # a spread that no float32 can divide by
def test_units_are_undone_by_folding_them_into_an_expert(values, own) -> None:
    targets = torch.tensor(values)
    units = NUMBER.units(targets, classifier=None if own else torch.ones(1, 4))
    back = units.of(targets) * units.scale + units.shift
    torch.testing.assert_close(back, targets, rtol=1e-4, atol=max(1e-3, units.scale * 1e-5))
    assert units.scale > 0 and (own or units.shift == 0)


def test_class_indices_have_no_units() -> None:
    head = SoftmaxHead()
    targets = head.targets(["b", "a"], ["a", "b"])
    assert torch.equal(head.units(targets, classifier=None).of(targets), targets)


def test_a_row_labelled_none_is_the_label_of_that_name_or_else_a_declined_text() -> None:
    output, rows = torch.eye(2), [redhost.Row(text="x", label="none")] * 2
    for labels, right in (((DECLINED, "a"), [1, 0]), ((DECLINED, "none"), [0, 1])):
        assert SoftmaxHead().right(output, rows, labels).tolist() == right
        assert [x.label for x in SoftmaxHead().read(output, labels)] == ["none", labels[1]]


@pytest.mark.parametrize("bad", ["nan", "inf", "many", ""])
def test_a_target_that_is_no_number_is_refused(bad) -> None:
    with pytest.raises(UsageError, match="not every target is a number"):
        NUMBER.targets(["1", bad])


@pytest.mark.parametrize("bad", ['"many"', "NaN", '"nan"'])
def test_a_file_with_a_bad_number_names_its_line(tmp_path, bad) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"text": "a", "label": 1.5}\n{"text": "b", "label": ' + bad + "}\n")
    with pytest.raises(UsageError, match=r"rows\.jsonl, line 2: expected a finite"):
        read_table(file, head=NUMBER)


@pytest.mark.parametrize("form", ["residual", "linear", "mlp"])
@pytest.mark.parametrize("space", ["hidden", "logits", "labels"])
def test_every_form_learns_numbers_of_any_size(form, space) -> None:
    z = torch.nn.functional.layer_norm(torch.randn(64, 8), (8,))
    answers = [str(float(300 + 90 * row[0] - 40 * row[3])) for row in z]
    readout = torch.full((1, 8), 0.5)
    trained = train_expert(
        ExpertRows(h=100 + z, z=torch.nn.functional.layer_norm(100 + z, (8,)), answers=answers),
        Readout(classifier=readout, labels=("value",), task=make_task("regression")),
        labels=("value",),
        settings=redhost_author.ExpertSettings(
            form=form,
            space=space,
            rank=8,
            epochs=80,
            batch=16,
            learning_rate=2e-2,
            off_domain=0,
            dropout=0,
            weight_decay=0.01,
        ),
    ).expert
    with torch.inference_mode():
        own = trained(z) if space == "labels" else (100 + z) @ readout.T
        if space != "labels":
            own = own + (trained(z) @ readout.T if space == "hidden" else trained(z))
    spread = torch.tensor([float(a) for a in answers]).std()
    assert float(NUMBER.error(own, labelled(*answers)).mean()) < 0.25 * float(spread)


def make_backbone(folder, model_folder, *, readout: bool) -> None:
    background = [BackgroundRow(text=f"nothing {n}") for n in range(12)]
    everyone = [r for d in DOMAINS for r in rows_of(d)]
    new_backbone(
        folder,
        BackbonePlan(id="numbers", source=f"hf:{model_folder}", task=make_task("regression")),
        rows=everyone if readout else (),
        settings=AdaptSettings(last_blocks=0, epochs=4),
        background=background,
        evaluation=everyone,
    )


@pytest.fixture(scope="module")
def numbers(model_folder, tmp_path_factory) -> Callable[..., Path]:
    """Return the function that makes a backbone of numbers, each only once; nobody changes it."""

    @cache
    def made(*, readout: bool) -> Path:
        folder = tmp_path_factory.mktemp("numbers")
        make_backbone(folder, model_folder, readout=readout)
        return folder / "src" / "red_backbone_numbers"

    return made


def make_expert(project, backbone, domain: str, *, epochs: int = 80, **plan):
    manifest, loaded, background = open_backbone(backbone)
    context = AuthoringContext(
        backbone=loaded, manifest=manifest, background=background, encode=loaded.encode
    )
    made = ExpertPlan(**{"id": domain, "rank": 8, **plan})
    redhost_author.write_project(project, kind="expert", package_id=domain, summary="numbers")
    write_plan(project, made)
    how = redhost_author.ExpertSettings(
        form=made.form or "residual",
        space=made.writes,
        rank=8,
        epochs=epochs,
        batch=8,
        learning_rate=2e-2,
        off_domain=1e-4,
        dropout=0,
        weight_decay=0.01,
    )
    rows = rows_of(domain)
    train_package(project, made, split_rows(rows, task=loaded.task), context=context, settings=how)
    return next((project / "src").iterdir())


@pytest.mark.parametrize(
    ("readout", "writes", "card"),
    [
        (True, "hidden", "texts"),
        (True, "logits", "vectors"),
        (True, "labels", "statistics"),
        (False, "labels", "texts"),
    ],
)
def test_numbers_from_data_to_answers(tmp_path, numbers, readout, writes, card) -> None:
    backbone = numbers(readout=readout)
    folders = [make_expert(tmp_path / d, backbone, d, writes=writes, card=card) for d in DOMAINS]
    manifest = json.loads((folders[0] / "expert.json").read_text())
    assert manifest["labels"] == ["value"] and manifest["temperature"] == 1.0
    assert {"train", "train_mae", "gate_mae"} <= manifest["training"]["metrics"].keys()
    for folder in folders:
        assert_expert_contract(folder)
    outcome = compose(backbone, folders)
    composed = outcome.composed
    result = evaluate(composed, composed.evaluation, encode=composed.backbone.encode)
    assert result.mae is not None and set(result.mae) == {"overall", "low", "high"}
    assert result.mae["overall"] < 100  # the two domains' numbers lie a thousand apart
    assert 0 <= result.overall <= 1
    low, high = composed.answer(["low 30", "high 530"])
    assert low.value is not None and high.value is not None and high.value - low.value > 500
    assert low.label == str(round(low.value)) and low.probability is None
    gated = card != "statistics"
    assert (set(outcome.receipt.accuracy.after) == {"low", "high"}) == gated


def test_numbers_are_learnt_inside_the_trunk_too(tmp_path, numbers) -> None:
    """The background card's texts, which have no number, are left alone all the same."""
    backbone = numbers(readout=True)
    where = {"writes": "hidden", "reads_tap": "0", "writes_tap": "1"}
    folder = make_expert(tmp_path / "low", backbone, "low", epochs=3, **where)
    assert_expert_contract(folder)
    assert compose(backbone, [folder]).composed.answer(["low 30"])[0].value is not None


def test_a_number_nobody_stands_for_is_declined(tmp_path, numbers) -> None:
    backbone = numbers(readout=False)
    folders = [make_expert(tmp_path / d, backbone, d) for d in DOMAINS]
    composed = compose(backbone, folders).composed
    [answer] = composed.answer(["nothing 5"])
    assert max(answer.weights, key=lambda c: answer.weights[c]) == "backbone"
    assert (answer.label, answer.value) == ("none", None)
    assert "<b>none</b> (declined, generation" in answer._repr_html_()


def test_the_fingerprint_says_which_task_it_is(model_folder) -> None:
    bare = redhost.Backbone.load(f"hf:{model_folder}")
    from dataclasses import replace

    assert bare.fingerprint() != replace(bare, task=make_task("regression")).fingerprint()
    assert replace(bare, task=CLASSIFICATION).fingerprint() == bare.fingerprint()


def test_a_backbone_of_numbers_has_no_other_labels(tmp_path, numbers) -> None:
    path = Path(shutil.copytree(numbers(readout=True), tmp_path / "b")) / "backbone.json"
    manifest = json.loads(path.read_text())
    assert check_backbone(parse_backbone(path.read_bytes()).unwrap("it")) == ()
    path.write_text(json.dumps({**manifest, "labels": ["one", "two"]}))
    [violation] = check_backbone(parse_backbone(path.read_bytes()).unwrap("it"))
    assert violation.field == "labels"


# -- heads that somebody else brings --------------------------------------------------------------


class OrdinalHead(SoftmaxHead):
    """A head of a plugin's."""

    name = "ordinal"


@pytest.fixture
def ordinal() -> Iterator[str]:
    register_task("grades", OrdinalHead)
    yield "grades"
    del TASKS["grades"], HEADS[OrdinalHead.name]


def test_a_task_is_what_somebody_registered(ordinal, model_folder, tmp_path) -> None:
    task = make_task(ordinal)
    assert isinstance(task.head, OrdinalHead)
    new_backbone(tmp_path / "b", BackbonePlan(id="b", source=f"hf:{model_folder}", task=task))
    written = next((tmp_path / "b/src").rglob("backbone.json")).read_text()
    assert parse_backbone(written.encode()).unwrap("it").task == ordinal
    assert parse_backbone(written.replace(ordinal, "gradez").encode()).value  # perhaps a plugin's
    with pytest.raises(UnknownNameError, match="unknown task 'gradez'"):
        make_task("gradez")


@pytest.mark.parametrize("name", PLUGIN_TASKS)
def test_a_task_of_a_plugin_that_is_not_loaded_names_the_extra(name, monkeypatch) -> None:
    monkeypatch.delitem(TASKS, name, raising=False)
    with pytest.raises(MissingError) as e:
        make_task(name)
    assert e.value.hint == how_to_install(PLUGIN_TASKS[name])


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_task("classification", OrdinalHead)
    with pytest.raises(ValueError, match="registered already"):
        register_task("other", type("Other", (SoftmaxHead,), {}))
