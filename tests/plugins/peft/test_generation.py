"""Adapters where text is generated: imported or trained, routed once, decoded as PEFT does."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import redhost_author
import torch
from redhost_author.project import ExpertPlan, package_in
from redhost_author.training.recipes import train_package
from redhost_generate import batch, lower, sessions
from redhost_generate.batch import passes
from redhost_generate.decode import generate, read_batch
from redhost_generate.documents import split_documents
from redhost_generate.sessions import ChosenSession, routes_once, session_of
from redhost_generate.tokens import start_of, tokenize
from warm_start import warm_command

import redhost
from redhost.core.backbones.encoder import blocks_of
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.backbones.interventions import hooked
from redhost.core.backbones.interventions.layout import Inside, bus_part, read_tokens, with_layout
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.signals import BusRouter
from redhost.core.composition.recompose import compose
from redhost.core.model.build import make_expert_module
from redhost.core.model.composed import ComposedModel
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert
from redhost.testing import Environment

from ...support.sessions import step_together

PROMPTS = {"sums": "3 + 4 = ", "tales": "the cat sat ", "code": "def f3(x):"}
LONG = 24


@pytest.fixture(scope="module")
def adapted(speaker_folder, adapter_packages) -> ComposedModel:
    """The three, under the default router."""
    torch.set_num_threads(1)
    return compose(speaker_folder, list(adapter_packages.values())).composed


@pytest.fixture(scope="module")
def peft_says(saved_adapters, speaker_model) -> Callable[[str, list[int], int], list[int]]:
    """Return the function from an adapter's name and tokens to what PEFT's model goes on with."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    def says(name: str, ids: list[int], count: int) -> list[int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AutoModelForCausalLM.from_pretrained(speaker_model, dtype=torch.float32)
            named = PeftModel.from_pretrained(model, saved_adapters[name], adapter_name=name).eval()
            named.set_adapter(name)
            tokens = torch.tensor([ids])
            out = named.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=count,
            )
        return out[0, len(ids) :].tolist()

    return says


def ids_of(model: ComposedModel, text: str) -> list[int]:
    trunk = model.backbone.trunk
    return [start_of(trunk), *tokenize(trunk, text)]


class Always(BusRouter):
    """A router of one column."""

    def __init__(self, column: int, columns: int) -> None:
        super().__init__()
        self.logits = torch.full((columns,), -10.0)
        self.logits[column] = 10.0

    def forward(self, z: torch.Tensor, signals: object = None) -> torch.Tensor:
        return self.logits.expand(len(z), -1)


def chosen(model: ComposedModel, name: str) -> ComposedModel:
    """Return the composition with a router that always names one column."""
    bus = copy.copy(model.bus)
    bus._modules = dict(model.bus._modules)
    bus.router = Always(model.bus.columns.index(name), len(model.bus.columns))  # type: ignore[assignment]
    return dataclasses.replace(model, bus=bus)


@pytest.mark.parametrize("name", [*PROMPTS])
def test_it_goes_on_token_for_token_as_pefts_generate(adapted, peft_says, name) -> None:
    model = chosen(adapted, name)
    bare = chosen(adapted, "backbone")
    different = 0
    for prompt in PROMPTS.values():
        made = list(generate(model, prompt, max_tokens=LONG, temperature=0))
        expected = peft_says(name, ids_of(model, prompt), LONG)
        end = model.backbone.trunk.tokenizer.eos_token_id
        assert [t.id for t in made] == [t for t in expected if t != end][: len(made)]
        assert len(made) == LONG or end in expected
        plain = [t.id for t in generate(bare, prompt, max_tokens=LONG, temperature=0)]
        different += plain != [t.id for t in made]
    assert different  # control: an adapter that is not applied


def test_the_prompt_is_routed_once_and_its_column_goes_on_alone(adapted) -> None:
    assert routes_once(adapted)
    for prompt in PROMPTS.values():
        [route] = adapted.chooser.route([prompt])
        made = list(generate(adapted, prompt, max_tokens=8, seed=2))
        for token in made:
            assert token.weights == pytest.approx(route.weights, abs=1e-6)
        session = ChosenSession(adapted)
        p, _ = session.step(ids_of(adapted, prompt))
        assert adapted.bus.columns[session.column] == route.expert
        assert float(p.sum()) == pytest.approx(1, abs=1e-5)
        assert made[0].probability == pytest.approx(float(p[made[0].id]), abs=1e-6)


def test_a_column_that_is_named_goes_on_alone_whatever_the_router_says(adapted) -> None:
    for n, name in enumerate(adapted.bus.columns):
        session = session_of(adapted, expert=name)
        one_hot = [float(k == n) for k in range(len(adapted.bus.columns))]
        assert isinstance(session, ChosenSession)
        assert (session.column, session.alpha.tolist()) == (n, one_hot)


def test_only_the_chosen_adapter_runs_and_keeps_keys_and_values_of_its_own(adapted) -> None:
    model, bare = chosen(adapted, "sums"), chosen(adapted, "backbone")
    ids = ids_of(model, PROMPTS["sums"])
    ran, hooks = set[str](), []
    for n, name in enumerate(adapted.bus.ids):
        layers = adapted.bus.parts()[n].step.layers  # type: ignore[union-attr]
        note = partial(lambda name, *_: ran.add(name), name)
        hooks += [layer.register_forward_hook(note) for layer in layers]
    mine, plain = ChosenSession(model), ChosenSession(bare)
    for session in (plain, mine):
        for fresh in (ids, [7], [9]):
            session.step(fresh)
        assert ran == ({"sums"} if session is mine else set())
    for hook in hooks:
        hook.remove()
    first = [c.cache.layers[0] for c in (mine, plain)]
    assert first[0].keys.shape == first[1].keys.shape
    assert not torch.equal(first[0].values, first[1].values)


def test_the_backbones_column_speaks_as_the_backbone_does(adapted, speaker) -> None:
    ids = ids_of(adapted, PROMPTS["tales"])
    p, _ = ChosenSession(chosen(adapted, "backbone")).step(ids)
    with torch.inference_mode():
        h = speaker.trunk.hidden_states(torch.tensor([ids]))[0, -1]
        expected = torch.softmax(h @ speaker.classifier.T, -1)
    torch.testing.assert_close(p, expected, rtol=1e-4, atol=1e-6)


def test_the_bus_says_of_every_token_what_pefts_model_says(
    adapted, saved_adapters, speaker_model
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    text, backbone = PROMPTS["code"], adapted.backbone
    tokens = ids_of(adapted, text)[:-1]
    h = backbone.encode([text])
    for n, name in enumerate(adapted.bus.ids):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = AutoModelForCausalLM.from_pretrained(speaker_model, dtype=torch.float32)
            theirs = PeftModel.from_pretrained(model, saved_adapters[name]).eval()
        with torch.inference_mode():
            expected = torch.softmax(theirs(input_ids=torch.tensor([tokens])).logits[0], -1)
            found = adapted.bus.alone(h, adapted.bus.norm(h), n)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)


@dataclasses.dataclass(frozen=True, eq=False)
class ScaledMlp:
    """What a plugin may bring: the output of a block's MLP, multiplied."""

    by: torch.Tensor
    lowest: int = 1
    changes_h: bool = True
    rowwise: bool = True
    key: str = ""

    def apply(self, encoder):
        mlp = blocks_of(encoder.model)[1][self.lowest].mlp
        return hooked(encoder, (mlp, lambda module, inputs, output: output * self.by))


class Scale(redhost.Expert):
    def __init__(self, by: torch.Tensor) -> None:
        super().__init__(space="hidden", labels=())
        self.by = torch.nn.Parameter(by)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return z

    def intervention(self, backbone: redhost.Backbone) -> ScaledMlp:
        return ScaledMlp(self.by)


def test_a_plugins_form_that_works_row_by_row_goes_on_as_an_adapter_does(
    adapted, speaker, speaker_model
) -> None:
    from transformers import AutoModelForCausalLM

    scale = Scale(1 + torch.randn(speaker.width, generator=torch.Generator().manual_seed(1)))
    wide = with_layout(speaker, {"scaled": scale})
    none = FeatureCache(None, backbone=wide, fingerprint="").encode([])
    assert none.shape == (0, wide.total_width)  # of a backbone without a background card, say
    columns = ("scaled", "backbone")
    parts = {"scaled": bus_part(scale, speaker)}
    norm = LayerNorm(width=speaker.width, eps=speaker.eps)
    router: Any = Always(0, len(columns))
    bus = redhost.Bus(
        Readout(classifier=speaker.classifier, task=speaker.task),
        norm=norm,
        router=router,
        experts=parts,
        backbone_column=True,
        layout=wide.layout,
    )
    model = dataclasses.replace(adapted, backbone=wide, bus=bus)
    assert routes_once(model)
    theirs = AutoModelForCausalLM.from_pretrained(speaker_model, dtype=torch.float32).eval()
    for prompt in PROMPTS.values():
        ids = torch.tensor([ids_of(model, prompt)])
        made = [t.id for t in generate(model, prompt, max_tokens=LONG, temperature=0)]
        plain, expected = (
            _go_on(theirs, ids, scale.by.detach() if scaled else None) for scaled in (False, True)
        )
        assert made == expected[: len(made)] != plain[: len(made)] and len(made) > 1


def _go_on(model: Any, ids: torch.Tensor, by: torch.Tensor | None) -> list[int]:
    """Return what a model of transformers goes on with, with a block changed by hand."""
    mlp, by = model.model.layers[1].mlp, torch.ones(()) if by is None else by
    hook = mlp.register_forward_hook(lambda _m, _i, output: output * by)
    with contextlib.ExitStack() as stack:
        stack.callback(hook.remove)
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=LONG,
        )
    return [int(t) for t in out[0, ids.shape[1] :]]


def test_one_that_is_trained_here_learns_its_domain_and_peft_reads_it(
    context, rows_of, speaker_model, tmp_path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    project = tmp_path / "red-expert-sums"
    redhost_author.write_project(project, kind="expert", package_id="sums", summary="sums")
    plan = ExpertPlan(id="sums", form="lora", rank=4, blocks=2, targets=("v_proj", "down_proj"))
    settings = redhost_author.ExpertSettings(
        form="lora", space="hidden", rank=4, epochs=3, batch=4, learning_rate=1e-2, off_domain=0.0
    )
    splits = split_documents(rows_of("sums"))
    made = train_package(project, plan, splits, context=context, settings=settings)
    found = made.training.metrics
    assert found["bits_per_byte"] < found["backbone_bits_per_byte"] - 0.1
    assert made.files.keys() == {"adapter_config.json"} and all(made.tensors.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(speaker_model, dtype=torch.float32)
        theirs = PeftModel.from_pretrained(model.model, package_in(project)).eval()
    ids = torch.tensor([[5, 6, 7, 8]])
    files = read_expert(from_folder(package_in(project))).unwrap("sums")
    expert = make_expert_module(
        files, bus=context.backbone.bus_config(), plugins=redhost.plugins.Plugins(), providers={}
    ).unwrap("sums")
    with torch.inference_mode():
        added = read_tokens(expert, context.backbone, ids)
        h = context.backbone.trunk.hidden_states(ids)[:, -1]
        expected = theirs(input_ids=ids).last_hidden_state[:, -1]
    torch.testing.assert_close(h + added, expected, rtol=1e-4, atol=1e-5)
    assert float(added.norm()) > 0.01


@pytest.fixture
def packed(adapted, monkeypatch) -> None:
    """The encoder reads texts in packs, as one with wider heads does."""
    trunk = adapted.backbone.trunk
    monkeypatch.setattr(trunk, "tiles", dataclasses.replace(trunk.tiles, is_packed=True))


@pytest.mark.usefixtures("packed")
def test_texts_of_different_adapters_go_on_in_one_pass_each_as_pefts_generate(
    adapted, peft_says, monkeypatch
) -> None:
    names = [*PROMPTS, "backbone"]
    alone = {n: [*generate(adapted, PROMPTS["code"], expert=n, max_tokens=LONG)] for n in names}
    trunk, passes = adapted.backbone.trunk, []
    forward = trunk.model.forward
    monkeypatch.setattr(
        trunk.model,
        "forward",
        lambda *a, **k: passes.append(k["input_ids"].shape[1]) or forward(*a, **k),
    )
    texts = [generate(adapted, PROMPTS["code"], expert=n, max_tokens=LONG) for n in names]
    greedy = generate(adapted, PROMPTS["tales"], expert="tales", max_tokens=LONG, temperature=0)
    made: dict[int, list[Any]] = {n: [] for n in range(5)}
    for _ in range(LONG + 1):
        for n, choose in enumerate(read_batch([*texts, greedy])):
            token = choose()
            made[n] += [] if token is None else [token]
    for n, name in enumerate(names):
        assert [t.id for t in made[n]] == [t.id for t in alone[name]]
        for one, other in zip(made[n], alone[name], strict=True):
            assert one.probability == pytest.approx(other.probability, abs=1e-5)
    expected = peft_says("tales", ids_of(adapted, PROMPTS["tales"]), LONG)
    end = trunk.tokenizer.eos_token_id
    assert [t.id for t in made[4]] == [t for t in expected if t != end][: len(made[4])]
    assert passes.count(5) == LONG - 1  # after five prompts


@pytest.mark.usefixtures("packed")
@pytest.mark.parametrize("count", [2, 7])
def test_an_adapters_rows_are_those_of_its_pass_alone(adapted, count) -> None:
    """They get its additions alone, whatever is in the other rows."""
    names = [*PROMPTS]
    alone = ChosenSession(adapted, expert=names[0])
    for ids in ([5, 7, 9], [11]):
        alone.step(ids)
    for company in ([names[0]] * count, [names[n % 3] for n in range(count)]):
        sessions = [ChosenSession(adapted, expert=name) for name in company]
        for session in sessions:
            session.step([5, 7, 9])
        step_together(sessions, [[11]] * count)
        last, *others = (s.cache.layers[-1].values for s in sessions)
        assert torch.allclose(last, alone.cache.layers[-1].values, atol=1e-5)
        for values, name in zip(others, company[1:], strict=True):
            assert torch.allclose(values, last, atol=1e-5) == (name == names[0])


@pytest.mark.usefixtures("packed")
def test_an_adapter_that_replaces_parameters_has_a_pass_of_its_own(adapted) -> None:
    name = next(iter(PROMPTS))
    sessions = [ChosenSession(adapted, expert=name) for _ in range(3)]
    alone = ChosenSession(adapted, expert=name)
    lora = sessions[0].acts
    replaced = [(lora.layers[0][1], "weight", lora.layers[0][1].weight)]
    sessions[0].acts = dataclasses.replace(lora, own=replaced)
    assert not sessions[0].acts.acts_on_rows and sessions[1].acts.acts_on_rows
    for session in (*sessions, alone):
        session.step([5, 7])
    for session in sessions:
        session.unread = [9]
    assert passes(sessions) == [[0], [1, 2]]
    for n in ([0], [1, 2]):
        step_together([sessions[k] for k in n], [[9]] * len(n))
    alone.step([9])
    assert torch.equal(sessions[0].cache.layers[-1].values, alone.cache.layers[-1].values)
    assert not torch.equal(sessions[1].cache.layers[-1].values, alone.cache.layers[-1].values)


@pytest.mark.parametrize(("name", "readings"), [("backbone", [1, 1]), ("sums", [1, 2])])
@pytest.mark.parametrize("part", [4, 1024])
def test_a_prompt_passes_a_block_once_and_again_only_from_where_an_adapter_acts(
    adapted, monkeypatch, name, readings, part
) -> None:
    """With an adapter that acts from block 1 on; in parts of a few tokens, and in one."""
    for module in (sessions, batch):
        monkeypatch.setattr(module, "PASS_TOKENS", part)
    ids, prompt = ids_of(adapted, PROMPTS["tales"]), PROMPTS["tales"]
    model = _from_block(chosen(adapted, name), 1)
    counts, hooks = dict[int, int](), []
    for n, block in enumerate(model.backbone.trunk.blocks):
        attention = block.self_attn  # blocks that are skipped do not reach it
        note = partial(lambda n, *_: counts.update({n: counts.get(n, 0) + 1}), n)
        hooks.append(attention.register_forward_hook(note))
    made = [*generate(model, prompt, max_tokens=6, temperature=0)]
    for hook in hooks:
        hook.remove()
    parts = -(-len(ids) // part)
    assert [counts[0] - 5, counts[1] - 5] == [parts * n for n in readings]
    monkeypatch.undo()
    expected = [*generate(model, prompt, expert=name, max_tokens=6, temperature=0)]
    assert [t.id for t in made] == [t.id for t in expected]
    if part > len(ids):  # in parts, by rounding
        assert [t.probability for t in made] == [t.probability for t in expected]


def _from_block(model: ComposedModel, block: int) -> ComposedModel:
    """Return the composition with adapters that act from a block on."""
    segments = []
    for segment in model.bus.layout.segments:
        made: Any = segment.compute
        if isinstance(made, Inside):
            lora: Any = made.acts
            upper = {id(m) for m in model.backbone.trunk.blocks[block].modules()}
            layers = [one for one in lora.layers if id(one[1]) in upper]
            assert layers
            made = dataclasses.replace(
                made, acts=dataclasses.replace(lora, layers=layers, lowest=block)
            )
        segments.append(dataclasses.replace(segment, compute=made))
    bus = copy.copy(model.bus)
    bus.layout = dataclasses.replace(model.bus.layout, segments=tuple(segments))
    return dataclasses.replace(model, bus=bus)


def test_what_lower_blocks_computed_of_a_prompt_is_what_they_would_compute_again(adapted) -> None:
    model = _from_block(chosen(adapted, "sums"), 1)
    ids = ids_of(model, PROMPTS["tales"])
    routed, named = ChosenSession(model), ChosenSession(model, expert="sums")
    for fresh in (ids, [7], [9]):
        assert torch.equal(routed.step(fresh)[0], named.step(fresh)[0])
        for mine, theirs in zip(routed.cache.layers, named.cache.layers, strict=True):
            assert torch.equal(mine.keys, theirs.keys) and torch.equal(mine.values, theirs.values)


def test_without_known_blocks_a_prompt_is_read_from_the_bottom(adapted, monkeypatch) -> None:
    """Of a kind whose blocks may hand on more than states."""
    model = _from_block(chosen(adapted, "sums"), 1)
    monkeypatch.setattr(lower, "ROW_BY_ROW", frozenset())
    made = [t.id for t in generate(model, PROMPTS["tales"], max_tokens=6, temperature=0)]
    named = generate(model, PROMPTS["tales"], expert="sums", max_tokens=6, temperature=0)
    assert made == [t.id for t in named]


def test_the_command_writes_it_for_llama_cpp(speaker_folder, adapter_packages, tmp_path) -> None:
    environment = Environment(tmp_path / "site")
    for package in speaker_folder, adapter_packages["sums"]:
        environment.install(package.parents[1])
    done = subprocess.run(  # nothing of a task is loaded there but what the command loads itself
        warm_command("-m", "redhost", "export", "sums", "--to", "gguf", "--home", "home"),
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
    )
    assert done.stdout.split() == [b"sums-gguf"]
    assert (tmp_path / "sums-gguf/sums.gguf").read_bytes()[:4] == b"GGUF"
