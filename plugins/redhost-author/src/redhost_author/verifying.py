"""What a package promises, computed: an expert's canary and output, a backbone's fingerprint."""

from __future__ import annotations

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.bus import BusConfig
from redhost.core.bus.task import Task
from redhost.core.model.build import make_backbone, make_expert, rows_of
from redhost.core.model.verify import CachedBusEncoder, check_live
from redhost.core.plugins.manager import Plugins
from redhost.core.tasks import HEADS, is_registered, make_task
from redhost.core.types import BackgroundRow
from redhost.registry.errors import BackboneMismatchError, CardError, PluginError, UsageError
from redhost.registry.package.checked import Violation
from redhost.registry.package.forms import DEFAULT_TASK, TASKS, VALUE
from redhost.registry.package.manifest import BackboneManifest, ExpertManifest
from redhost.registry.package.readers import BackboneFiles, ExpertFiles
from redhost.registry.package.rules import check_backbone, check_compatible

from .backbone.repeatable import require_repeatable


class Verifier:
    """Computes what packages promise; of several experts, a backbone is opened once.

    Args:
        plugins: The plugins that make the parts; by default the environment's.
    """

    def __init__(self, *, plugins: Plugins | None = None) -> None:
        self.plugins = plugins or Plugins()
        self._opened: dict[str, tuple[Backbone, CachedBusEncoder]] = {}

    def expert(
        self, files: ExpertFiles, *, backbone: BackboneFiles | None
    ) -> tuple[Violation, ...]:
        """Verify what an expert's manifest promises: the canary, ‖W_c Δ‖ on the background card.

        Args:
            files: The expert, statically valid.
            backbone: The backbone it fits; without one only the canary is computed.
        """
        manifest = files.manifest
        # Its manifest alone may show that its backbone has a plugin's task.
        implied = "spans" if manifest.span_rules else None
        task = backbone.manifest.task if backbone else implied
        if task is not None and (unknown := self._unknown_task(task)):
            return (unknown,)
        if backbone is not None and (violations := check_compatible(manifest, backbone.manifest)):
            return violations  # by rules that a plugin's task adds
        if backbone is None and task is None:
            self.plugins.load_all()  # whose task it is, every task's head is asked
        config = BusConfig(
            width=manifest.reads.width,
            labels=backbone.manifest.labels if backbone else (),
            task=expert_task(manifest, backbone.manifest if backbone else None),
        )
        try:
            expert = make_expert(files, bus=config, plugins=self.plugins, providers={})
        except PluginError as e:
            return (
                Violation("form_unknown", "form", "a form of a trusted plugin", e.reason, e.hint),
            )
        except CardError as e:
            return (Violation("card_rows", "card", e.expected, e.found or e.problem, e.hint),)
        if expert.value is None or backbone is None:
            return expert.violations
        live, read = self._open(backbone)
        violation = check_live(expert.value, live, rows_of(backbone, BackgroundRow), read=read)
        return () if violation is None else (violation,)

    def backbone(self, files: BackboneFiles) -> tuple[Violation, ...]:
        """Open a backbone, verify the fingerprint that experts name, and encode a few texts.

        Args:
            files: The backbone, statically valid.
        """
        if unknown := self._unknown_task(files.manifest.task):
            return (unknown,)
        if violations := check_backbone(files.manifest):
            return violations  # by rules that a plugin's task adds
        try:
            backbone, _ = self._open(files)
            require_repeatable(backbone.trunk, name=backbone.name)
        except BackboneMismatchError as e:
            return (Violation("backbone_mismatch", "fingerprint", e.expected, e.found, e.hint),)
        except UsageError as e:
            return (Violation("not_computable", "texts", e.expected, e.found, e.hint),)
        return ()

    def _open(self, files: BackboneFiles) -> tuple[Backbone, CachedBusEncoder]:
        """Return a backbone, and what reads its background texts."""
        if files.digest not in self._opened:
            live = make_backbone(files, plugins=self.plugins, providers={}, device="cpu")
            self._opened[files.digest] = live, CachedBusEncoder(live, encode=live.encode)
        return self._opened[files.digest]

    def _unknown_task(self, name: str) -> Violation | None:
        """Return the violation, if no trusted plugin provides a backbone's task."""
        try:
            self.plugins.task(name)
        except PluginError as e:
            return Violation("task_unknown", "task", ", ".join(sorted(TASKS)), name, e.hint)
        return None


def expert_task(expert: ExpertManifest, backbone: BackboneManifest | None) -> Task:
    """Return an expert's task: its backbone's, or the one that its manifest alone implies."""
    if backbone is not None:
        return make_task(backbone.task, resolution=backbone.resolution)
    if expert.reads.causal:
        return make_task(next(name for name, spec in TASKS.items() if spec.generates))
    for name, spec in TASKS.items():
        if is_registered(name) and HEADS[spec.head].implied_by(expert):
            return make_task(name)
    if expert.thresholds:
        return make_task("multi-label")
    return make_task("regression" if expert.labels == (VALUE,) else DEFAULT_TASK)
