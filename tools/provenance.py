"""Where released files come from: an in-toto statement with SLSA's predicate of provenance.

    dist/provenance.intoto.json   the digest of each file; commit, Python and tools of the build

It is what the builder says, without a signature: whoever publishes signs it, or has the service
that builds attest it. It has no times and no names of machines: equal commits give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

__all__ = ["NAME", "PREDICATE", "STATEMENT", "write_provenance"]

NAME = "provenance.intoto.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
TOOLS = ("build", "hatchling")


def write_provenance(
    folder: Path, files: Iterable[Path], *, url: str, commit: str, time: int, builder: str
) -> Path:
    """Write the statement on files of a folder.

    Args:
        folder: Where the statement is written.
        files: What it is about.
        url: The package URL of the released project.
        commit: The commit that was built.
        time: The commit's, which the build took for the present.
        builder: A URI of whoever vouches for the build; empty for a person with the Makefile.

    Returns:
        The file.
    """
    tools = [{"uri": f"pkg:pypi/{tool}@{version(tool)}"} for tool in TOOLS]
    python = f"{platform.python_version()} {platform.system()} {platform.machine()}"
    statement = {
        "_type": STATEMENT,
        "subject": [
            {"name": f.name, "digest": {"sha256": hashlib.sha256(f.read_bytes()).hexdigest()}}
            for f in sorted(files)
        ],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": f"{url}#tools/release.py",
                "externalParameters": {"target": "release"},
                "internalParameters": {"SOURCE_DATE_EPOCH": time},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *tools,
                ],
            },
            "runDetails": {
                "builder": {"id": builder or f"{url}#Makefile", "version": {"python": python}}
            },
        },
    }
    path = folder / NAME
    path.write_text(json.dumps(statement, indent=2) + "\n", "utf-8")
    return path
