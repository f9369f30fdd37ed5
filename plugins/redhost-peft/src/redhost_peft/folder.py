"""An adapter's two files, read from the folder in which PEFT saved them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from redhost.registry.package.checked import Violation, checked, refuse
from redhost.registry.package.readers import MAX_LARGE, read_file
from redhost.registry.package.safetensors_check import MAX_FILE

from .peft_adapter import CONFIG, WEIGHTS


@checked
def read_folder(folder: Path) -> Mapping[str, bytes]:
    """Read an adapter's two files, as written by PEFT, from a folder."""
    files, wrong = dict[str, bytes](), list[Violation]()
    for name, role, most in ((CONFIG, "files", MAX_FILE), (WEIGHTS, "weights", MAX_LARGE)):
        one = read_file(folder / name, missing=f"{role}_missing", limit=most)
        hint = "Save the adapter again with PEFT's save_pretrained: nothing is unpickled here."
        wrong += [replace(v, hint=hint) if "missing" in v.code else v for v in one.violations]
        files[name] = one.value or b""
    refuse(wrong)
    return files
