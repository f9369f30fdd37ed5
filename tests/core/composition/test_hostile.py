"""What is wrong with a newcomer leaves the newcomer out, by name, whatever it brings."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redhost_author
import safetensors.numpy
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import redhost
from redhost.core.composition import train as joint
from redhost.registry.errors import CompositionError, ContractError, HarmError, HijackError

TEXTS = ["red 61 b", "green 62 c", "nothing 4"]
ODD = "red-expert-odd"
Arrays = Mapping[str, Any]


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="toy")


def answers(home: Path) -> list[tuple[str, float | None]]:
    return [(a.label, a.probability) for a in open_host(home).predict(TEXTS)]


def rewrite(folder: Path, name: str, data: bytes, part: str, **changes: object) -> None:
    """Change a file of a package, and its manifest as its author would."""
    (folder / name).write_bytes(data)
    path = folder / "expert.json"
    manifest = json.loads(path.read_text())
    digest = hashlib.sha256(data).hexdigest()
    manifest[part] |= {"file": name, "sha256": digest, **changes}
    path.write_text(json.dumps(manifest))


def with_texts(folder: Path, rows: list[tuple[str, str]], *, gate: int = 0) -> None:
    parts = ["gate" if n < gate else "fit" for n in range(len(rows))]
    lines = [
        json.dumps({"text": t, "label": y, "part": p}) + "\n"
        for (t, y), p in zip(rows, parts, strict=True)
    ]
    data = "".join(lines).encode()
    counts = {"fit": len(rows) - gate, "gate": gate}
    rewrite(folder, "card.jsonl", data, "card", kind="texts", **counts)


def with_tensors(folder: Path, tensors: Arrays, *, kind: str, fit: int, gate: int = 0) -> None:
    data = safetensors.numpy.save({n: np.ascontiguousarray(t) for n, t in tensors.items()})
    rewrite(folder, "card.safetensors", data, "card", kind=kind, fit=fit, gate=gate)


def vectors(z: Any, *, scale: float = 1.0) -> Arrays:
    """A card of the rows ``(N, D)``, which are its gate rows too."""
    labels = np.arange(len(z)) % 2
    rows = np.full((len(z), 1), scale, "f4")
    gate = {"gate_z": z, "gate_label": labels, "gate_scale": rows, "gate_shift": rows * 0}
    return {"fit_z": z, "fit_label": labels, **gate}


def statistics(z: Any) -> Arrays:
    sums = np.stack([z[0::2].sum(0), z[1::2].sum(0)])
    scatter = (z.T @ z)[np.triu_indices(z.shape[1])]
    return {"counts": np.array([len(z[0::2]), len(z[1::2])]), "sums": sums, "scatter": scatter}


WIDTH = 16


def scaled(size: float) -> Any:
    noise = np.random.default_rng(0).standard_normal((8, WIDTH))
    with np.errstate(over="ignore"):  # to infinity, which no card may have
        return (noise * size).astype("f4")


def say(folder: Path, z: Any, *, kind: str = "vectors", scale: float = 1.0) -> None:
    with np.errstate(over="ignore"):
        tensors = vectors(z, scale=scale) if kind == "vectors" else statistics(z)
    gate = len(z) if kind == "vectors" else 0
    with_tensors(folder, tensors, kind=kind, fit=len(z), gate=gate)


def without_card(folder: Path) -> None:
    path = folder / "expert.json"
    manifest = json.loads(path.read_text())
    manifest["card"] = {"kind": "none", "fit": 0, "gate": 0}
    path.write_text(json.dumps(manifest))


Hostile = Callable[[Path], None]
REFUSED: dict[str, tuple[Hostile, str]] = {
    "huge vectors": (lambda f: say(f, scaled(1e37)), "card_range"),
    "large vectors": (lambda f: say(f, scaled(1e3)), "card_range"),
    "huge features": (lambda f: say(f, scaled(1.0), scale=1e30), "card_range"),
    "huge sums": (lambda f: say(f, scaled(1e15), kind="statistics"), "card_range"),
    "an empty text": (lambda f: with_texts(f, [("red 1", "a"), ("", "b")]), "card_rows"),
    "a text of nine megabytes": (lambda f: with_texts(f, [("x" * 9 * 2**20, "a")]), "card_rows"),
    "no card": (without_card, "card_rows"),
}
TAKEN: dict[str, Hostile] = {
    "one row": lambda f: with_texts(f, [("odd 1", "a")]),
    "rows that are all the same": lambda f: with_texts(f, [("odd 1", "a")] * 9, gate=3),
    "ordinary vectors": lambda f: say(f, scaled(1.0)),
    "ordinary sums": lambda f: say(f, scaled(1.0), kind="statistics"),
}
"""The twins: as odd, and a router can learn from them."""


@pytest.fixture(scope="module")
def odd_folder(build_expert: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = build_expert(tmp_path_factory.mktemp("odd"), "red", expert_id="odd")
    return folder


@pytest.fixture(scope="module")
def members_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home where the members are composed once, by the first test that needs it."""
    return tmp_path_factory.mktemp("members") / "home"


@pytest.fixture
def newcomer(installed: Any, home: Path, members_home: Path, odd_folder: Path) -> Path:
    """The folder of an expert that was installed after a composition without it."""
    if not members_home.exists():
        open_host(members_home).recompose(router="statistics")
    shutil.copytree(members_home, home)
    installed.install(odd_folder.parents[1])
    folder: Path = installed.package(ODD)
    return folder


def code_of(receipt: redhost.Receipt) -> str | None:
    """Return the code under which the newcomer was left out; None where it is in."""
    left = {x.id: x.code for x in receipt.left_out}
    assert ("odd" in receipt.experts) != ("odd" in left)
    assert receipt.withdrawn == () and {"blue", "green", "red"} <= set(receipt.experts)
    return left.get("odd")


@pytest.mark.parametrize("name", REFUSED)
def test_a_newcomer_with_such_a_card_is_left_out(installed, newcomer, home, name) -> None:
    before, (hostile, code) = answers(home), REFUSED[name]
    hostile(newcomer)
    installed.seal(ODD)
    receipt = open_host(home).recompose(router="statistics")
    assert code_of(receipt) == code
    assert answers(home) == before


@pytest.mark.parametrize("name", TAKEN)
def test_a_newcomer_with_a_card_that_teaches_is_taken(installed, newcomer, home, name) -> None:
    TAKEN[name](newcomer)
    installed.seal(ODD)
    host = open_host(home)
    assert code_of(host.recompose(router="statistics", accept=True)) is None


numbers = st.sampled_from([0.0, 1e-45, 1e-38, 1e-3, 1.0, 4.0, 5e5, 1e19, 1e37, 3e38])
texts = st.one_of(st.text(max_size=12), st.sampled_from(["", " ", "\0", "\u202e", "a" * 70_000]))
labels = st.sampled_from(["a", "b"])
cards = st.one_of(
    st.tuples(st.just("texts"), st.lists(st.tuples(texts, labels), min_size=1, max_size=6)),
    st.tuples(
        st.sampled_from(["vectors", "statistics"]),
        st.tuples(numbers, st.integers(2, 6), st.booleans(), numbers),
    ),
)


def dress(folder: Path, card: tuple[str, Any]) -> None:
    """Give an expert a card that a fuzzer thought of."""
    kind, given = card
    if kind == "texts":
        with_texts(folder, given, gate=len(given) // 2)
        return
    size, rows, constant, scale = given
    z = np.full((rows, WIDTH), size, "f4") if constant else scaled(size)[:rows]
    say(folder, z, kind=kind, scale=scale)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(card=cards, router=st.sampled_from(["statistics", "quadratic", "evidence"]))
def test_no_card_stops_a_recompose(installed, newcomer, home, card, router) -> None:
    """It is left out by name, or accepted; one that is left out changes no answer."""
    host = open_host(home)
    dress(newcomer, card)
    installed.seal(ODD)
    without = redhost_without(home, router)
    receipt = host.recompose(router=router, dry_run=True)
    code = code_of(receipt)
    if code is not None:
        assert receipt.router.digest == without
    assert receipt.accuracy.overall is not None and math.isfinite(receipt.accuracy.overall)


def redhost_without(home: Path, router: str) -> str:
    """Return the digest of the router that the members alone give."""
    from redhost.registry.queries.settings import set_disabled

    set_disabled(home, "odd")
    try:
        return open_host(home).recompose(router=router, dry_run=True).router.digest
    finally:
        set_disabled(home, "odd", to=False)


# -- a fault that shows only where all are together ------------------------------------------------


def breaking(monkeypatch: pytest.MonkeyPatch, expert_id: str, error: Exception) -> None:
    """Let the router's training fail wherever an expert takes part."""
    plain = joint._train

    def train(inputs: Any, options: Any, router: Any, data: Any, *, progress: Any) -> Any:
        if expert_id in inputs.candidates.experts:
            raise error
        return plain(inputs, options, router, data, progress=progress)

    monkeypatch.setattr(joint, "_train", train)


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), RuntimeError("singular")])
def test_a_fault_in_a_joint_step_is_put_to_the_newcomer(
    installed, newcomer, home, monkeypatch, error
) -> None:
    before = answers(home)
    breaking(monkeypatch, "odd", error)
    receipt = open_host(home).recompose(router="statistics")
    [left] = [x for x in receipt.left_out if x.id == "odd"]
    assert left.code == "not_computable" and type(error).__name__ in left.reason
    assert code_of(receipt) and answers(home) == before


def test_a_copy_that_would_harm_is_named_as_one(installed, newcomer, home, monkeypatch) -> None:
    """The control has rows of its own: then the code says what it does to others."""
    before = answers(home)
    breaking(monkeypatch, "odd", HijackError("domain 'red' would fall by 9 points"))
    [left] = [x for x in open_host(home).recompose().left_out if x.id == "odd"]
    line = "expected rows of its own, found the 20 rows of expert 'red', with the same labels"
    assert (left.code, left.reason) == ("same_rows", f"card: {line}")
    with pytest.raises(ContractError, match=f"'odd' .* was not attached: .*{line}") as e:
        open_host(home).attach("odd")
    assert "redhost remove ID" in e.value.hint and "rows of its own" in e.value.hint
    with_texts(newcomer, [("odd 1", "a"), ("odd 2", "b")])
    installed.seal(ODD)
    assert code_of(open_host(home).recompose()) == "hijack"
    assert answers(home) == before


def test_a_fault_with_the_members_alone_is_nobodys(newcomer, home, monkeypatch) -> None:
    before = answers(home)
    breaking(monkeypatch, "red", RuntimeError("singular"))
    with pytest.raises(CompositionError, match="RuntimeError: singular") as e:
        open_host(home).recompose(router="statistics")
    assert e.value.exit_code == 1 and "\n" not in str(e.value)
    assert open_host(home).generations.current() == 1 and answers(home) == before


def test_a_fault_of_an_updated_member_refuses_by_its_name(
    installed, home, monkeypatch, build_expert, tmp_path
) -> None:
    open_host(home).recompose(router="statistics")
    before = answers(home)
    installed.uninstall("red-expert-red")
    changed = redhost_author.ExpertSettings(rank=8, epochs=61, learning_rate=1e-2)
    installed.install(build_expert(tmp_path / "new", "red", settings=changed).parents[1])
    breaking(monkeypatch, "red", RuntimeError("singular"))
    with pytest.raises(HarmError, match="expert 'red' is in the current composition"):
        open_host(home).recompose(router="statistics")
    assert open_host(home).generations.current() == 1 and answers(home) == before


def test_what_is_nobodys_expert_is_not_put_to_one(newcomer, home, monkeypatch) -> None:
    """Control: a full disk blames nobody."""
    breaking(monkeypatch, "odd", OSError("no space left"))
    with pytest.raises(OSError, match="no space left"):
        open_host(home).recompose(router="statistics")


# -- weights and canaries --------------------------------------------------------------------------


def louder(folder: Path, times: float) -> None:
    """Multiply what an expert says; its canary and manifest agree."""
    weights = safetensors.numpy.load_file(folder / "expert.safetensors")
    canary = safetensors.numpy.load_file(folder / "canary.safetensors")
    weights["V"] = weights["V"] * np.float32(times)
    canary["delta"] = canary["delta"] * np.float32(times)
    manifest = json.loads((folder / "expert.json").read_text())
    manifest["off_domain"] = None
    (folder / "expert.json").write_text(json.dumps(manifest))
    rewrite(folder, "expert.safetensors", safetensors.numpy.save(weights), "weights")
    loudest = float(np.abs(canary["delta"]).max())
    tolerance = 1e-3 * max(1.0, loudest)
    data = safetensors.numpy.save(canary)
    rewrite(folder, "canary.safetensors", data, "canary", tolerance=tolerance)


@pytest.mark.parametrize(("times", "taken"), [(3.0, True), (1e5, False), (1e6, False)])
def test_an_expert_that_drowns_out_the_others_is_left_out(
    installed, newcomer, home, times, taken
) -> None:
    before = answers(home)
    louder(newcomer, times)
    installed.seal(ODD)
    receipt = open_host(home).recompose(router="statistics", accept=True)
    assert (code_of(receipt) is None) == taken
    if not taken:
        [left] = [x for x in receipt.left_out if x.id == "odd"]
        assert left.code in {"canary_range", "not_computable", "weights_range"}
        assert answers(home) == before
