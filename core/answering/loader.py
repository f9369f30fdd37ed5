"""Published generations from the store: read, checked, built; no more of them kept than are used.

Generations on one backbone share it in memory. The key is the digest of its stored bytes, which
are read and hashed every time, never its name.
"""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

from ...registry.generations import Generations
from ...registry.store import Store
from ..backbones.backbone import Backbone
from ..extending.plugins import Plugins
from .composed import Composed
from .stored import BackboneKey, from_generation

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
        self._loaded: WeakValueDictionary[tuple[int, bool], Composed] = WeakValueDictionary()
        self._backbones: WeakValueDictionary[BackboneKey, Backbone] = WeakValueDictionary()

    def load(self, number: int, *, lazy: bool = False) -> Composed:
        """Return a generation, the very same object while somebody holds it.

        Args:
            number: Which one.
            lazy: Do without experts that nobody has asked, where the router asks few; one that
                is held in full already is returned all the same.
        """
        composed = self._loaded.get((number, False))
        if composed is None and lazy:
            composed = self._loaded.get((number, True))
        if composed is None:
            composed = self._loaded[number, lazy] = self.read(number, lazy=lazy)
        return composed

    def read(self, number: int, *, lazy: bool = False) -> Composed:
        """Return a generation read, checked and built anew, whoever holds it already.

        Args:
            number: Which one.
            lazy: Leave experts in the store until they are asked, where the router asks few: what
                is damaged then shows when it is asked.

        Raises:
            UnknownNameError: If there is no such generation.
            IntegrityError: If its record or stored bytes are damaged.
            StoreError: If stored bytes are missing.
            PluginError: If a plugin that made a part is gone or has changed.
        """
        return from_generation(
            self.generations.load(number),
            store=self.store,
            router_bytes=self.generations.file(number, "router.safetensors"),
            plugins=self.plugins,
            device=self.device,
            lazy=lazy,
            shared=self._backbones,
        )
