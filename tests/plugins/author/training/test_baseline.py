"""What is trained is worth more than a constant, or it is refused and kept to look at."""

from __future__ import annotations

import math

import pytest
from redhost_author.backbone.adapt import AdaptSettings
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import package_in
from redhost_author.training.baseline import refuse_below_constant

import redhost
from redhost.registry.errors import HarmError


def rows(*labels: str) -> list[redhost.Row]:
    return [redhost.Row(text=f"{n}", label=y) for n, y in enumerate(labels)]


FOUR, HUNDRED = rows("a", "a", "a", "b"), rows(*"aaab" * 25)


@pytest.mark.parametrize(
    ("found", "some", "refused"),
    [
        (0.75, HUNDRED, False),
        (0.73, HUNDRED, False),  # two rows
        (0.70, HUNDRED, True),
        (0.25, FOUR, False),  # of four rows nobody can tell
        (0.0, FOUR, False),
        (0.0, FOUR * 5, True),
        (math.nan, HUNDRED, True),
        (0.0, [], False),
    ],
)
def test_accuracy_below_that_of_the_most_frequent_label_is_refused(found, some, refused) -> None:
    if not refused:
        refuse_below_constant("x", found, some, taught=HUNDRED)
        return
    with pytest.raises(HarmError, match="x has learnt less than nothing") as e:
        refuse_below_constant("x", found, some, taught=HUNDRED)
    assert e.value.exit_code == 1 and e.value.hint


@pytest.mark.parametrize(
    ("error", "times", "refused"),
    [(1.0, 4, False), (1.2, 4, True), (math.nan, 1, True), (9.0, 3, False), (9.0, 4, True)],
)
def test_an_error_above_that_of_the_median_is_refused(error, times, refused) -> None:
    """Of fewer than twenty rows nobody can tell."""
    some = times * rows("1", "2", "3", "2", "4", "0")  # the median is 2, its mean error 1
    taught = [*some, *rows("900", "-900")]
    if not refused:
        refuse_below_constant("x", error, some, taught=taught, numbers=True)
        return
    with pytest.raises(HarmError):
        refuse_below_constant("x", error, some, taught=taught, numbers=True)


def test_a_base_stage_that_learnt_another_thing_is_refused_and_left_on_disk(
    model_folder, tmp_path, texts_of
) -> None:
    """The evaluation rows have the labels swapped; the control has them right."""
    taught = [redhost.Row(text=t, label=y) for t, y in texts_of("red", 60)]
    swapped = [redhost.Row(text=r.text, label={"a": "b", "b": "a"}[r.label]) for r in taught]
    settings = AdaptSettings(last_blocks=0, epochs=20, batch=16)

    def make(name: str, evaluation: list[redhost.Row]) -> None:
        new_backbone(
            tmp_path / name,
            BackbonePlan(id=name, source=f"hf:{model_folder}"),
            rows=taught,
            settings=settings,
            evaluation=evaluation,
        )

    make("right", taught)
    with pytest.raises(HarmError, match="backbone 'wrong'"):
        make("wrong", swapped)
    assert (package_in(tmp_path / "wrong") / "backbone.json").exists()
