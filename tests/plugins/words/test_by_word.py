"""Scores as sums over the words of a text: by hand, and as a reader would write the words."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from redhost_words.by_word import named_words
from redhost_words.counts import Counts
from redhost_words.expert import WordsExpert
from redhost_words.places import MOST, Words
from redhost_words.router import WordsRouter
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from redhost.core.bus.signals import RouterSignals

SIGNS = ("[UNK]", "[CLS]", "good", "film", "bad", "##ly", "act", "##ed")
CLS, GOOD, FILM, BAD, LY, ACT = 1, 2, 3, 4, 5, 6


def reading(*, fast: bool = True, form: str = "[CLS] $A") -> Any:
    """Return what is read of a backbone with a vocabulary of eight signs."""
    tokens = Tokenizer(WordPiece({s: n for n, s in enumerate(SIGNS)}, unk_token=SIGNS[0]))
    tokens.normalizer, tokens.pre_tokenizer = Lowercase(), Whitespace()
    tokens.post_processor = TemplateProcessing(single=form, special_tokens=[("[CLS]", CLS)])
    offsets = {"backend_tokenizer": tokens} if fast else {}
    tokenizer = SimpleNamespace(decode=tokens.decode, **offsets)

    def token_ids(text: str, **_: object) -> list[int]:
        return [*tokens.encode(text).ids]

    config = SimpleNamespace(vocab_size=len(SIGNS))
    return SimpleNamespace(
        trunk=SimpleNamespace(
            tokenizer=tokenizer,
            token_ids=token_ids,
            lock=threading.RLock(),
            model=SimpleNamespace(config=config),
        )
    )


def pair(first: int, second: int) -> int:
    """Return the place of a pair."""
    return int(Words.of_tokens([[first, second]], vocabulary=len(SIGNS)).places[-1])


def test_a_pair_with_the_token_that_ends_texts_says_so() -> None:
    words, names = named_words(reading(form="$A [CLS]"), " Good film ")
    written = dict(zip(words.places.tolist(), names, strict=True))
    assert written[pair(FILM, CLS)] == ("film (end)",) and written[CLS] == ("[CLS]",)


def test_words_read_as_the_text_has_them() -> None:
    words, names = named_words(reading(), "Badly\n acted film, film")
    written = dict(zip(words.places.tolist(), names, strict=True))
    assert written[CLS] == ("[CLS]",) and written[BAD] == ("Bad…",) and written[LY] == ("…ly",)
    assert written[ACT] == ("act…",) and written[FILM] == ("film",)
    assert written[pair(BAD, LY)] == ("Badly",) and written[pair(LY, ACT)] == ("…ly act…",)
    assert written[pair(CLS, BAD)] == ("(start) Bad…",)
    assert written[pair(0, FILM)] == (", film",) and written[0] == (",",)
    assert len(names) == len({*written}) == len(words.places) == 14


def test_a_tokenizer_without_offsets_decodes_its_tokens() -> None:
    words, names = named_words(reading(fast=False), "good film")
    written = dict(zip(words.places.tolist(), names, strict=True))
    assert written[GOOD] == ("good",) and written[pair(GOOD, FILM)] == ("good film",)


def test_words_at_one_place_are_named_together() -> None:
    _, names = named_words(reading(), "Good good ugly sad")
    assert ("Good", "good") in names and ("ugly", "sad") in names


def test_blanks_that_are_tokens_are_written_as_in_python() -> None:
    backbone = reading()
    encoding = SimpleNamespace(offsets=[(0, 4), (4, 6), (6, 10)])
    backbone.trunk.tokenizer.backend_tokenizer = SimpleNamespace(encode=lambda _: encoding)
    backbone.trunk.token_ids = lambda *_, **__: [GOOD, 0, FILM]
    words, names = named_words(backbone, "good\n\nfilm")
    written = dict(zip(words.places.tolist(), names, strict=True))
    assert written[0] == (repr("\n\n"),) and written[pair(0, FILM)] == (repr("\n\nfilm"),)


def expert_of(places: dict[int, tuple[list[float], float]]) -> WordsExpert:
    """Return an expert of two labels, from place → Wᵤ and idf; its z has one number."""
    order = sorted(places)
    words = {
        "places": torch.tensor(order, dtype=torch.int64),
        "Wu": torch.tensor([places[p][0] for p in order]).reshape(-1, 2),
        "idf": torch.tensor([places[p][1] for p in order]),
    }
    weights = {"W": torch.tensor([[2.0], [1.0]]), "b": torch.tensor([0.5, 0.0])}
    none = Words.of_tokens([], vocabulary=len(SIGNS))
    counts = Counts.of_rows(none, [], labels=("no", "yes"))
    return WordsExpert(weights=weights, words=words, counts=counts, width=1, labels=("no", "yes"))


def test_an_experts_words_are_its_weights_by_hand() -> None:
    expert = expert_of(
        {
            GOOD: ([-1.0, 3.0], 2.0),
            FILM: ([0.5, 0.0], 1.0),
            BAD: ([9.0, 9.0], 1.0),
            pair(GOOD, FILM): ([0.0, 4.0], 2.0),
        }
    )
    shown = expert.by_word(reading(), "good film film", torch.tensor([3.0]))
    # u is 1 at good, 1 + ln 2 at film, 1 at the pair: each has the length of u as a factor.
    film = 1 + math.log(2)
    length = math.sqrt(2**2 + film**2 + 2**2)
    expected = {
        ("good",): [-2 / length, 6 / length],
        ("film",): [0.5 * film / length, 0.0],
        ("good film",): [0.0, 8 / length],
        ("[CLS]",): [0.0, 0.0],
        ("film film",): [0.0, 0.0],
    }
    for name, terms in expected.items():
        row = shown.terms[shown.names.index(name)]
        np.testing.assert_allclose(row.tolist(), terms, atol=1e-3)  # u has 12 bits
    assert shown.encoder.tolist() == [6.5, 3.0]
    assert ("bad",) not in shown.names


@pytest.mark.parametrize("text", ["good film film", "sad", "badly acted, good"])
@pytest.mark.parametrize("places", [(), (GOOD, FILM), (CLS, ACT, LY, BAD, pair(GOOD, FILM))])
def test_terms_of_an_expert_add_up_to_its_logits(text, places) -> None:
    chance = torch.Generator().manual_seed(0)
    drawn = {p: torch.randn(3, generator=chance).tolist() for p in places}
    expert = expert_of({p: ([a, b], 1 + c * c) for p, (a, b, c) in drawn.items()})
    backbone, z = reading(), torch.tensor([0.7])
    words, _ = named_words(backbone, text)
    shown = expert.by_word(backbone, text, z)
    delta = expert(torch.cat([z[None], words.segment()], dim=1))[0]
    torch.testing.assert_close(shown.terms.sum(0) + shown.encoder, delta, atol=1e-4, rtol=0)
    assert len(shown.names) == len(shown.terms) == len(words.places) <= MOST


def test_a_text_longer_than_its_places_names_the_first_ones() -> None:
    backbone = reading()
    ids = [n % 7 + n // 7 for n in range(4000)]
    backbone.trunk.tokenizer = SimpleNamespace(decode=lambda ids, **_: f"{ids}")
    backbone.trunk.token_ids = lambda *_, **__: ids
    backbone.trunk.model.config.vocab_size = 1000
    words, names = named_words(backbone, "")
    assert len(words.places) == len(names) == MOST
    assert ("[0]",) in names and (f"[{ids[-1]}]",) not in names
    expert = expert_of({p: ([0.1 * p, -0.2], 1.5) for p in (0, 9, 200, ids[-1])})
    shown, z = expert.by_word(backbone, "", torch.tensor([0.7])), torch.tensor([0.7])
    delta = expert(torch.cat([z[None], words.segment()], dim=1))[0]
    torch.testing.assert_close(shown.terms.sum(0) + shown.encoder, delta, atol=1e-4, rtol=0)


def test_a_text_without_tokens_has_no_words() -> None:
    expert = expert_of({GOOD: ([1.0, 2.0], 1.0)})
    backbone = reading()
    backbone.trunk.token_ids = lambda *_, **__: []
    shown = expert.by_word(backbone, "", torch.tensor([1.0]))
    assert shown.names == () and shown.terms.shape == (0, 2)


def router_of(places: dict[int, dict[int, float]], absent: list[float]) -> WordsRouter:
    """Return a router of two columns with two labels and one, from place → label → value."""
    router = WordsRouter(width=1, columns=("a", "b"))
    rows = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([0.5, 0.0, -1.0])
    router.replace_rows({"a": [t[:2] for t in rows], "b": [t[2:] for t in rows]})
    order = sorted(places)
    router.places = torch.tensor(order, dtype=torch.int64)
    router.starts = torch.tensor([0, *(len(places[p]) for p in order)]).cumsum(0)
    router.labels = torch.tensor([y for p in order for y in places[p]], dtype=torch.int64)
    router.values = torch.tensor([v for p in order for v in places[p].values()])
    router.absent = torch.tensor(absent)
    return router


def test_a_routers_words_are_its_counts_by_hand() -> None:
    router = router_of({GOOD: {0: 3.0, 2: 1.0}, pair(GOOD, FILM): {1: 5.0}}, [-1.0, -2.0, -3.0])
    shown = router.by_word(reading(), "good film", torch.tensor([2.0]))
    assert shown is not None
    u = 1 / math.sqrt(5)  # [CLS], good, film, and two pairs
    for name, terms in {
        ("good",): [3 - 1, -2, 1 - 3],
        ("good film",): [-1, 5 - 2, -3],
        ("film",): [-1, -2, -3],  # no label has it
    }.items():
        row = shown.terms[shown.names.index(name)]
        np.testing.assert_allclose(row.tolist(), [u * t for t in terms], atol=3e-3)
    assert shown.encoder.tolist() == [2.5, 4.0, 7.0]


@pytest.mark.parametrize("text", ["good film film", "sad"])
@pytest.mark.parametrize("places", [{}, {GOOD: {0: 3.0, 2: 1.0}, ACT: {1: 2.0}}])
def test_terms_of_a_router_add_up_to_its_logits(text, places) -> None:
    router, backbone, z = router_of(places, [-1.0, -2.0, -3.0]), reading(), torch.tensor([0.3])
    shown = router.by_word(backbone, text, z)
    assert shown is not None
    scores = shown.terms.sum(0) + shown.encoder
    words, _ = named_words(backbone, text)
    logits = router(z[None], RouterSignals(z[None], values={"words": words.segment()}))[0]
    expected = torch.stack([scores[:2].logsumexp(0), scores[2]])
    torch.testing.assert_close(expected, logits, atol=1e-4, rtol=0)


def test_a_router_without_counts_has_no_words() -> None:
    router = WordsRouter(width=1, columns=("a", "b"))
    assert router.by_word(reading(), "good film", torch.tensor([1.0])) is None
