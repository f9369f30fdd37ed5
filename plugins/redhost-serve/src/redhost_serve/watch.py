"""`--watch`: serve packages or generations that another shell installs or publishes.

This process never composes. A fresh interpreter does: it sees the current environment, including
the code of upgraded plugins, and frees its memory when it ends. Watching is cheap: it reads when
each folder of packages was last changed, and which generation is current.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redhost
from redhost_serve.service import Candidate, Service
from redhost_serve.threads import attempt

__all__ = ["Watch", "packages_changed"]

log = logging.getLogger("redhost.serve")

Stamps = tuple[tuple[str, int], ...]


class Watch(threading.Thread):
    """Follows the environment until it is stopped.

    Args:
        service: The service whose live host is updated, and which shows the outcome.
        backbone: The backbone to compose on, if several are installed.
        every: Seconds between two checks.
    """

    def __init__(
        self, service: Service, *, backbone: str | None = None, every: float = 1.0
    ) -> None:
        super().__init__(name="redhost-watch", daemon=True)
        self.service, self.backbone, self.every = service, backbone, every
        self._ended, self._guard = threading.Event(), threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._seen = self._last = packages_changed()
        self._refused: int | None = None
        self._listed: tuple[Stamps, int | None] | None = None
        self._beside: dict[str, Watch] = {}  # this thread checks them one after the other

    def run(self) -> None:
        """Check repeatedly; errors are logged, never raised."""
        if self.service.live.generation is None:
            self._try(self._compose)
        while not self._ended.wait(self.every):
            self._try(self.look)

    def _try(self, look: Callable[[], None]) -> None:
        attempt(look, what="cannot look at the environment", ended=self._ended.is_set)

    def stop(self) -> None:
        """Stop; abort a running composition and start no other."""
        with self._guard:
            self._ended.set()
            child, beside = self._child, tuple(self._beside.values())
        if child is not None:
            child.terminate()
        for watch in beside:
            watch.stop()
        if self.is_alive():
            self.join()

    def look(self) -> None:
        """Check once: follow the home, and compose if packages changed and are stable again.

        This covers every question, including those composed meanwhile.
        """
        self._look()
        self.service.find_questions()
        for name, service in tuple(self.service.named.items()):
            with self._guard:
                if self._ended.is_set():
                    return
                # Its own lock names its backbone: the option applies to the default question.
                watch = self._beside.setdefault(name, Watch(service))
            self._try(watch.look)

    def _look(self) -> None:
        self._follow()
        stamps = packages_changed()
        at_rest, self._last = stamps == self._last, stamps
        if at_rest and stamps != self._seen:
            self._seen = stamps
            self._compose()
        if at_rest and self._listed != (state := (stamps, self.service.live.generation)):
            self.service.listing = self._json("list-experts")
            self._listed = state

    def _follow(self) -> None:
        """Serve a generation that another process made current; one that fails is tried once."""
        live = self.service.live
        current = live.host.generations.current()
        if current in {None, live.generation, self._refused}:
            return
        try:
            self.service.change(live.refresh)
        except redhost.errors.SwapInProgressError:
            return
        except redhost.RedhostError as e:
            self._refused = current
            self._say("refused", str(e))

    def _compose(self) -> None:
        """Compose the installed experts, and serve the result if it passes."""
        drift = self._json("status")["drift"]
        if not drift and self.service.live.generation is not None:
            self._say("unchanged", self._failing())
            return
        self._say("checking")
        options = ["--backbone", self.backbone] if self.backbone else []
        code, out, errors = self._redhost("recompose", *options)
        if code:
            self._say("refused", errors or f"recompose ended with {code}")
            return
        self._publish(json.loads(out)["generation"])

    def _publish(self, number: int) -> None:
        """Serve a new generation; if that fails, roll the home back to the served one."""
        live = self.service.live
        try:
            self.service.change(live.refresh)
        except redhost.RedhostError as e:
            self._refused = number
            self._say("refused", str(e))
            if live.generation is not None:
                live.host.generations.rollback(live.generation)
            return
        self._say("published", generation=number)

    def _failing(self) -> str | None:
        """Return why installed packages are not part of the served generation."""
        wrong = [x for x in self._json("list-experts") if x["code"] not in {None, "disabled"}]
        reasons = [f"{x['id'] or x['dist']}: {x['reason']}" for x in wrong]
        return "; ".join(reasons) or None

    def _say(self, state: str, reason: str | None = None, *, generation: int | None = None) -> None:
        self.service.candidate = Candidate(state=state, reason=reason, generation=generation)
        level = logging.WARNING if state == "refused" else logging.INFO
        log.log(level, "candidate %s%s", state, f": {reason}" if reason else "")

    def _json(self, command: str) -> Any:
        """Run a command that prints JSON.

        Raises:
            MissingError: If it fails.
        """
        code, out, errors = self._redhost(command)
        if code:
            raise redhost.MissingError(f"redhost {command} ended with {code}", found=errors)
        return json.loads(out)

    def _redhost(self, command: str, *options: str) -> tuple[int, str, str]:
        """Run a command in a fresh interpreter: its exit code, stdout, last line of stderr."""
        arguments = (command, "--home", str(self.service.home), "--json", *options)
        with self._guard:
            if self._ended.is_set():
                return 1, "", "stopped"
            self._child = subprocess.Popen(  # noqa: S603  (our own command)
                redhost.plugins.python_command("-m", "redhost", *arguments),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            )
        with self._child as child:
            out, err = child.communicate()
        lines = err.strip().splitlines() or [""]
        return child.returncode, out, lines[-1].removeprefix("redhost: ")


def packages_changed(path: Sequence[str] | None = None) -> Stamps:
    """Return when each folder of packages was last changed, to the nanosecond.

    Args:
        path: Folders of packages; by default ``sys.path``.
    """
    found = []
    for name in dict.fromkeys(sys.path if path is None else path):
        folder = Path(name)
        if name and next(folder.glob("*.dist-info"), None) is not None:
            found.append((name, folder.stat().st_mtime_ns))
    return tuple(found)
