"""Checks of where pip and uv would install from; nothing is fetched."""

from __future__ import annotations

import ast
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

from redhost.registry.environment import python_command
from redhost_doctor.finding import Finding, Subject, ok, warn
from redhost_doctor.origin import without_credentials
from redhost_doctor.shell import pip_command

_PLACES = ("index-url", "extra-index-url", "find-links")
_UNCHECKED = "trusted-host"
_LEVELS = ("user", "site", "global")
_ENVIRONMENT = ":env:"
_UV = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS")
_UV_UNCHECKED = "UV_INSECURE_HOST"
_LOCAL = ("localhost", "127.0.0.1", "::1")


def check_index(_: Subject) -> Iterator[Finding]:
    """Check that every index is there, as far as this machine can know, and cannot be forged."""
    findings, places = [], 0
    for key, value in _settings().items():
        level, name = key.split(".", 1)
        words = value.split()
        places += len(words)
        bad = {w: fault_of(w) for w in words} if name in _PLACES else {}
        bad |= {w: f"the certificate of {w} is not checked" for w in words if name == _UNCHECKED}
        faults = [fault for fault in bad.values() if fault]
        if faults:
            stays = [w for w in words if not bad.get(w)]
            findings.append(warn("index", "; ".join(faults), mend=_without(level, name, stays)))
    for name in (*_UV, _UV_UNCHECKED):
        for word in os.environ.get(name, "").split():
            fault = f"the certificate of {word} is not checked"
            fault = fault if name == _UV_UNCHECKED else fault_of(word.rpartition("=")[2])
            if fault:
                findings.append(warn("index", f"{name}: {fault}", mend=f"unset {name}"))
    yield from findings or [
        ok("index", f"pip has {places} configured" if places else "pip has PyPI")
    ]


def fault_of(place: str) -> str:
    """Return what is wrong with an index or a folder of wheels; empty if nothing is."""
    parts = urlsplit(place)
    shown = without_credentials(place)
    if parts.scheme == "http" and parts.hostname not in _LOCAL:
        return f"{shown} is not encrypted, so that anybody on the way can change what it sends"
    if parts.scheme not in {"", "file"} or (not parts.scheme and parts.netloc):
        return ""
    path = Path(unquote(parts.path if parts.scheme else place)).expanduser()
    return "" if path.exists() else f"{shown} is not there"


def _settings() -> dict[str, str]:
    """Return pip's settings of where it installs from; those of the environment come first."""
    listed = _listed()
    by_name: dict[str, str] = {}
    for key in sorted(listed, key=lambda key: not key.startswith(_ENVIRONMENT)):
        name = key.rpartition(".")[2]
        if name in {*_PLACES, _UNCHECKED}:
            by_name.setdefault(name, key)
    return {key: listed[key] for key in by_name.values()}


def _listed(*level: str) -> Mapping[str, str]:
    """Return what ``pip config list`` prints: values by key."""
    if find_spec("pip") is None:
        return {}
    done = subprocess.run(  # noqa: S603  (a list, no shell)
        python_command("-m", "pip", "--no-input", "config", *level, "list"),
        check=False,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        stdin=subprocess.DEVNULL,
    )
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {key: _plain(value) for key, equals, value in pairs if equals}


def _plain(value: str) -> str:
    try:
        return str(ast.literal_eval(value))
    except (ValueError, SyntaxError):
        return value


def _without(level: str, name: str, stays: list[str]) -> str:
    """Return the command that leaves some words of a setting, or none."""
    if level == _ENVIRONMENT:
        variable = f"PIP_{name.upper().replace('-', '_')}"
        value = shlex.quote(" ".join(stays))
        return f"export {variable}={value}" if stays else f"unset {variable}"
    key = f"{level}.{name}"
    place = next((at for at in _LEVELS if key in _listed(f"--{at}")), None)
    if place is None:  # in the file that this variable names
        return "unset PIP_CONFIG_FILE"
    if stays:
        return pip_command("config", f"--{place}", "set", key, " ".join(stays))
    return pip_command("config", f"--{place}", "unset", key)
