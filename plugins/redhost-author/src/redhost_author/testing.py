"""For tests: an expert's contract, and projects of a tiny backbone and of experts that keep it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from redhost.registry.package.checked import Violation
from redhost.testing import tiny_backbone

if TYPE_CHECKING:
    from .targets import Target

__all__ = ["assert_expert_contract", "backbone_project", "expert_project", "judge_expert"]


def judge_expert(
    source: Path | Mapping[str, bytes], *, digest: str | None = None
) -> str | tuple[Violation, ...]:
    """Check an expert's bytes as attaching does; stop where attaching would stop.

    Every byte is checked, the card is read and the canary computed; plugins are not used.

    Args:
        source: A wheel, or the bytes of a package by file name.
        digest: The digest in a lock or a generation; any other content is refused.

    Returns:
        The digest of the expert that would be attached, or all violations.
    """
    from redhost.core.plugins.manager import Plugins
    from redhost.registry.errors import short
    from redhost.registry.package.readers import read_expert
    from redhost.registry.wheel.wheel import read_wheel

    from .verifying import Verifier

    if isinstance(source, Path):
        wheel = read_wheel(source)
        if wheel.value is None:
            return wheel.violations
        source = wheel.value.files
    read = read_expert(source)
    if read.value is None:
        return read.violations
    files = read.value
    if broken := Verifier(plugins=Plugins(())).expert(files, backbone=None):
        return broken
    if digest not in {None, files.digest}:
        hint = "Install the version that was composed, or recompose."
        return (Violation("digest", "digest", short(digest or ""), short(files.digest), hint),)
    return files.digest


def assert_expert_contract(target: str | Path, *, backbone: str | None = None) -> None:
    """Check an expert as `redhost check` does: every promise of its manifest, including the canary.

    Args:
        target: A project or package folder, a wheel, or the id of an installed expert.
        backbone: The backbone to check against; by default the one its manifest names, if that is
            installed.

    Raises:
        AssertionError: Lists every broken promise, one per line.
    """
    from redhost.registry.queries.settings import resolve_home

    from .targets import resolve_targets, static_check
    from .verifying import Verifier

    broken = []
    for resolved in resolve_targets([str(target)], home=resolve_home(), backbone=backbone):
        checked = resolved if backbone is not None else _beside_its_own(resolved)
        violations = static_check(checked)
        if not violations and checked.files is not None:
            violations = Verifier().expert(checked.files, backbone=checked.backbone)
        broken += [f"{v.code}: {v.reason}. {v.hint}" for v in violations]
    if broken:  # pytest would change the message of an assert statement
        raise AssertionError("\n".join([f"{target} breaks its contract:", *broken]))


def _beside_its_own(target: Target) -> Target:
    """Return a target with the installed backbone that its manifest names, or with none."""
    from redhost.registry.errors import RedhostError
    from redhost.registry.package.discover import discover
    from redhost.registry.package.readers import read_backbone
    from redhost.registry.queries.settings import choose_backbone

    if target.files is None:
        return target
    with suppress(RedhostError):  # an expert can be valid without an installed backbone
        package = choose_backbone(discover("backbone"), target.files.manifest.backbone.name)
        return replace(target, backbone=read_backbone(package).value)
    return replace(target, backbone=None)


def backbone_project(project: Path, *, seed: int = 0) -> Path:
    """Write the project of a tiny random backbone without labels; return the project's folder.

    Args:
        project: The folder to write.
        seed: The seed of the weights.
    """
    from redhost.core.backbones.backbone import Backbone
    from redhost.core.types import BackgroundRow, write_rows

    from .project import write_project
    from .training.packaging import save_backbone

    model = tiny_backbone(project.with_name(f"{project.name}-model"), seed=seed)
    loaded = Backbone.load(f"hf:{model}", pooling="mean", features="wide")
    background = [BackgroundRow(text=f"nothing {n}") for n in range(12)]
    save_backbone(
        write_project(project, kind="backbone", package_id="tiny-random", summary="for tests"),
        replace(loaded, name="tiny-random"),
        base={file.name: file.read_bytes() for file in model.iterdir()},
        background=write_rows(background),
    )
    return project


def expert_project(
    project: Path,
    expert_id: str,
    backbone: Path,
    *,
    labels: Sequence[str] = ("a", "b"),
    seed: int = 0,
    question: str | None = None,
) -> Path:
    """Write the project of an expert that fulfils its contract; its weights are hardly trained.

    It has labels of its own, and separates texts such as "ID 7" into odd and even numbers.

    Args:
        project: The folder to write.
        expert_id: The expert's id.
        backbone: The project of the backbone it is for.
        labels: Its two labels.
        seed: The seed of its training.
        question: The question it answers, if that has a name.

    Returns:
        The project's folder.
    """
    from redhost.core.types import Row

    from .project import ExpertPlan, package_in, write_plan, write_project
    from .training.context import open_for_training
    from .training.data import split_rows
    from .training.expert import ExpertSettings
    from .training.recipes import train_package

    # A card of texts works with every kind of router.
    plan = ExpertPlan(
        id=expert_id, backbone="tiny-random", form="residual", card="texts", question=question
    )
    write_project(project, kind="expert", package_id=expert_id, summary=f"knows {expert_id}")
    write_plan(project, plan)
    rows = [Row(text=f"{expert_id} {n}", label=labels[n % 2]) for n in range(80)]
    settings = ExpertSettings(space="labels", rank=4, epochs=3, seed=seed)
    with tempfile.TemporaryDirectory(prefix="redhost-") as cache:
        context = open_for_training(package_in(backbone), cache=Path(cache))
        train_package(project, plan, split_rows(rows), context=context, settings=settings)
    return project
