"""Which experts the user switched off, per home; they stay installed and visible."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from . import atomic
from .errors import StoreError
from .generations import Generations
from .manifest import dumps

__all__ = ["Disabled"]


class _Disabled(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["redhost.disabled/1"] = "redhost.disabled/1"
    names: tuple[str, ...] = ()


class Disabled:
    """``HOME/disabled.json``: ids of experts, or distributions where two share an id.

    Args:
        home: The folder of a project's state.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = home / "disabled.json"

    def names(self) -> frozenset[str]:
        """Return what is disabled.

        Raises:
            StoreError: If the file cannot be understood; guessing would enable everything.
        """
        try:
            return frozenset(msgspec.json.decode(self.path.read_bytes(), type=_Disabled).names)
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError) as e:
            hint = "Remove it, then disable again what should be."
            raise StoreError(f"cannot read {self.path}", found=str(e), hint=hint) from e

    def disable(self, name: str) -> bool:
        """Switch an expert off; return whether that changed anything."""
        return self._change(name, to=True)

    def enable(self, name: str) -> bool:
        """Switch an expert on again; return whether that changed anything."""
        return self._change(name, to=False)

    def _change(self, name: str, *, to: bool) -> bool:
        with Generations(self.home).writer():
            names = self.names()
            wanted = names | {name} if to else names - {name}
            if wanted == names:
                return False
            atomic.write_atomic(self.path, dumps(_Disabled(names=tuple(sorted(wanted)))))
        return True
