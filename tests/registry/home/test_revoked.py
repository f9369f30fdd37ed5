"""What a home knows to be revoked is neither published, received nor rolled back to."""

from __future__ import annotations

import pytest
from msgspec import structs

from redhost.registry.errors import ContractError, StoreError
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import home_of
from redhost.registry.home.revoked import REVOKED, Revocation, Revocations, RevokedList
from redhost.registry.home.store import Store


def revoke(home, *digests: str, allowed: tuple[str, ...] = ()) -> None:
    entries = tuple(Revocation(digest=d, reason="bad", revoked_at="2026-11-28") for d in digests)
    lists = {"key": RevokedList(serial=1, entries=entries)}
    Store(home).write_revocations(Revocations(lists=lists, allowed=allowed))


def test_without_a_file_nothing_is_revoked(home, publish) -> None:
    record = publish("a")
    assert Store(home).revoked() == {}
    assert Generations(home).refusal(record) is None


def test_a_generation_with_it_is_refused_by_name(home, publish) -> None:
    record = publish("a", "b")
    digest = record.members()["a"]
    revoke(home, digest)
    refusal = Generations(home).refusal(record)
    assert isinstance(refusal, ContractError) and refusal.exit_code == 1
    assert refusal.problem == "expert 'a' (red-a 1) is revoked"
    assert "bad" in refusal.found and "redhost recompose" in refusal.hint
    with pytest.raises(ContractError, match="'a'"):
        publish("a", "c")
    assert Generations(home).current() == 1


def test_a_package_of_it_has_a_next_step() -> None:
    entry = Revocation(digest="ab" * 32, reason="bad", revoked_at="2026-11-28")
    lists = {"cd" * 32: RevokedList(serial=1, entries=(entry,))}
    by_digest = Revocations(lists=lists).by_digest()
    assert by_digest == {"ab" * 32: structs.replace(entry, signer="cd" * 32)}
    violation = by_digest["ab" * 32].violation()
    assert (violation.code, violation.field) == ("revoked", "digest")
    assert violation.expected == "content that is not revoked"
    assert (
        violation.found
        == "abababababab…, revoked: bad (2026-11-28, by the key sha256:cdcdcdcdcdcd…)"
    )
    assert violation.hint.endswith(f"'redhost revoked --allow {'ab' * 32}'.")


def test_it_is_not_rolled_back_to_nor_received(home, publish, tmp_path) -> None:
    digest = publish("a", "b").members()["a"]
    publish("b")
    revoke(home, digest)
    generations = Generations(home)
    with pytest.raises(ContractError, match="'a'"):
        generations.rollback(1)
    files = {n: generations.file(1, n) for n in ("router.safetensors", "receipt.json")}
    files["composition.json"] = generations.record(1)
    with generations.writer() as writer, pytest.raises(ContractError, match="'a'"):
        generations.receive(1, files, writer=writer)
    assert generations.current() == 2
    revoke(home)
    assert generations.rollback(1).number == 1  # control: it was refused for that alone


def test_what_is_allowed_passes(home, publish) -> None:
    digest = publish("a").members()["a"]
    publish("b")
    revoke(home, digest, allowed=(digest,))
    assert Store(home).revoked() == {}
    assert Generations(home).rollback(1).number == 1


def test_the_questions_of_a_home_share_it(home, publish) -> None:
    digest = publish("a").members()["a"]
    revoke(home, digest)
    assert Store(home_of(home, "parity")).revoked().keys() == {digest}


@pytest.mark.parametrize("data", [b"", b"{", b"null", b"[]", b"{}", b'{"lists": {}}', b"\xff"])
def test_a_file_that_is_no_list_never_counts_as_empty(home, publish, data) -> None:
    publish("a")
    publish("b")
    (home / REVOKED).write_bytes(data)
    for ask in (
        Store(home).revoked,
        lambda: Generations(home).rollback(1),
        lambda: publish("c"),
    ):
        with pytest.raises(StoreError, match=r"revoked\.json") as e:
            ask()
        assert e.value.hint.startswith("'redhost revoked --index-url URL' fetches it again; what")
    assert Generations(home).current() == 2
