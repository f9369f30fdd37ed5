"""The routes that answer and show."""

from __future__ import annotations

import dataclasses
import http.client
from typing import Any

import msgspec
from redhost_serve.client import INFER, Client
from redhost_serve.server import running
from redhost_serve.service import Options
from redhost_serve.wire import InferRequest, decode, infer_reply

import redhost

TEXT = "What is 37 plus 12?"


def infer(tensor: dict[str, Any], **more: Any) -> dict[str, Any]:
    plain = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}
    return {"inputs": [{**plain, **tensor}], **more}


def test_health_and_metadata(shared) -> None:
    with Client(shared) as client:
        assert client.get("/v2/health/live").body == {"live": True}
        assert client.get("/v2/health/ready").body == {"ready": True}
        assert client.get("/v2/models/redhost/ready").body == {"ready": True}
        assert client.get("/v2").body["extensions"] == ["model_repository", "metrics"]
        model = client.get("/v2/models/redhost").body
        assert model["versions"] == ["3"]
        assert [t["name"] for t in model["outputs"]] == [
            "label",
            "declined",
            "probability",
            "weights",
        ]
        assert client.get("/v2/models/other").status == 404


def test_infer_answers_as_the_host_does_and_names_its_generation(shared, composed_home) -> None:
    with Client(shared) as client:
        reply = client.infer([TEXT])
    [answer] = redhost.Host.open(composed_home, plugins=redhost.plugins.Plugins(())).predict([TEXT])
    assert (reply.status, reply.generation) == (200, answer.generation)
    assert reply.output("label") == [answer.label] == ["49"]
    assert reply.output("probability") == [answer.probability]  # the very same bits
    assert reply.output("weights") == list(answer.weights.values())


def test_infer_tells_which_texts_are_declined(composed_home) -> None:
    host = redhost.Host.open(composed_home, plugins=redhost.plugins.Plugins(()))
    [answer] = host.predict([TEXT])
    answers = [answer, dataclasses.replace(answer, label="none", declined=True)]
    reply = infer_reply(decode(msgspec.json.encode(infer({})), InferRequest), answers, model="m")
    made = {tensor.name: tensor for tensor in reply.outputs}
    assert list(made["declined"].data) == [False, True] and made["declined"].datatype == "BOOL"


def test_infer_reads_nested_data_and_returns_what_is_wanted(shared) -> None:
    payload = infer(
        {"shape": [2, 1], "data": [[TEXT], [TEXT]]}, id="mine", outputs=[{"name": "label"}]
    )
    with Client(shared) as client:
        body = client.post(INFER, payload).body
        assert client.post(INFER, infer({}, outputs=[{"name": "value"}])).status == 400
    assert (body["id"], [o["name"] for o in body["outputs"]]) == ("mine", ["label"])
    assert body["outputs"][0]["data"] == ["49", "49"]


def test_infer_says_how_many_texts_were_cut(shared, composed_home) -> None:
    host = redhost.Host.open(composed_home, plugins=redhost.plugins.Plugins(()))
    with Client(shared) as client:
        whole = client.post(INFER, infer({})).body
        cut = client.post(INFER, infer({"shape": [2], "data": [TEXT, "7 " * 2000]})).body
    longest = host.composed.backbone.trunk.longest
    assert "parameters" not in whole
    assert cut["parameters"] == {"cut_texts": 1, "cut_tokens": longest}
    assert [a.cut for a in host.predict([TEXT, "7 " * 2000])] == [None, longest]


def test_route_says_whose_a_text_is_as_the_host_does(home, open_live) -> None:
    host = redhost.Host.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))
    host.recompose(router="evidence", accept=True)
    with running(open_live(home), options=Options()) as (url, _), Client(url) as client:
        refused = client.post("/v1/route", {"texts": [TEXT]})
        assert client.post("/v1/route", {"texts": []}).status == 400
        assert client.post("/v1/route", {"texts": [TEXT] * 65}).status == 400
    assert refused.status == 400 and "this router asks them" in refused.body["error"]
    host.recompose(router="ridge", accept=True)
    texts = [TEXT, "What is 3 plus 4?"]
    expected = [{"expert": r.expert, "weights": r.weights} for r in host.route(texts)]
    with running(open_live(home), options=Options()) as (url, _), Client(url) as client:
        reply = client.post("/v1/route", {"texts": texts})
    assert reply.status == 200
    assert reply.body == {"generation": 5, "routes": expected}


def test_the_listing_shows_experts_generations_and_accuracy(shared) -> None:
    with Client(shared) as client:
        model, *_ = client.get("/v1/models").body["data"]
        generations = client.get("/v1/generations").body["data"]
        index = client.post("/v2/repository/index", {}).body
    experts = {x["id"]: x for x in model["experts"]}
    assert (model["generation"], model["parent"], model["admin"]) == (3, 2, False)
    assert experts["range1"]["state"] == "attached" and experts["range1"]["serving"]
    assert [g["number"] for g in generations] == [3, 2, 1]
    assert set(generations[0]["accuracy"]) == set(generations[0]["experts"])
    assert [x["state"] for x in index] == ["UNAVAILABLE", "UNAVAILABLE", "READY"]


def test_metrics_count_requests_and_name_the_generation(shared) -> None:
    with Client(shared) as client:
        client.infer([TEXT])
        text = client.get("/metrics").body.decode()
    assert f'redhost_requests_total{{route="{INFER.replace("redhost", "{name}", 1)}"' in text
    assert "redhost_generation 3.0" in text and "redhost_generations_alive 1.0" in text


def test_the_page_loads_from_nobody_else(shared) -> None:
    for path in ("/", "/static/page.css", "/static/page.js"):
        connection = http.client.HTTPConnection(shared.removeprefix("http://"))
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200 and b"://" not in answer.read().replace(
            b"http://www.w3.org", b""
        )
        assert "default-src 'none'" in (answer.getheader("Content-Security-Policy") or "")
        connection.close()
