"""Texts that are continued at the same time: one pass, each text's own numbers."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from redhost_generate import JsonGrammar, Sampling, batch, generate, read_batch, sessions
from redhost_generate.batch import passes
from redhost_generate.decode import READING, generate_batch
from redhost_generate.sessions import DecodingSession

from ...support.sessions import step_together
from .test_decode import ids_of

PROMPTS = ("the cat sat ", "3 + 4 = ", "def f3(x):", "", "once upon a time there was a king who ")


@pytest.fixture(autouse=True)
def packed(composed, monkeypatch) -> None:
    """The encoder reads texts in packs, as one with wider heads does."""
    trunk = composed.backbone.trunk
    monkeypatch.setattr(trunk, "tiles", dataclasses.replace(trunk.tiles, is_packed=True))


def passes_of(composed, monkeypatch) -> list[tuple[int, ...]]:
    """Return the list that the shape of every pass of the encoder is appended to."""
    model, shapes = composed.backbone.trunk.model, list[tuple[int, ...]]()
    forward = model.forward

    def note(*args, **kwargs):
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", note)
    return shapes


def continued(texts, *, count: int) -> list[list]:
    """Return the tokens of texts that are continued together."""
    made = [[] for _ in texts]
    for _ in range(count):
        for mine, choose in zip(made, read_batch(texts), strict=True):
            mine.append(choose())
    return [[t for t in mine if t is not None] for mine in made]


def begun(composed, prompt: str) -> DecodingSession:
    """Return a session that has read a prompt."""
    session = DecodingSession(composed)
    session.step(ids_of(composed, prompt))
    return session


@pytest.mark.parametrize("form", ["residual", "mixture"])
def test_texts_in_company_are_the_texts_alone(composed, mixed, form) -> None:
    model = composed if form == "residual" else mixed
    alone = [list(generate(model, p, max_tokens=20, temperature=0)) for p in PROMPTS]
    found = continued([generate(model, p, max_tokens=20, temperature=0) for p in PROMPTS], count=21)
    for mine, theirs in zip(found, alone, strict=True):
        assert [t.id for t in mine] == [t.id for t in theirs]
        assert "".join(t.text for t in mine) == "".join(t.text for t in theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert one.probability == pytest.approx(other.probability, abs=1e-5)
            assert one.weights == pytest.approx(other.weights, abs=1e-5)


def test_one_more_token_of_each_text_is_one_pass(composed, monkeypatch) -> None:
    sessions = [begun(composed, p) for p in PROMPTS[:3]]
    shapes = passes_of(composed, monkeypatch)
    step_together(sessions, [[7]] * len(sessions))
    assert shapes == [(1, 3)]
    step_together(sessions[:1], [[7]])  # alone, it is computed as it always was
    assert shapes == [(1, 3), (1, 1)]


@pytest.mark.parametrize("count", [2, 7, 33])
def test_a_token_reads_its_own_text_in_any_company(composed, count) -> None:
    """Wherever it stands, and whatever stands beside it."""
    alone = begun(composed, "a text of its own ")
    alone.step([3])
    for at in (0, count - 1):
        sessions = [begun(composed, PROMPTS[n % 3]) for n in range(count)]
        sessions[at] = begun(composed, "a text of its own ")
        step_together(sessions, [[3 + n * (n != at)] for n in range(count)])
        for mine, theirs in zip(sessions[at].cache.layers, alone.cache.layers, strict=True):
            assert torch.allclose(mine.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(mine.values, theirs.values, atol=1e-5)
        assert torch.allclose(sessions[at].context.sums, alone.context.sums, atol=1e-4)


def test_a_text_keeps_its_seed_its_limits_and_its_penalties_in_company(composed) -> None:
    def fresh() -> list:
        return [
            generate(composed, PROMPTS[0], max_tokens=12, seed=4),
            generate(composed, PROMPTS[1], max_tokens=5, sampling=Sampling(top_k=3), seed=1),
            generate(composed, PROMPTS[0], max_tokens=12, sampling=Sampling(repetition_penalty=2)),
        ]

    alone = [[t.id for t in text] for text in fresh()]
    found = [[t.id for t in made] for made in continued(fresh(), count=14)]
    assert found == alone and len(found[1]) == 5


def test_a_text_joins_and_leaves_at_any_token(composed) -> None:
    alone = [
        [t.id for t in generate(composed, p, max_tokens=n, temperature=0)]
        for p, n in zip(PROMPTS[:3], (4, 12, 8), strict=True)
    ]
    first, second, third = (
        generate(composed, p, max_tokens=n, temperature=0)
        for p, n in zip(PROMPTS[:3], (4, 12, 8), strict=True)
    )
    made: list[list[int]] = [[], [], []]
    for turn in range(16):
        texts = [(0, first), (1, second), (2, third)][: 2 if turn < 2 else 3]
        for (n, _), choose in zip(texts, read_batch([t for _, t in texts]), strict=True):
            token = choose()
            made[n] += [] if token is None else [token.id]
    assert made == alone


def test_the_longest_text_may_end_first(composed) -> None:
    lengths = {PROMPTS[4]: 3, PROMPTS[1]: 12, PROMPTS[2]: 9}
    texts = [generate(composed, p, max_tokens=n, temperature=0) for p, n in lengths.items()]
    found = [[t.id for t in made] for made in continued(texts, count=13)]
    for made, (prompt, most) in zip(found, lengths.items(), strict=True):
        alone = generate(composed, prompt, max_tokens=most, temperature=0)
        assert made == [t.id for t in alone]


def test_one_that_is_json_of_a_schema_beside_one_that_is_not(composed) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "array", "items": {"type": "integer"}, "maxItems": 2}
    grammar = JsonGrammar(composed, schema)
    made = continued(
        [
            generate(composed, PROMPTS[1], max_tokens=40, temperature=0, grammar=grammar),
            generate(composed, PROMPTS[0], max_tokens=10, temperature=0),
        ],
        count=41,
    )
    alone = generate(composed, PROMPTS[0], max_tokens=10, temperature=0)
    assert "".join(t.text for t in made[0]).lstrip().startswith("[")
    assert [t.id for t in made[1]] == [t.id for t in alone]


def test_an_error_in_choosing_is_that_of_one_text(composed) -> None:
    texts = [generate(composed, p, max_tokens=4, temperature=0) for p in PROMPTS[:2]]
    alone = [t.id for t in generate(composed, PROMPTS[1], max_tokens=4, temperature=0)]
    texts[0].sampler.draw = lambda p: 1 // 0
    wrong, right = read_batch(texts)
    with pytest.raises(ZeroDivisionError):
        wrong()
    made = [right().id]
    for _ in range(3):
        wrong, right = read_batch(texts)
        assert wrong() is None  # it has ended
        made.append(right().id)
    assert made == alone


def test_prompts_are_read_in_one_pass_beside_single_tokens(composed, monkeypatch) -> None:
    shapes = passes_of(composed, monkeypatch)
    first = generate(composed, PROMPTS[0], max_tokens=9, temperature=0)
    made = [next(first)]
    others = [generate(composed, p, max_tokens=9, temperature=0) for p in PROMPTS[1:]]
    tokens = [len(ids_of(composed, p)) if p else 1 for p in PROMPTS]
    choices = read_batch([first, *others])
    assert shapes == [(1, tokens[0]), (1, 1 + sum(tokens[1:]))]
    starts = [choose() for choose in choices]
    rest = continued([first, *others], count=9)
    for n, (start, later) in enumerate(zip(starts, rest, strict=True)):
        alone = [t.id for t in generate(composed, PROMPTS[n], max_tokens=9, temperature=0)]
        assert [t.id for t in ([*made] if n == 0 else []) + [start, *later]] == alone


def test_a_pass_has_so_many_tokens_at_most(composed, monkeypatch) -> None:
    monkeypatch.setattr(batch, "PASS_TOKENS", 20)
    sessions = [DecodingSession(composed) for _ in range(6)]
    lengths = (8, 12, 1, 30, 19, 2)
    for session, n in zip(sessions, lengths, strict=True):
        session.unread = [7] * n
    assert passes(sessions) == [[0, 1], [2, 4], [5], [3]]


def test_an_error_in_a_pass_is_that_of_its_texts(composed, monkeypatch) -> None:
    monkeypatch.setattr(batch, "PASS_TOKENS", 30)
    *others, wrong = (
        generate(composed, PROMPTS[n], max_tokens=4, temperature=0) for n in (1, 2, 4)
    )
    wrong.session.unread = [*wrong.session.unread, 10**6]  # not in the vocabulary
    *choices, fail = read_batch([*others, wrong])
    with pytest.raises(IndexError):
        fail()
    first = [choose() for choose in choices]
    made = continued(others, count=4)
    for prompt, start, rest in zip(PROMPTS[1:3], first, made, strict=True):
        alone = generate(composed, prompt, max_tokens=4, temperature=0)
        assert [start.id, *(t.id for t in rest)] == [t.id for t in alone]


def test_a_long_prompt_is_read_in_parts_between_the_tokens_of_others(composed, monkeypatch) -> None:
    """Others get a token for each part; the text is that of a prompt read at once."""
    prompt = PROMPTS[4] * 3
    expected = [t.id for t in generate(composed, prompt, max_tokens=6, temperature=0)]
    beside = [t.id for t in generate(composed, PROMPTS[0], max_tokens=9, temperature=0)]
    for module in (batch, sessions):
        monkeypatch.setattr(module, "PASS_TOKENS", 30)
    parts = -(-len(ids_of(composed, prompt)) // 30)
    assert parts > 2
    short = generate(composed, PROMPTS[0], max_tokens=9, temperature=0)
    long = generate(composed, prompt, max_tokens=6, temperature=0)
    made, other = [next(short)], []
    for _ in range(parts):
        shapes = passes_of(composed, monkeypatch)
        for mine, choose in zip((made, other), read_batch([short, long]), strict=True):
            mine.append(choose())
        assert max(tokens for _, tokens in shapes) <= 30
    assert other[:-1] == [READING] * (parts - 1)
    assert [t.id for t in made] == beside[: parts + 1]
    assert [other[-1].id, *(t.id for t in long)] == expected
    assert generate_batch([generate(composed, prompt, max_tokens=6, temperature=0)]) == [
        "".join(t.text for t in generate(composed, prompt, max_tokens=6, temperature=0))
    ]
