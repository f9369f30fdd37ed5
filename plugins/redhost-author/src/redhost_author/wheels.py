"""Build the wheel of a project."""

from __future__ import annotations

import errno
from pathlib import Path

from redhost.registry.atomic import reporting
from redhost.registry.errors import MissingError, UsageError
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.signing import signature_path

UNWRITABLE = {errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM}
"""Errors of a disk that cannot store the wheel; other errors are due to the project."""


def build_wheel(project: Path, out: Path) -> Path:
    """Build the wheel of a project; remove the signature of an earlier build next to it.

    Args:
        project: The project's folder, with a hatchling pyproject.toml.
        out: The folder for the wheel.

    Raises:
        MissingError: If hatchling is not installed.
        StoreError: If the disk is full or read-only.
        UsageError: If the project cannot be built.
    """
    try:
        from hatchling.builders.wheel import WheelBuilder
    except ImportError as e:
        raise MissingError(
            "wheels cannot be built here",
            expected="the extra 'author'",
            found=str(e),
            hint="Install it: pip install 'redhost[author]'.",
        ) from e
    signed = {
        p.name: sha256_hex(p.read_bytes()) for p in out.glob("*.whl") if signature_path(p).exists()
    }
    try:
        builder = WheelBuilder(str(project))
        wheel = Path(next(iter(builder.build(directory=str(out), versions=["standard"]))))
        old = signature_path(wheel)
        if old.exists() and signed.get(wheel.name) != sha256_hex(wheel.read_bytes()):
            old.unlink()
        return wheel
    except (OSError, ValueError, TypeError, KeyError) as e:
        if isinstance(e, OSError) and e.errno in UNWRITABLE:
            with reporting(out):
                raise
        raise UsageError(f"{project} cannot be built", found=str(e)) from e
