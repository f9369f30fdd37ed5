"""The report of a generation: its parts, the digests in its receipt, its accuracy."""

from __future__ import annotations

from typing import Any

import msgspec

import redhost

__all__ = ["GenerationReport", "Member", "report"]


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One expert of a generation.

    Attributes:
        id: Its id.
        dist: Its distribution.
        version: Its version.
        digest: The digest of its whole package.
        unchanged: Whether training the router left its weights unchanged.
        rows: Number of gate rows of its card.
        before: Accuracy on them in the previous generation, 0–1; None if there is none.
        after: Accuracy on them in this generation; None without gate rows.
        own: Accuracy of the expert alone.
    """

    id: str
    dist: str
    version: str
    digest: str
    unchanged: bool
    rows: int
    before: float | None
    after: float | None
    own: float | None


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """A generation.

    Attributes:
        number: Its number.
        parent: The generation it was made from.
        created: Time of its creation, in ISO 8601.
        backbone: The backbone's id.
        fingerprint: The backbone's fingerprint.
        router: The router's kind.
        members: Its experts.
        receipt: Its complete receipt.
        evaluation: Its accuracy on held-out rows; None if there are none.
    """

    number: int
    parent: int | None
    created: str
    backbone: str
    fingerprint: str
    router: str
    members: tuple[Member, ...]
    receipt: dict[str, Any]
    evaluation: redhost.Evaluation | None


def report(host: redhost.Host, *, evaluate: bool = True) -> GenerationReport:
    """Return the report of a host's current generation.

    Args:
        host: The host.
        evaluate: Whether to answer the backbone's held-out rows, if it ships some.

    Raises:
        MissingError: If nothing has been composed.
    """
    model = host.composed
    number = model.generation or 0
    record = host.generations.load(number)
    receipt = msgspec.json.decode(host.generations.file(number, "receipt.json"))
    return GenerationReport(
        number=number,
        parent=record.parent,
        created=record.created,
        backbone=record.backbone.id,
        fingerprint=model.fingerprint,
        router=record.router.kind,
        members=tuple(_member(m, receipt) for m in record.experts),
        receipt=receipt,
        evaluation=host.evaluate() if evaluate and model.evaluation else None,
    )


def _member(member: Any, receipt: dict[str, Any]) -> Member:
    """Return an expert's entry from the record and the receipt."""
    accuracy, weights = receipt["accuracy"], receipt["experts"].get(member.id, {})
    return Member(
        id=member.id,
        dist=member.dist,
        version=member.version,
        digest=member.digest,
        unchanged=weights.get("before") == weights.get("after"),
        rows=accuracy["rows"].get(member.id, 0),
        before=(accuracy["before"] or {}).get(member.id),
        after=accuracy["after"].get(member.id),
        own=accuracy.get("own", {}).get(member.id),
    )
