"""Select the parts of a composition: all that is installed, or the current members with one change.

Nothing is trained here; packages are only read and statically checked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from msgspec import structs

from ...registry.environment.status import PackageStatus, check_packages, status_of_files
from ...registry.errors import (
    CompositionError,
    HarmError,
    IntegrityError,
    MissingError,
    UnknownNameError,
    UsageError,
    suggest,
)
from ...registry.home.composition import Composition, Provenance
from ...registry.home.questions import home_of, option, question_of, root_of
from ...registry.home.store import PackageFiles, Store
from ...registry.package.checked import Violation
from ...registry.package.discover import Package, canonical, from_folder
from ...registry.package.manifest import BackboneManifest
from ...registry.package.readers import BackboneFiles, read_expert
from ...registry.package.readers import PackageSource as Bytes
from ...registry.package.rules import check_question
from ...registry.queries.inventory import (
    Inventory,
    composed_members,
    installed_manifests,
    questions_of,
    take_inventory,
)
from ...registry.queries.settings import disabled_names, named_backbone
from ...registry.wheel.signing import read_keys
from ...registry.wheel.wheel import Wheel, open_wheel
from ..model.build import read_package
from .refusal import Refusal


@dataclass(frozen=True)
class Installed:
    """An installed expert, never a path: input from outside the process is wrapped in this type.

    Attributes:
        id: Its id.
    """

    id: str


ExpertSource = str | Path | Wheel | Installed
"""An installed expert's id, a wheel (a path, or already audited), or a package's folder."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A backbone and the experts that may join it.

    Attributes:
        package: The backbone's package.
        files: Its bytes.
        statuses: The experts with the results of the static checks.
        refused: Experts that make a composition fail, by id, and why they are left out.
    """

    package: Package
    files: BackboneFiles
    statuses: tuple[PackageStatus, ...]
    refused: Mapping[str, Refusal] = field(default_factory=dict)

    @property
    def read(self) -> tuple[PackageFiles, ...]:
        """The packages whose bytes were read to select them."""
        return (self.files, *(x.files for x in self.statuses if x.files is not None))

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the experts without violations."""
        return tuple(x.id for x in self.statuses if x.id is not None and not x.violations)


def select_installed(
    home: Path, *, backbone: str | None, joins: tuple[ExpertSource, Sequence[str]] | None = None
) -> Selection:
    """Select everything that is installed.

    Args:
        home: The state folder, which lists disabled experts.
        backbone: The backbone to use when several are installed; by default the one that the
            joining expert was made for.
        joins: An expert that is to join, and the key files for `read_source`.

    Raises:
        HarmError: If a member's distribution is installed but now holds another expert.
    """
    named = None if joins is None else named_backbone(_open(joins[0], home, joins[1])[1])
    inventory = take_inventory(home, backbone=backbone, named=named, remember=False)
    readable = sum(x.manifest is not None for x in inventory.statuses)
    # Not the same as an empty environment: here the user has to name the question.
    if (
        joins is None and inventory.other_questions and readable == len(inventory.elsewhere)
    ):  # none for here
        raise _nobody_answers(home, inventory)
    if inventory.problem:
        raise inventory.problem
    _refuse_replaced(home, inventory)
    package = cast("Package", inventory.package)  # set, since there was no problem
    return Selection(package=package, files=read_package(package), statuses=inventory.statuses)


def _nobody_answers(home: Path, inventory: Inventory) -> MissingError:
    """Return the error to raise if all installed experts answer other questions."""
    question, others = question_of(home), questions_of(inventory)
    unanswered = "the default question" if question is None else f"question {question!r}"
    names = [name or "the default question" for name in others]
    commands = [f"'redhost recompose{option(home_of(root_of(home), name))}'" for name in others]
    closest = "" if question is None else suggest(question, filter(None, others))
    return MissingError(
        f"no installed expert answers {unanswered}",
        found=f"experts that answer {', '.join(names)}",
        hint=f"{closest}Run {' or '.join(commands)}.",
    )


def _refuse_replaced(home: Path, inventory: Inventory) -> None:
    """Refuse to lose a member because its distribution now holds another expert or question.

    If the distribution is gone, it was uninstalled by name; here the user did not name the member.
    """
    here, off = {x.id for x in inventory.statuses}, disabled_names(home)
    # Disabled members leave by the user's word; only the others can be lost unnoticed.
    gone = [m for m in composed_members(home) if m.id not in {*here, *off}]
    for member in gone:
        dist = canonical(member.dist)
        installed = (*inventory.statuses, *inventory.other_questions)
        for other in (x for x in installed if x.id and canonical(x.package.dist) == dist):
            which = f", which answers {other.question!r}" if other.question else ""
            raise HarmError(
                f"expert {member.id!r} is in the current composition and was replaced by another",
                expected=f"{member.id!r} in {member.dist} {member.version}",
                found=f"{other.id!r} in {other.package}{which}",
                hint=f"Install what was there again, or let {member.id!r} go by its id: "
                f"'redhost remove {member.id}'.",
            )


def without_unsigned(selection: Selection, *, signed: Collection[str] = ()) -> Selection:
    """Leave out what is installed and was not verified, where what is composed was.

    Args:
        selection: What is installed.
        signed: Digests of what was verified.
    """
    missing = Violation(
        "signature_missing",
        "signature",
        "a wheel that one of the keys signed",
        "an installed package, which has no signature",
        "Add its signed wheel: 'redhost add WHEEL'.",
    )
    return replace(
        selection,
        statuses=tuple(
            x if x.digest in signed else structs.replace(x, violations=(missing, *x.violations))
            for x in selection.statuses
        ),
    )


def select_stored(record: Composition, store: Store) -> Selection:
    """Select the members of a generation from the store, independent of what is installed.

    Raises:
        IntegrityError: If stored bytes differ from those that were composed.
    """
    origin, revoked = record.backbone, store.revoked()
    files = store.backbone(origin.digest, name=origin.id)
    statuses = tuple(
        status_of_files(
            Package("expert", m.dist, m.version, "", None, False),
            store.expert(m.digest, name=m.id),
            backbone=files.manifest,
            revoked=revoked,
            origin=m,
        )
        for m in record.experts
    )
    package = Package("backbone", origin.dist, origin.version, "", None, False)
    return Selection(package=package, files=files, statuses=statuses)


def change(
    selection: Selection, *, home: Path, add: PackageStatus | None, remove: str | None
) -> Selection:
    """Change a selection by exactly one expert.

    Args:
        selection: The selection to change.
        home: The home that it is composed in; a question has its own.
        add: The expert that joins, already checked.
        remove: The id of the expert that leaves.

    Raises:
        UnknownNameError: If the selection has no expert with the id to remove.
        UsageError: If another expert with the same id stays.
        CompositionError: If no expert would be left.
    """
    composed = [x.id for x in selection.statuses if x.id is not None]  # one may be revoked
    if remove is not None and remove not in composed:
        raise UnknownNameError("composed expert", remove, composed)
    if add is not None and add.id != remove and add.id in selection.ids:
        raise UsageError(
            f"expert {add.id!r} is composed already",
            hint=f"Replace it: host.replace({add.id!r}, source), or 'redhost add WHEEL'.",
        )
    gone = {remove, add.id if add is not None else None}
    stay = tuple(x for x in selection.statuses if x.id is None or x.id not in gone)
    statuses = stay if add is None else (*stay, add)
    if not statuses:
        raise CompositionError(
            f"expert {remove!r} is the only one composed",
            expected="another that stays",
            hint="Add another one first: 'redhost add WHEEL'."
            if question_of(home) is None
            else f"Add another one first, or remove {home} and run 'redhost gc'.",
        )
    return replace(selection, statuses=statuses)


def read_source(
    source: ExpertSource, *, backbone: BackboneManifest, home: Path, keys: Sequence[str] = ()
) -> PackageStatus:
    """Read the expert that is to join, from any source; a wheel is audited.

    Args:
        source: An id, wheel or folder.
        backbone: The backbone it must fit.
        home: The state folder.
        keys: Files of public keys; if there are any, one of them must have signed a wheel.

    Raises:
        RedhostError: If it is unknown, breaks its contract, or does not fit the backbone.
    """
    package, content, wheel = _open(source, home, keys)
    if package.kind != "expert":
        hint = "Install it with pip, then 'redhost recompose --backbone NAME'."
        raise UsageError(f"{package} is a backbone, not an expert", hint=hint)
    read = read_expert(content) if wheel is None else wheel.expert
    files = read.unwrap(f"expert package {package} was not attached")
    off = disabled_names(home)
    origin = None
    if wheel is not None:
        origin = Provenance(
            dist=package.dist,
            version=package.version,
            digest=files.digest,
            wheel=wheel.sha256,
            signer=wheel.signer,
            source=wheel.source,
        )
    revoked = Store(home).revoked()
    status = status_of_files(
        package, files, backbone=backbone, disabled=off, revoked=revoked, origin=origin
    )
    for violation in (*check_question(files.manifest, question_of(home)), *status.violations):
        raise violation.error(f"{status.name} was not attached")
    return status


def installed_expert(name: str, home: Path) -> Package:
    """Find a valid installed expert, by id or distribution.

    Every manifest is searched for its id, but only packages with that id are checked: faults of
    other packages do not matter here.
    """
    ids = {package: m.id if m else None for package, m in installed_manifests()}
    named_ids = {i for package, i in ids.items() if name in {i, package.dist}}
    if not named_ids:
        raise UnknownNameError("expert", name, [i or package.dist for package, i in ids.items()])
    matching = [package for package, i in ids.items() if i in named_ids]
    statuses = check_packages(matching, backbone=None, disabled=disabled_names(home))
    named = [x for x in statuses if name in {x.id, x.package.dist}]
    for status in named:
        if status.state == "discovered" or status.code in {"disabled", "duplicate_id"}:
            raise status.error()
    return named[0].package


def _open(
    source: ExpertSource, home: Path, keys: Sequence[str]
) -> tuple[Package, Bytes, Wheel | None]:
    """Return a source's package, its bytes, and its wheel if it comes from one."""
    # A path that exists counts as one, even if an expert has that id.
    if isinstance(source, str) and not Path(source).exists():
        source = Installed(source)
    if isinstance(source, Installed):
        package = installed_expert(source.id, home)
        return package, package, None
    if not isinstance(source, Wheel) and Path(source).is_dir():
        package = from_folder(Path(source))
        return package, package, None
    wheel = source if isinstance(source, Wheel) else open_wheel(Path(source), keys=read_keys(keys))
    if keys and not wheel.signer:
        hint = "Open it with the project's keys: open_wheel(path, keys=read_keys(...))."
        raise IntegrityError(
            f"wheel {wheel.name} was not attached: no signature was verified", hint=hint
        )
    return wheel.package, wheel.files, wheel
