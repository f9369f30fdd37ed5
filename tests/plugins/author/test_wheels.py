"""Wheels are built of projects, where a disk takes them."""

from __future__ import annotations

import errno
import os

import pytest
from redhost_author.wheels import build_wheel

from redhost.registry.errors import StoreError


def test_a_disk_that_takes_no_wheel_is_the_environment_s_fault(monkeypatch, tmp_path) -> None:
    builder = pytest.importorskip("hatchling.builders.wheel").WheelBuilder

    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(builder, "build", read_only)
    with pytest.raises(StoreError, match=r"cannot write .*dist: found read-only"):
        build_wheel(tmp_path, tmp_path / "dist")
