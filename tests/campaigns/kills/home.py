"""A home into which real recomposes publish, and the conditions it must meet after a kill."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import redhost

__all__ = ["Watched"]

QUESTION = "What is 37 plus 12?"
KEEP = 3


@dataclass(eq=False)
class Watched:
    """A home and its state before the kill.

    Attributes:
        path: The home.
        backbone: The backbone's id.
        before: The generation that was current.
        published: Number of kills that happened after the new generation was current.
    """

    path: Path
    backbone: str
    before: int = 0
    published: int = 0

    def prepare(self) -> None:
        """Compose twice, so that there is a parent; features are cached from then on."""
        self.publish()
        self.publish()
        self.before = 2

    def publish(self) -> redhost.Receipt:
        """Recompose, as `redhost recompose` does."""
        with self.open() as host:
            seed = (host.generations.current() or 0) + 1  # another, or nothing would change
            return host.recompose(router="centroid", seed=seed, accept=True)

    def loaded(self) -> int | None:
        """Return the number of the generation that a new host answers with."""
        with self.open() as host:
            return host.generations.load(host.session.require_current()).number

    def check(self) -> str | None:
        """Return the problems after a kill, then repair the home and clean up."""
        try:
            found = self._problem()
        except Exception as e:  # any exception is one that a user would get
            found = repr(e)
        if found is not None:
            shutil.rmtree(self.path)
            self.prepare()
        return found

    def _problem(self) -> str | None:
        with self.open() as host:
            generations = host.generations
            current = generations.current() or 0
            ancestor: int | None = current  # a quick process may have published more than once
            while ancestor is not None and ancestor > self.before:
                ancestor = generations.load(ancestor).parent
            if ancestor != self.before:
                return f"generation {current} is current, which does not follow {self.before}"
            [answer] = host.predict([QUESTION])  # loads every stored byte and checks it
            if (answer.generation, answer.label) != (current, "49"):
                return f"generation {answer.generation} answered {answer.label}"
            for number in generations.numbers():
                generations.file(number, "router.safetensors")
            with generations.writer():
                pass
            if left := generations.leftovers():
                return f"left over after the next writer: {left}"
            generations.gc(KEEP)
            self.published += current > self.before
            self.before = current
        return None

    def open(self) -> redhost.Host:
        """Open a host on it, without plugins."""
        plugins = redhost.plugins.Plugins(())
        return redhost.Host.open(self.path, backbone=self.backbone, plugins=plugins)
