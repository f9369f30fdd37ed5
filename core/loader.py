"""Published generations from the store: read, checked, built; no more of them kept than are used.

Generations on one backbone share it in memory. The key is the digest of its stored bytes, which
are read and hashed every time, never its name.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from ..registry.generations import Generations
from ..registry.store import Store
from .assemble import BackboneKey, from_generation
from .backbone import Backbone
from .composed import Composed
from .plugins import Plugins

__all__ = ["Loader"]


class Loader:
    """Loads generations of one home; what nobody else holds is freed.

    Args:
        home: The state folder.
        plugins: Who makes the parts.
        device: Where the trunk runs.
    """

    def __init__(self, home: Path, *, plugins: Plugins, device: str) -> None:
        self.generations, self.store = Generations(home), Store(home)
        self.plugins, self.device = plugins, device
        self._loaded: WeakValueDictionary[int, Composed] = WeakValueDictionary()
        self._backbones: WeakValueDictionary[BackboneKey, Backbone] = WeakValueDictionary()

    def load(self, number: int) -> Composed:
        """Return a generation, the very same object while somebody holds it."""
        composed = self._loaded.get(number)
        if composed is None:
            composed = self._loaded[number] = self.read(number)
        return composed

    def read(self, number: int) -> Composed:
        """Return a generation read, checked and built anew, whoever holds it already.

        Raises:
            UnknownNameError: If there is no such generation.
            IntegrityError: If its record or stored bytes are damaged.
            StoreError: If stored bytes are missing.
            PluginError: If a plugin that made a part is gone or has changed.
        """
        record = self.generations.load(number)
        return from_generation(
            record,
            backbone_bytes=self.store.get(record.backbone.digest),
            expert_bytes={m.id: self.store.get(m.digest) for m in record.experts},
            router_bytes=self.generations.file(number, "router.safetensors"),
            plugins=self.plugins,
            device=self.device,
            shared=self._backbones,
        )
