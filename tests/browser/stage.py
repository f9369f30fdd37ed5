"""What browser tests and screenshots look at: a real server with two generations, and Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from playwright.sync_api import Browser, Error, Playwright
from redhost_serve.server import running
from redhost_serve.service import Options

import redhost

TOKEN = "a token that nobody guesses"


@contextmanager
def site(home: Path, *, token: str | None = TOKEN, prefix: str = "") -> Iterator[str]:
    """Serve the shipped experts, composed with two routers; yield the address, with the prefix."""
    torch.set_num_threads(1)
    host = redhost.Host.open(home, backbone="tiny", plugins=redhost.plugins.Plugins(()))
    if host.generations.current() is None:
        for router in ("evidence", "centroid"):
            host.recompose(router=router, accept=True)
    options = Options(root_path=prefix)
    with running(redhost.Live(host.session), options=options, token=token) as (url, _):
        yield url + prefix


def chromium(playwright: Playwright) -> Browser:
    """Start playwright's own Chromium, or the system's where that could not be downloaded."""
    try:
        return playwright.chromium.launch()
    except Error:
        system = shutil.which("chromium") or shutil.which("chromium-browser")
        if system is None:
            raise
        return playwright.chromium.launch(executable_path=system, args=["--no-sandbox"])
