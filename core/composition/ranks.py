"""The rank at which an expert is served: a host may use a part of its rank, at lower cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...registry.errors import UnknownNameError, UsageError
from ...registry.package.manifest import ExpertManifest
from .select import Selection


def at_ranks(
    selection: Selection,
    *,
    given: Mapping[str, int],
    current: Mapping[str, int] | None = None,
) -> Selection:
    """Return a selection whose experts are served at the ranks given, or at their current ranks.

    Args:
        selection: The experts that may join.
        given: Rank by id. An expert's full rank means that no smaller one is used.
        current: The smaller ranks that members of the current composition are served at.

    Raises:
        UnknownNameError: If a rank is given for an expert that is not in the selection.
        UsageError: If an expert has no such rank.
    """
    valid = (s for s in selection.statuses if not s.violations)
    manifests = {s.id: s.manifest for s in valid if s.id and s.manifest}
    for expert_id in given:
        if expert_id not in manifests:
            raise UnknownNameError("expert", expert_id, manifests)
    wanted = {i: rank for i, rank in {**(current or {}), **given}.items() if i in manifests}
    for expert_id, rank in wanted.items():
        _require_rank(manifests[expert_id], rank)
    smaller = {i: rank for i, rank in wanted.items() if rank != manifests[i].rank}
    return replace(selection, ranks=smaller)


def _require_rank(manifest: ExpertManifest, rank: int) -> None:
    """Refuse a rank that an expert was not trained at, and that no canary covers."""
    who = f"expert {manifest.id!r} cannot be served at rank {rank}"
    if not manifest.rank:
        found = f"the form {manifest.form!r}, which has none"
        raise UsageError(who, expected="a form with a rank", found=found, hint="Leave it out.")
    has = manifest.ranks or (manifest.rank,)
    if rank not in has:
        hint = f"Say which with --rank {manifest.id}=N."
        raise UsageError(who, expected=" or ".join(map(str, has)), found=str(rank), hint=hint)
