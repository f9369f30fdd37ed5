"""Adapters of a generation, loaded at upstreams by their own interfaces.

An adapter's name there ends with the digest of its package. So a request that was chosen under one
generation is answered by that generation's adapter or not at all, whatever is composed meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx2

import redhost
from redhost.registry.atomic import write_folder
from redhost_gateway.upstream import Upstream

__all__ = ["AdapterFiles", "LoadError", "Loader", "Refusal", "adapter_name"]

log = logging.getLogger("redhost.gateway")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""PEFT's two files."""

DIGITS = 12
"""Digits of a digest in a name."""

SECONDS = 120.0
"""Seconds for an upstream to load an adapter."""

PATHS: Mapping[str, tuple[str, str]] = {
    "vllm": ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    "sglang": ("/load_lora_adapter", "/unload_lora_adapter"),
}
"""Where an upstream loads and unloads adapters, by kind."""

OK, NOT_FOUND = 200, 404


class LoadError(redhost.RedhostError):
    """An upstream did not load an adapter."""


def adapter_name(expert: str, digest: str) -> str:
    """Return the name of an adapter at upstreams that the gateway loads it at."""
    return f"{expert}-{digest[:DIGITS]}"


@dataclass(frozen=True, kw_only=True)
class AdapterFiles:
    """PEFT's files of experts, written from the store to where upstreams read them.

    Attributes:
        store: The host's store.
        folder: The folder, on a file system that the upstreams share.
    """

    store: redhost.Host
    folder: Path

    def write(self, expert: str, digest: str) -> Path:
        """Write an adapter, unless it is there with the same bytes; return its folder.

        Raises:
            IntegrityError: If the stored bytes are not those that were composed.
            StoreError: If they are missing, or the folder cannot be written.
        """
        files = self.store.store.expert(digest, name=expert)
        wanted = {CONFIG: files.files[CONFIG], WEIGHTS: files.weights}
        folder = self.folder.absolute() / adapter_name(expert, digest)
        if any(_bytes(folder / name) != data for name, data in wanted.items()):
            write_folder(folder, wanted)
        return folder


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An adapter that could not be loaded.

    Attributes:
        expert: The expert.
        digest: The digest of its package.
        reason: Why.
        tried: When it was last tried.
    """

    expert: str
    digest: str
    reason: str
    tried: float


class Loader:
    """Loads adapters at one upstream, and unloads those that it loaded.

    Args:
        upstream: The upstream, of a kind in `PATHS`.
        files: The adapters' files.

    Attributes:
        loaded: The names of those that are loaded.
        refused: Name → refusal, of those that could not be.
    """

    def __init__(self, upstream: Upstream, files: AdapterFiles) -> None:
        self.upstream, self.files = upstream, files
        self.loaded: set[str] = set()
        self.refused: dict[str, Refusal] = {}
        self._load, self._unload = PATHS[upstream.settings.loads]
        self._turn = asyncio.Lock()

    def forget(self, names: Collection[str]) -> None:
        """Note that the upstream lost adapters."""
        self.loaded.difference_update(names)

    def unlisted(self) -> frozenset[str]:
        """Return the loaded adapters that the upstream did not list when it was last checked."""
        listed = {str(model).rpartition(":")[2] for model in self.upstream.names}
        return frozenset(self.loaded - listed)

    async def ensure(self, expert: str, digest: str) -> str:
        """Load an adapter unless it is loaded; return its name.

        Raises:
            LoadError: If the upstream refuses it.
            TransportError: If the upstream does not answer.
            RedhostError: If the stored bytes are not those that were composed.
        """
        name = adapter_name(expert, digest)
        if name in self.loaded:
            return name
        async with self._turn:
            if name in self.loaded:
                return name
            try:
                await self._put(name, expert, digest)
            except redhost.RedhostError as e:
                self.refused[name] = Refusal(
                    expert=expert, digest=digest, reason=str(e), tried=time.monotonic()
                )
                raise
            log.info("%s has %s", self.upstream.url, name)
            self.loaded.add(name)
            self.refused.pop(name, None)
        return name

    async def retry(self, names: Collection[str], *, after: float) -> None:
        """Load adapters again that could not be, some seconds after the last time.

        Args:
            names: Those that are still wanted; others are forgotten.
            after: The seconds.

        Raises:
            TransportError: If the upstream does not answer.
        """
        self.refused = {name: found for name, found in self.refused.items() if name in names}
        for refusal in list(self.refused.values()):
            if time.monotonic() - refusal.tried >= after:
                try:
                    await self.ensure(refusal.expert, refusal.digest)
                except redhost.RedhostError as e:
                    log.warning("%s", e)

    async def _put(self, name: str, expert: str, digest: str) -> None:
        folder = await asyncio.to_thread(self.files.write, expert, digest)
        content = {"lora_name": name, "lora_path": str(folder)}
        status, body = await self._ask(self._load, content)
        if status != OK and b"already" not in body:
            found = f"{status}: {body[:200].decode('utf-8', 'replace')}"
            raise LoadError(f"{self.upstream.url} did not load {name}", found=found)

    async def unload_all_but(self, names: Collection[str]) -> None:
        """Unload every adapter that was loaded here, except some."""
        for name in sorted(self.loaded.difference(names)):
            async with self._turn:
                self.loaded.discard(name)
                status, _ = await self._ask(self._unload, {"lora_name": name})
                if status not in {OK, NOT_FOUND}:
                    log.warning("%s did not unload %s: %s", self.upstream.url, name, status)

    async def _ask(self, path: str, content: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(SECONDS):
                return await self.upstream.ask("POST", path, content)
        except TimeoutError as e:
            raise httpx2.ReadTimeout(f"{path} took more than {SECONDS:g} s") from e


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
