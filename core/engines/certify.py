"""Certify many experts: what a manifest promises, computed by a crew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...registry.files import BackboneFiles, ExpertFiles
from ...registry.violations import Violation
from ..composing.verify import verify_expert
from ..progress import Progress
from .crew import Crew, require_all
from .engine import Files, Job, Jobs
from .kept import Kept

__all__ = ["Claim", "certify"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Claim:
    """An expert, statically sound, and the backbone it fits where there is one."""

    name: str
    files: ExpertFiles
    backbone: BackboneFiles | None


def certify(
    claims: Sequence[Claim],
    *,
    crew: Crew,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> list[tuple[Violation, ...]]:
    """Verify experts; return the violations of each, in their order.

    Experts of a plugin's form are verified in this process: jobs run built-in parts only.

    Args:
        claims: The experts.
        crew: Who verifies.
        kept: Where verdicts lie: those of the same bytes and versions are not computed again.
        progress: Called with (experts done, experts in all).

    Raises:
        JobsError: If a verification failed on every attempt, so that there is no verdict.
    """
    jobs = Jobs()
    places: dict[str, list[int]] = {}
    found: list[tuple[Violation, ...]] = [()] * len(claims)
    for n, claim in enumerate(claims):
        if ":" in claim.files.manifest.form:
            found[n] = verify_expert(claim.files, backbone=claim.backbone)
            continue
        inputs = jobs.put("expert", claim.files.files)
        if claim.backbone is not None:
            inputs |= jobs.put("backbone", claim.backbone.files)
        job = jobs.add(f"expert {claim.name!r}", "verify-expert", {}, inputs)
        places.setdefault(job.key, []).append(n)

    def take(job: Job, made: Files) -> None:
        verdict = msgspec.json.decode(made["violations.json"], type=tuple[Violation, ...])
        for n in places[job.key]:
            found[n] = verdict

    require_all(crew.run(jobs, take, kept=kept, progress=progress), of=len(jobs.listed))
    return found
