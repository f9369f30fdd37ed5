"""Several questions, and two backbones, behind one address: over real HTTP."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from redhost_author.testing import backbone_project, expert_project
from redhost_serve.client import Client, Reply
from redhost_serve.process import serving
from redhost_serve.server import running
from redhost_serve.service import Service
from redhost_serve.watch import Watch

import redhost
from redhost.testing import Environment

TEXTS = ["What is 37 plus 12?", "odd 7"]
TOKEN = "a token that nobody guesses"


@pytest.fixture(scope="module")
def composed(tmp_path_factory) -> Iterator[Path]:
    """The shipped experts on one backbone; odd and even on another, for the question parity."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("questions")
    backbone = backbone_project(folder / "red-backbone-tiny-random")
    site = folder / "site"
    site.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        environment = Environment(site)
        environment.install(backbone)
        for name in ("odd", "even"):
            project = folder / f"red-expert-{name}"
            expert_project(project, name, backbone, question="parity")
            environment.install(project)
        home = folder / "home"
        open_host(home, None, "tiny").recompose()
        for router in ("evidence", "centroid"):
            open_host(home, "parity", "tiny-random").recompose(router=router, accept=True)
        patch.setenv("PYTHONPATH", str(site))
        yield home


def open_host(home: Path, question: str | None, backbone: str | None = None) -> redhost.Host:
    plugins = redhost.plugins.Plugins(())
    return redhost.Host.open(home, question=question, backbone=backbone, plugins=plugins)


@pytest.fixture
def home(composed: Path, tmp_path: Path) -> Path:
    home = tmp_path / "home"
    shutil.copytree(composed, home)
    return home


@pytest.fixture
def served(home: Path) -> Iterator[tuple[Client, Service]]:
    live = redhost.Live.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))
    with running(live, token=TOKEN) as (url, service), Client(url, token=TOKEN) as client:
        yield client, service


def infer(client: Client, model: str, texts: list[str] = TEXTS) -> Reply:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    return client.post(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def test_each_question_is_a_model_and_answers_as_its_host_does(served, home) -> None:
    client, service = served
    for model, question in (("redhost", None), ("redhost:parity", "parity")):
        reply = infer(client, model)
        alone = open_host(home, question).predict(TEXTS)
        assert (reply.status, reply.body["model_name"]) == (200, model)
        assert reply.generation == alone[0].generation
        assert reply.output("probability") == [a.probability for a in alone]  # the very same bits
        assert client.get(f"/v2/models/{model}/ready").body == {"ready": True}
    assert {m.backbone.name for m in (service.composed, service.named["parity"].composed)} == {
        "tiny",
        "tiny-random",
    }
    assert infer(client, "redhost:other").status == 404
    assert client.get("/v2/models/redhost:parity").body["versions"] == ["2"]


def test_the_other_routes_name_the_question(served, home) -> None:
    client, _ = served
    models = client.get("/v1/models").body["data"]
    assert [(m["id"], m["question"], m["backbone"]) for m in models if m["id"] == m["root"]] == [
        ("redhost", None, "tiny"),
        ("redhost:parity", "parity", "tiny-random"),
    ]
    assert {m["parent"] for m in models if m["id"] in {"odd", "even"}} == {"redhost:parity"}
    experts = {m["id"]: {x["id"] for x in m["experts"]} for m in models if m["id"] == m["root"]}
    assert experts["redhost:parity"] == {"odd", "even"} and not experts["redhost"] & {"odd"}
    route = client.post("/v1/route", {"texts": TEXTS, "question": "parity"}).body
    assert set(route["routes"][0]["weights"]) == {"odd", "even", "backbone"}
    assert client.post("/v1/route", {"texts": TEXTS, "question": "other"}).status == 404
    generations = client.get("/v1/generations?model=redhost:parity").body["data"]
    assert [g["number"] for g in generations] == [2, 1]
    for model in ("redhost:parity", "odd"):
        body = client.post("/classify", {"model": model, "input": TEXTS[1]}).body
        assert body["data"][0]["label"] in {"a", "b"}
    names = {(x["name"], x["version"]) for x in client.post("/v2/repository/index", {}).body}
    assert names == {("redhost", "1"), ("redhost:parity", "1"), ("redhost:parity", "2")}
    vector = client.post("/v1/embeddings", {"model": "redhost:parity", "input": "odd 7"}).body
    width = len(vector["data"][0]["embedding"])
    assert width == open_host(home, "parity").composed.backbone.width


def test_all_questions_are_answered_by_one_request(served, home) -> None:
    client, _ = served
    body = client.post("/classify", {"model": "auto", "input": TEXTS, "questions": True}).body
    for n, answer in enumerate(open_host(home, None).predict(TEXTS)):
        row, beside = body["data"][n], answer.named["parity"]
        assert (row["label"], row["probability"]) == (answer.label, answer.probability)
        parity = row["questions"]["parity"]
        assert (parity["label"], parity["probability"]) == (beside.label, beside.probability)
    assert body["redhost"] == {"generation": 1, "questions": {"parity": 2}}
    wrong = {"model": "odd", "input": TEXTS, "questions": True}
    assert client.post("/classify", wrong).status == 400
    text = client.get("/metrics").body.decode()
    assert 'redhost_generation_texts_total{generation="1"} 2.0' in text
    assert 'redhost_generation_texts_total{generation="2",question="parity"} 2.0' in text
    assert text.count("# TYPE redhost_generation_texts_total counter") == 1


def test_all_questions_are_answered_where_only_named_ones_are_composed(served, home) -> None:
    client, service = served
    wanted = {"model": "auto", "input": TEXTS, "questions": True}
    for path in ("redhost", "redhost:parity"):
        assert client.post("/classify", wanted).status == 200
        assert client.post(f"/v2/repository/models/{path}/unload", {}).status == 200
        if path == "redhost":
            body = client.post("/classify", wanted).body
            [_, answer] = service.named["parity"].live.predict(TEXTS)
            assert body["data"][1]["questions"]["parity"]["label"] == answer.label
            assert body["data"][1]["declined"] and body["usage"]["prompt_tokens"] > 0
            assert body["redhost"] == {"generation": None, "questions": {"parity": 2}}
    assert client.post("/classify", wanted).status == 503


def test_a_swap_of_one_question_leaves_the_other_as_it_is(served, home) -> None:
    client, service = served
    before = infer(client, "redhost").body
    swapped = client.post("/admin/swap", {"generation": 1, "question": "parity"})
    assert swapped.body == {"generation": 1, "previous": 2}
    assert infer(client, "redhost:parity").generation == 1
    assert infer(client, "redhost").body == before
    assert open_host(home, "parity").generations.current() == 1
    stale = {"parameters": {"generation": 2, "expected_generation": 2}}
    assert client.post("/v2/repository/models/redhost:parity/load", stale).status == 412
    assert client.post("/v2/repository/models/redhost:parity/unload", {}).status == 200
    assert client.get("/v2/models/redhost:parity/ready").status == 503
    assert client.get("/v2/health/ready").status == 200
    assert client.post("/v2/repository/models/redhost:parity/load", {}).status == 200
    assert client.post("/admin/rollback", {"question": "other"}).status == 404
    assert service.live.generation == 1


def test_what_is_composed_while_it_is_served_answers_from_then_on(served, home) -> None:
    client, service = served
    shutil.copytree(home / "questions" / "parity", home / "questions" / "again")
    Watch(service, backbone="tiny").look()
    assert (
        infer(client, "redhost:again").body["outputs"]
        == infer(client, "redhost:parity").body["outputs"]
    )
    open_host(home, "again").rollback(1)
    Watch(service, backbone="tiny").look()
    assert infer(client, "redhost:again").generation == 1


def test_a_question_is_opened_once_however_many_look_for_it(served, home, monkeypatch) -> None:
    _, service = served
    shutil.copytree(home / "questions" / "parity", home / "questions" / "again")
    both, opened, open_question = threading.Barrier(2), [], redhost.Live.of_question

    def slow(live: redhost.Live, name: str) -> redhost.Live:
        opened.append(name)
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(0.5)  # for another that opens it as well
        return open_question(live, name)

    monkeypatch.setattr(redhost.Live, "of_question", slow)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(service.find_questions) for _ in range(2)]:
            done.result()
    assert opened == ["again"] and set(service.named) == {"parity", "again"}


def test_a_question_that_is_loaded_while_others_are_looked_at_is_looked_at_next(
    served, home, monkeypatch
) -> None:
    _, service = served
    watch, found = Watch(service, backbone="tiny"), Service.find_questions
    shutil.copytree(home / "questions" / "parity", home / "questions" / "again")
    looked: list[str | None] = []

    def load_meanwhile(self: Watch) -> None:
        looked.append(self.service.question)
        if self is not watch:
            found(service)  # as a request to load it does, in a thread of its own

    monkeypatch.setattr(Watch, "_look", load_meanwhile)
    monkeypatch.setattr(Service, "find_questions", lambda self: None)
    watch.look()
    assert looked == [None, "parity"]
    watch.look()
    assert looked[2:] == [None, "parity", "again"]


def test_watch_composes_the_question_whose_expert_left(served, composed) -> None:
    client, service = served
    watch, environment = Watch(service, backbone="tiny"), Environment(composed.parent / "site")
    watch.look()
    before = infer(client, "redhost").body
    environment.uninstall("red-expert-odd")
    try:
        for _ in range(2):  # packages changed, and came to rest
            watch.look()
    finally:
        environment.install(composed.parent / "red-expert-odd")
    client.connection.close()  # it was not used for longer than the server waits
    assert (service.candidate.state, service.live.generation) == ("unchanged", 1)
    assert service.named["parity"].candidate.state == "published"
    reply = infer(client, "redhost:parity")
    assert reply.generation == 3 and infer(client, "redhost").body == before
    assert reply.body["outputs"][-1]["parameters"]["columns"] == ["even", "backbone"]


def test_one_process_serves_two_backbones_and_one_question_alone(home) -> None:
    with serving(home) as server, Client(server.url) as client:
        assert infer(client, "redhost").output("label")[0] == "49"
        assert infer(client, "redhost:parity").generation == 2
    with serving(home, "--question", "parity") as server, Client(server.url) as client:
        assert infer(client, "redhost").status == 404
        bodies = [{"model": model, "input": "odd 7"} for model in ("auto", "redhost:parity")]
        one, two = (client.post("/classify", x).body["data"] for x in bodies)
        assert one == two


def test_a_question_that_cannot_be_served_holds_up_no_other(home) -> None:
    record = home / "questions" / "parity" / "generations" / "2" / "composition.json"
    whole = record.read_bytes()
    record.write_bytes(b"{}")
    live = redhost.Live.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))
    with running(live, token=TOKEN) as (url, service), Client(url, token=TOKEN) as client:
        assert infer(client, "redhost").output("label")[0] == "49"
        assert infer(client, "redhost:parity").status == 404
        record.write_bytes(whole)
        open_host(home, "parity").rollback(1)
        assert client.post("/v2/repository/models/redhost:parity/load", {}).status == 200
        assert infer(client, "redhost:parity").generation == 1
        assert service.ready
