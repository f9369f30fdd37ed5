"""Why an answer, and a generation on one page: figures are the host's, pages load nothing."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from redhost_report.cli import explain as explain_command
from redhost_report.cli import report as report_command
from redhost_report.explain import explain
from redhost_report.report import report

import redhost
from redhost.core.routers.domain_statistics import Statistics

TEXTS = ("What is 37 plus 12?", "good morning <b>to</b> you & me")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    home = tmp_path_factory.mktemp("report") / "home"
    redhost.Host.open(home, backbone="tiny").recompose(decline=0.05)
    return home


@pytest.fixture(scope="module")
def host(home: Path) -> redhost.Host:
    return redhost.Host.open(home)


def run(command, *arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def test_an_explanation_is_made_of_the_hosts_own_figures(host) -> None:
    for found, answer in zip(explain(host, TEXTS), host.predict(TEXTS, each=True), strict=True):
        assert (found.input, found.label, found.probability) == (
            answer.input,
            answer.label,
            answer.probability,
        )
        assert found.weights == answer.weights and (found.declined is not None) == answer.declined
        assert [*found.weights.values()] == sorted(found.weights.values(), reverse=True)
        for i, own in found.by_expert.items():
            expected = (answer.by_expert or {})[i]
            assert (own.label, own.probability) == (expected.label, expected.probability)
            assert (own.declined, own.weight) == (expected.declined, answer.weights[i])
    [strange] = explain(host, TEXTS[1:])
    assert "familiarity" in (strange.declined or "") and strange.label == "none"


def test_the_nearest_rows_are_those_of_the_largest_cosine(host) -> None:
    [found] = explain(host, TEXTS[:1])
    model = host.composed
    rows = [(i, r) for i, card in model.cards.items() for r in card.rows]
    z = model.bus.norm(model.backbone.encode([TEXTS[0], *(r.text for _, r in rows)]))
    cosine = torch.nn.functional.cosine_similarity(z[1:], z[:1])
    best = cosine.topk(5)
    assert [n.similarity for n in found.nearest] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert {(n.expert, n.text) for n in found.nearest} == {
        (rows[k][0], rows[k][1].text) for k in best.indices.tolist()
    }
    assert found.nearest[0].expert == "range3" and found.nearest[0].label == "49"


def test_only_blank_texts_are_refused(home) -> None:
    with pytest.raises(redhost.UsageError):
        run(explain_command, "", " ", "--home", str(home))
    assert run(explain_command, "", TEXTS[0], "--home", str(home)).exit_code == 0


class Reader(html.parser.HTMLParser):
    """What a page loads, and which tags it opens without closing."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.loads, self.open = list[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [v or "" for k, v in attrs if k in {"src", "href", "data"}]
        if tag not in {"br", "meta", "html", "body"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in {"html", "body"}:
            assert self.open.pop() == tag


def test_an_explanation_as_a_page_shows_texts_as_texts(home, tmp_path) -> None:
    page = tmp_path / "why.html"
    done = run(explain_command, *TEXTS, "--home", str(home), "--html", str(page))
    assert done.exit_code == 0 and done.output == f"{page}: {len(TEXTS)} texts\n"
    text = page.read_text("utf-8")
    reader = Reader(text)
    assert reader.loads == [] and reader.open == [] and "<script" not in text
    assert "<b>to" not in text and "good morning &lt;b&gt;to&lt;/b&gt; you &amp; me" in text
    assert "What is 36 plus 13?" in text


def test_a_generation_as_a_page(home, host, tmp_path) -> None:
    page = tmp_path / "generation.html"
    done = run(report_command, str(page), "--home", str(home), "--json")
    found, text = json.loads(done.output), page.read_text("utf-8")
    reader = Reader(text)
    assert reader.loads == [] and reader.open == [] and "<script" not in text
    record = host.generations.load(1)
    assert [m["digest"] for m in found["members"]] == [m.digest for m in record.experts]
    assert all(m["unchanged"] and m["digest"][:16] in text for m in found["members"])
    evaluation = host.evaluate()
    assert found["evaluation"]["overall"] == evaluation.overall
    assert f"{evaluation.reliability.ece:.3f}" in text
    assert len(re.findall("<circle", text)) == len(evaluation.reliability.bins)
    assert found["receipt"]["accuracy"]["rows"] == {m["id"]: m["rows"] for m in found["members"]}


def test_rows_are_left_alone_where_they_are_not_wanted(host, home, tmp_path) -> None:
    assert report(host, evaluate=False).evaluation is None
    page = tmp_path / "short.html"
    assert run(report_command, str(page), "--home", str(home), "--no-evaluation").exit_code == 0
    assert "Held-out" not in page.read_text("utf-8")


def test_a_file_that_is_there_is_replaced_only_with_force(home, tmp_path) -> None:
    file = tmp_path / "mine.html"
    for command in (
        [explain_command, TEXTS[0], "--html", str(file), "--home", str(home)],
        [report_command, str(file), "--home", str(home), "--no-evaluation"],
    ):
        file.write_text("mine", "utf-8")
        with pytest.raises(redhost.UsageError, match="--force"):
            run(*command)
        assert file.read_text("utf-8") == "mine"
        assert run(*command, "--force").exit_code == 0
        assert "What is" in file.read_text("utf-8") or "range1" in file.read_text("utf-8")


def test_what_cannot_be_written_is_one_line(home, tmp_path) -> None:
    with pytest.raises(redhost.UsageError):
        run(report_command, str(tmp_path / "no" / "page.html"), "--home", str(home))


def test_a_composition_without_rows_shows_the_means_of_labels(host, monkeypatch) -> None:
    import dataclasses

    model = host.composed
    card = model.cards["range3"]
    rows = [r for r in card.rows if r.part == "fit"]
    z = model.bus.norm(model.backbone.encode([r.text for r in rows]))
    sums = Statistics.of_rows(z, [r.label for r in rows])
    only = dataclasses.replace(card, kind="statistics", rows=(), statistics=sums)
    without = dataclasses.replace(model, cards={"range3": only})
    monkeypatch.setattr(host, "_current", lambda *, lazy: without)
    [found] = explain(host, TEXTS[:1])
    assert {n.text for n in found.nearest} == {None} and found.nearest[0].label == "49"
