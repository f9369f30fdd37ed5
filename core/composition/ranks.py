"""At which of its ranks an expert is served: one package, and hosts that pay for less of it."""

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
    """Return a selection whose experts are served at the ranks asked for, or as they were.

    Args:
        selection: Who may join.
        given: Rank by id. An expert's own, the largest, is as good as none.
        current: The smaller ranks that members of the current composition are served at.

    Raises:
        UnknownNameError: If a rank is asked for of an expert that is not here.
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
    """Refuse a rank that an expert was not trained at, and of which no canary tells."""
    who = f"expert {manifest.id!r} cannot be served at rank {rank}"
    if not manifest.rank:
        found = f"the form {manifest.form!r}, which has none"
        raise UsageError(who, expected="a form with a rank", found=found, hint="Leave it out.")
    has = manifest.ranks or (manifest.rank,)
    if rank not in has:
        hint = f"Say which with --rank {manifest.id}=N."
        raise UsageError(who, expected=" or ".join(map(str, has)), found=str(rank), hint=hint)
