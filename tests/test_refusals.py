"""What is refused, as a user reads it: an example of every code, all prose in one file.

`make refusals` writes the file, tests/refusals.txt, anew; other tests need only code and field.
Every example is a package that ships with one thing done to it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from redhost_author.signing import make_signer, new_key
from redhost_author.testing import judge_expert
from redhost_author.training.context import open_backbone
from safetensors.numpy import load, save

import redhost
from redhost.cli import main
from redhost.core.composition.refusal import refusal_of
from redhost.errors import ContractError, HarmError
from redhost.registry.errors import HijackError
from redhost.registry.home.revoked import REVOKED, Revocation, Revocations, RevokedList
from redhost.registry.package.checked import CODES
from redhost.registry.package.discover import from_folder
from redhost.registry.package.forms import PLUGIN_TASKS, TASKS
from redhost.registry.package.readers import read_backbone
from redhost.testing import Environment

VARYING = re.compile(r"(?<=found )[\d.e-]+(?= on )|(?<= by sha256:)\w+…")
"""The last digits of what is computed; the keys that were just made."""
GOLDEN = Path(__file__).with_name("refusals.txt")
NO_TENSORS, HUGE = b"no tensors", 2 * 2**30 + 1
EXPERT = {"weights": "expert.safetensors", "card": "card.jsonl", "canary": "canary.safetensors"}
BACKBONE = {
    "base": "model.safetensors",
    "classifier": "classifier.safetensors",
    "delta": "delta.safetensors",
    "dense": "dense.safetensors",
    "background": "background.jsonl",
    "evaluation": "evaluation.jsonl",
}
STATISTICS = {"card.kind": "statistics"}
LAYER = {"file": "dense.safetensors", "sha256": "0" * 64, "activation": "tanh"}
ADDED: dict[str, dict[str, Any]] = {
    "delta": {"delta": {"file": "delta.safetensors", "sha256": "0" * 64}},
    "dense": {"dense": [LAYER]},
}
"""Role → what a manifest says of a file that the shipped backbone does not have."""


def shipped(name: str) -> dict[str, bytes]:
    """Return the files of a package that ships."""
    origin = importlib.util.find_spec(name).origin
    return {p.name: p.read_bytes() for p in Path(origin).parent.iterdir() if p.suffix != ".py"}


def change(manifest: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Set fields by their path: ``card.gate``."""
    for path, value in changes.items():
        *above, last = path.split(".")
        place = manifest
        for key in above:
            place = place[key]
        place[last] = value


def references(manifest: dict[str, Any]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return file name → where its sha256 stands."""
    fields = [*manifest.values(), manifest.get("ported", {}).get("map"), *manifest.get("dense", [])]
    parts = [x for x in fields if isinstance(x, dict) and x.get("file")]
    base = manifest.get("base", manifest).get("files", {})
    return {x["file"]: (x, "sha256") for x in parts} | {name: (base, name) for name in base}


def tensors(name: str, file: str, **changes: np.ndarray | None) -> bytes:
    """Return a file of tensors that ships, with some of them changed or left out."""
    found = {**load(shipped(name)[file]), **changes}
    return save({key: value for key, value in found.items() if value is not None})


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A package that ships with fields and files changed.

    Args:
        changes: Fields of its manifest by path.
        files: Bytes by file name; None leaves it out, a number is the size of an empty one.
        honest: Whether the manifest has the hashes of the files that are there.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes | int | None] = field(default_factory=dict)
    honest: bool = True

    def write(self, folder: Path, package: str, manifest_name: str) -> Path:
        from hashlib import sha256

        files: dict[str, bytes | int | None] = {**shipped(package), **self.files}
        fields = files[manifest_name]
        if manifest_name not in self.files:
            manifest = json.loads(fields)
            change(manifest, self.changes)
            for name, (place, key) in references(manifest).items():
                data = files.get(name)
                if self.honest and isinstance(data, bytes):
                    place[key] = sha256(data).hexdigest()
            files[manifest_name] = json.dumps(manifest).encode()
        folder.mkdir(parents=True)
        for name, data in files.items():
            if isinstance(data, bytes):
                (folder / name).write_bytes(data)
            elif data is not None:
                with (folder / name).open("wb") as file:
                    file.truncate(data)
        return folder


def gone(name: str, **changes: Any) -> Broken:
    return Broken(files={name: None}, changes=changes)


def changed(name: str, package: str, **changes: Any) -> Broken:
    data = shipped(package).get(name, save({"w": np.ones(3, "f4")}))
    return Broken(files={name: data + b"\n"}, changes=changes, honest=False)


def expert_tensors(file: str, **changes: np.ndarray | None) -> Broken:
    return Broken(files={file: tensors("red_expert_range3", file, **changes)})


def statistics(fill: float, **more: np.ndarray) -> bytes:
    sums, scatter = np.full((20, 128), fill, "f4"), np.zeros(128 * 129 // 2, "f4")
    return save({"counts": np.ones(20, "i8"), "sums": sums, "scatter": scatter, **more})


LORA = {
    f"base_model.model.layers.0.self_attn.q_proj.lora_{part}.weight": np.ones(shape, "f4")
    for part, shape in (("A", (2, 128)), ("B", (128, 2)))
}
TARGETS = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}


def adapter(
    own: Mapping[str, bytes | int | None] | None = None,
    *,
    files: Mapping[str, bytes | int | None] | None = None,
    changes: Mapping[str, Any] | None = None,
    honest: bool = True,
) -> Broken:
    """A LoRA adapter of the shipped backbone; with `own` it has a head, of these bytes."""
    rows = {"z": np.ones((2, 128), "f4"), "delta": np.ones((2, 20 if own else 128), "f4")}
    made: dict[str, bytes | int | None] = {
        "adapter_config.json": json.dumps(TARGETS).encode(),
        "adapter_model.safetensors": save(LORA),
        "canary.safetensors": save({**rows, "tokens": np.ones((2, 3), "i8")}),
    }
    fields: dict[str, Any] = {
        "form": "lora",
        "rank": 2,
        "weights": {"file": "adapter_model.safetensors", "sha256": "0" * 64},
        "files": {"adapter_config.json": "0" * 64},
    }
    if own:
        fields |= {"writes.space": "labels"}
        fields["files"]["head.safetensors"] = "0" * 64
    return Broken(
        files=made | dict(own or {}) | dict(files or {}),
        changes=fields | dict(changes or {}),
        honest=honest,
    )


def head(rows: int = 20, value: float = 1.0) -> dict[str, bytes | int | None]:
    tensors = {"W": np.full((rows, 128), value, "f4"), "b": np.ones(rows, "f4")}
    return {"head.safetensors": save(tensors)}


PISSA = json.dumps({**TARGETS, "init_lora_weights": "pissa"}).encode()
WIDE = {name: np.ones((2, 64) if "_A" in name else (128, 2), "f4") for name in LORA}
ADAPTERS: dict[str, Broken] = {
    "files_missing": adapter(files={"adapter_config.json": None}),
    "files_too_large": adapter({"head.safetensors": HUGE}),
    "files_digest": adapter(honest=False),
    "files_header": adapter({"head.safetensors": NO_TENSORS}),
    "files_tensors": adapter(head(rows=3)),
    "files_not_finite": adapter(head(value=np.nan)),
    "files_range": adapter(head(value=1e30)),
    "adapter_config": adapter(files={"adapter_config.json": PISSA}),
    "adapter_misfit": adapter(files={"adapter_model.safetensors": save(WIDE)}),
}


def ported(
    *, A: np.ndarray | None = None, files: Mapping[str, Any] | None = None, honest: bool = True
) -> Broken:
    """A linear head that says it was ported, by a map A and from a manifest that is none."""
    ref = {"sha256": "0" * 64}
    made: dict[str, Any] = {
        "expert.safetensors": save({"W": np.ones((20, 96), "f4"), "b": np.ones(20, "f4")}),
        "from.json": b"{}",
        "map.safetensors": save(
            {"A": np.ones((96, 128), "f4") if A is None else A, "c": np.ones(96, "f4")}
        ),
    }
    came = {"digest": "0" * 64, "width": 96, "map": {"file": "map.safetensors", **ref}}
    fields = {"form": "linear", "rank": 0, "writes.space": "labels"}
    return Broken(
        files=made | dict(files or {}),
        changes=fields | {"ported": {"file": "from.json", **ref, **came}},
        honest=honest,
    )


PORTED: dict[str, Broken] = {
    "ported_missing": ported(files={"map.safetensors": None}),
    "ported_too_large": ported(files={"map.safetensors": HUGE}),
    "ported_digest": ported(honest=False),
    "ported_header": ported(files={"map.safetensors": NO_TENSORS}),
    "ported_tensors": ported(A=np.ones((3, 128), "f4")),
    "ported_not_finite": ported(A=np.full((96, 128), np.nan, "f4")),
    "ported_range": ported(A=np.full((96, 128), 1e30, "f4")),
    "ported_misfit": ported(),
}
NAN = np.full((32, 128), np.nan, "f4")
EXPERTS: dict[str, Broken] = {
    "package_files": gone("expert.json"),
    "manifest_json": Broken(files={"expert.json": b'{"id": "a", "id": "b"}'}),
    "manifest_field": Broken(changes={"rank": "32"}),
    "manifest_unknown_key": Broken(changes={"rnak": 32}),
    "manifest_newer": Broken(changes={"schema": "redhost.expert/2"}),
    **{f"{role}_missing": gone(name) for role, name in EXPERT.items()},
    **{f"{role}_digest": changed(name, "red_expert_range3") for role, name in EXPERT.items()},
    **{f"{role}_too_large": Broken(files={name: HUGE}) for role, name in EXPERT.items()},
    "weights_header": Broken(files={"expert.safetensors": NO_TENSORS}),
    "canary_header": Broken(files={"canary.safetensors": NO_TENSORS}),
    "card_header": Broken(files={"card.jsonl": NO_TENSORS}, changes=STATISTICS),
    "weights_tensors": expert_tensors("expert.safetensors", V=None),
    "canary_tensors": expert_tensors("canary.safetensors", z=np.zeros((0, 128), "f4")),
    "card_tensors": Broken(
        files={"card.jsonl": statistics(1, more=np.ones(3, "f4"))}, changes=STATISTICS
    ),
    "weights_not_finite": expert_tensors("expert.safetensors", U=NAN),
    "canary_not_finite": expert_tensors(
        "canary.safetensors", delta=np.full((8, 128), np.inf, "f4")
    ),
    "card_not_finite": Broken(files={"card.jsonl": statistics(np.nan)}, changes=STATISTICS),
    "card_rows": Broken(changes={"card.gate": 66}),
    "weights_range": expert_tensors("expert.safetensors", U=np.full((32, 128), 1e30, "f4")),
    "canary_range": expert_tensors("canary.safetensors", z=np.full((8, 128), 1e30, "f4")),
    "card_range": Broken(files={"card.jsonl": statistics(1e30)}, changes=STATISTICS),
    "canary_power": Broken(changes={"canary.tolerance": 1e300}),
    "bus_api": Broken(changes={"bus_api": ">=2"}),
    "backbone_mismatch": Broken(changes={"backbone.fingerprint": "e" * 64}),
    "width_mismatch": Broken(
        changes={"reads.width": 64},
        files={
            "expert.safetensors": save(
                {"U": np.ones((32, 64), "f4"), "V": np.ones((64, 32), "f4")}
            ),
            "canary.safetensors": save(dict.fromkeys(("z", "delta"), np.ones((2, 64), "f4"))),
        },
    ),
    "labels_unknown": Broken(changes={"labels": ["41", "many"]}),
    "tap_unknown": Broken(changes={"reads.tap": "block3"}),
    "tap_order": Broken(changes={"writes.tap": "2"}),
    "causal_mismatch": Broken(
        changes={"reads.causal": True, "writes.vocabulary": "b" * 64, "labels": []}
    ),
    "form_unknown": Broken(changes={"form": "nobody:form"}),
    "canary_values": expert_tensors("canary.safetensors", delta=np.full((8, 128), 9, "f4")),
    "norm_bound": Broken(changes={"norm_bound": 1e-3}),
    "off_domain": Broken(changes={"off_domain": 1e-6}),
    **ADAPTERS,
    **PORTED,
}

CUT = {"background": "background.safetensors", "evaluation": "evaluation.safetensors"}
BACKBONES: dict[str, Broken] = {
    **{f"{role}_missing": gone(name, **ADDED.get(role, {})) for role, name in BACKBONE.items()},
    **{
        f"{role}_digest": changed(name, "red_backbone_tiny", **ADDED.get(role, {}))
        for role, name in BACKBONE.items()
    },
    **{
        f"{role}_too_large": Broken(files={name: HUGE}, changes=ADDED.get(role, {}), honest=False)
        for role, name in BACKBONE.items()
    },
    **{
        f"{role}_header": Broken(files={BACKBONE[role]: NO_TENSORS}, changes=ADDED.get(role, {}))
        for role in ("base", "classifier", "delta", "dense")
    },
    **{
        f"{role}_header": Broken(
            files={name: save({"w": np.ones(3, "f4")})[:-4]},
            changes={f"{role}.file": name},
            honest=False,
        )
        for role, name in CUT.items()
    },
    **{
        f"{role}_not_finite": Broken(
            files={BACKBONE[role]: save({"w": np.full(3, np.nan, "f4")})},
            changes=ADDED.get(role, {}),
        )
        for role in ("base", "delta", "dense")
    },
    "base_config": Broken(files={"config.json": b'{"hidden_size": -128}'}),
    "classifier_tensors": Broken(
        files={"classifier.safetensors": save({"weight": np.ones((3, 128), "f4")})}
    ),
    "classifier_not_finite": Broken(
        files={"classifier.safetensors": save({"weight": np.full((99, 128), np.nan, "f4")})}
    ),
}


def bring(name: str, data: bytes = b"") -> Callable[[Any], None]:
    """Bring one member more, honestly listed in RECORD."""

    def tamper(draft: Any) -> None:
        draft.members[name.format(module=draft.module, info=draft.info)] = data

    return tamper


def record(change: Callable[[str], str]) -> Callable[[Any], None]:
    """Change the text of RECORD."""

    def tamper(draft: Any) -> None:
        draft.record = change(draft.honest_record().decode()).encode()

    return tamper


def unlisted(draft: Any) -> None:
    draft.record = draft.honest_record()
    draft.members[f"{draft.module}/more.txt"] = b""


def link(draft: Any) -> None:
    draft.links = frozenset({f"{draft.module}/expert.json"})


def twice(draft: Any) -> None:
    draft.twice = ((f"{draft.module}/expert.json", b"{}"),)


def as_json(draft: Any) -> None:
    own, points = f"{draft.module}/", f"{draft.info}/entry_points.txt"
    draft.members = {n.replace(own, "json/", 1): x for n, x in draft.members.items()}
    draft.members[points] = b"[redhost.experts]\nx = json\n"


def as_pytest_plugin(draft: Any) -> None:
    draft.members[f"{draft.info}/entry_points.txt"] += b"[pytest11]\nx = json\n"


def as_torch(draft: Any) -> None:
    before, old = draft.info, draft.dist
    draft.dist = "torch"
    draft.members = {n.replace(before, draft.info): x for n, x in draft.members.items()}
    metadata = f"{draft.info}/METADATA"
    draft.members[metadata] = draft.members[metadata].replace(old.encode(), b"torch")


def two_names(draft: Any) -> None:
    draft.members[f"{draft.info}/METADATA"] += b"Name: another\n"


def first_row_hash(text: str, new: str) -> str:
    return re.sub(r"sha256=[\w-]+,\d+", new, text, count=1)


WHEELS: dict[str, Callable[[Any], None]] = {
    "archive_duplicate": twice,
    "archive_link": link,
    "archive_name": bring("../outside.py"),
    "archive_size": bring("{module}/big.bin", bytes(64 * 2**20 + 1)),
    "installer_file": bring("{info}/direct_url.json", b"{}"),
    "record_absent": record(lambda _: ""),
    "record_digest": record(lambda text: first_row_hash(text, f"sha256={'A' * 43},1")),
    "record_missing": record(lambda text: f"{text}red_expert_sound/gone.json,,\n"),
    "record_outside": record(lambda text: f"{text}../../outside,,\n"),
    "record_row": record(lambda text: text + text.splitlines()[0]),
    "record_unhashed": record(lambda text: first_row_hash(text, ",")),
    "record_unlisted": unlisted,
    "startup_code": bring("startup.pth"),
    "data_scripts": bring("{module}-0.1.0.data/scripts/run"),
    "data_code": bring("{module}/more.py"),
    "foreign_top_level": bring("intruder.py"),
    "taken_top_level": as_json,
    "taken_name": as_torch,
    "entry_points": as_pytest_plugin,
    "metadata_row": two_names,
    "name_limit": bring("{module}/" + 11 * "a/" + "x"),
}

FILES: dict[str, Callable[[bytes], bytes]] = {
    "archive_broken": lambda _: b"no zip",
    "archive_data": lambda data: data + b"more",
    "archive_sdist": lambda _: b"\x1f\x8b",
    "archive_wheel": bytes,  # under another version
}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that fails; return what it prints."""
    with pytest.raises(SystemExit) as e:
        main(arguments)
    out, err = capsys.readouterr()
    assert e.value.code == 1, err
    return out


def checked(
    capsys: pytest.CaptureFixture[str], targets: Mapping[str, Path | str], *options: str
) -> dict[str, str]:
    """Check targets, each under the code it is an example of; return what is printed of that."""
    command = ("check", *map(str, targets.values()), "--backbone", "tiny", *options)
    reports = json.loads(run(capsys, *command, "--json"))
    text = run(capsys, *command)
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    codes = [v["code"] for report in reports for v in report["violations"]]
    by_target = [len(report["violations"]) for report in reports]
    found, first = {}, 0
    for (code, _), count in zip(targets.items(), by_target, strict=True):
        here = codes[first : first + count]
        assert code in here, (code, here)
        found[code] = lines[first + here.index(code)].strip()
        first += count
    return found


@pytest.fixture
def wheels(draft: Any) -> dict[str, Path]:
    """A wheel for each code, in the folder where the test is."""
    made = {}
    for code, tamper in WHEELS.items():
        drafted = draft("sound")
        tamper(drafted)
        Path(code).mkdir()
        made[code] = drafted.write(Path(code))
    for code, wrap in FILES.items():
        Path(code).mkdir()
        made[code] = draft("sound").write(Path(code))
        made[code].write_bytes(wrap(made[code].read_bytes()))
    other = "red_expert_sound-0.2.0-py3-none-any.whl"
    made["archive_wheel"] = made["archive_wheel"].rename(Path("archive_wheel", other))
    return made


def refused_wheels(capsys: Any, wheels: Mapping[str, Path], draft: Any) -> dict[str, str]:
    """Return what is printed of wheels: tampered with, unsigned, signed by somebody else."""
    found = checked(capsys, wheels)
    for name in ("author", "other"):
        new_key(Path(f"{name}.pem"))
    signed = {}
    for code in ("signature_missing", "signature_wrong"):
        Path(code).mkdir()
        signed[code] = draft("sound").write(Path(code))
    make_signer(Path("other.pem"))(signed["signature_wrong"])
    return found | checked(capsys, signed, "--key", "author.pub.pem")


def refused_experts(capsys: Any, environment: Environment) -> dict[str, str]:
    """Return what is printed of experts in folders, and of installed ones."""
    folders = {
        code: made.write(Path(code), "red_expert_range3", "expert.json")
        for code, made in EXPERTS.items()
    }
    found = checked(capsys, folders)
    strict = Broken(changes={"license": ""}).write(
        Path("strict"), "red_expert_range3", "expert.json"
    )
    found |= checked(capsys, {"strict": strict}, "--strict")
    for n in (1, 2):
        twin = environment.package(f"red-expert-twin{n}")
        Broken(changes={"id": "twin"}).write(twin, "red_expert_range3", "expert.json")
        points = {"redhost.experts": f"twin = {twin.name}"}
        environment.write_info(f"red-expert-twin{n}", "1.0", twin.name, points)
    text = run(capsys, "check", "twin", "--backbone", "tiny")
    found["duplicate_id"] = text.splitlines()[1].strip()
    with (twin / "big.bin").open("wb") as file:
        file.truncate(HUGE)
    [info] = environment.folder.glob("red_expert_twin2-*.dist-info")
    with (info / "RECORD").open("a") as file:
        file.write(f"{twin.name}/big.bin,sha256={'A' * 43},{HUGE}\n")
    text = run(capsys, "check", "red-expert-twin2", "--backbone", "tiny")
    [found["record_too_large"]] = [x.strip() for x in text.splitlines() if "big.bin" in x]
    with pytest.raises(SystemExit):
        main(["disable", "red-expert-twin1"])
    capsys.readouterr()
    [off] = [x for x in redhost.Host.open().list_experts() if x.package.dist == "red-expert-twin1"]
    assert off.code == "disabled"
    return found | {"disabled": str(off.error()), "revoked": refused_revoked()}


def refused_revoked() -> str:
    """Return what is printed of an expert that is revoked."""
    host = redhost.Host.open(backbone="tiny")
    [status] = [x for x in host.list_experts() if x.id == "range3"]
    entry = Revocation(digest=str(status.digest), reason="it leaks rows", revoked_at="2026-11-28")
    host.store.write_revocations(Revocations(lists={"f": RevokedList(serial=1, entries=(entry,))}))
    [status] = [x for x in host.list_experts() if x.id == "range3"]
    (host.home / REVOKED).unlink()
    assert status.code == "revoked"
    return str(status.error())


def refused_backbones() -> dict[str, str]:
    """Return what is printed where a backbone is opened."""
    found = {}
    for code, made in BACKBONES.items():
        folder = made.write(Path(code), "red_backbone_tiny", "backbone.json")
        codes = [v.code for v in read_backbone(from_folder(folder)).violations]
        assert code in codes[:1], (code, codes)
        with pytest.raises(redhost.RedhostError) as e:
            open_backbone(folder)
        assert type(e.value) is CODES[code]
        found[code] = str(e.value)
    return found


def refused_elsewhere(
    capsys: pytest.CaptureFixture[str], environment: Environment
) -> dict[str, str]:
    """Return what is printed of another vocabulary or question, of other bytes, and of faults."""
    speaker = environment.package("red-backbone-speaker")
    fields = {"id": "speaker", "task": "generation", "labels": [], "classifier": None}
    Broken(changes=fields).write(speaker, "red_backbone_tiny", "backbone.json")
    points = {"redhost.backbones": f"speaker = {speaker.name}"}
    environment.write_info("red-backbone-speaker", "1.0", speaker.name, points)
    causal = EXPERTS["causal_mismatch"].write(
        Path("vocabulary_mismatch"), "red_expert_range3", "expert.json"
    )
    text = run(capsys, "check", str(causal), "--backbone", "speaker")
    nobodys = Broken(changes={"task": "nobodys"})
    unknown = nobodys.write(Path("task_unknown"), "red_backbone_tiny", "backbone.json")
    task = run(capsys, "check", str(unknown))
    violations = judge_expert(shipped("red_expert_range3"), digest="e" * 64)
    assert not isinstance(violations, str) and [v.code for v in violations] == ["digest"]
    with pytest.raises(ContractError) as misplaced:
        redhost.Host.open(question="topic", backbone="tiny").attach("range3")
    copy = Broken(changes={"id": "copy"})
    copied = copy.write(Path("same_rows"), "red_expert_range3", "expert.json")
    with pytest.raises(ContractError) as same:
        redhost.Host.open(backbone="tiny").attach(copied)
    faults = (
        HarmError("domain range1: .90 before, .70 after"),
        HijackError("a newcomer's card shows rows of domain 'range1'"),
        ArithmeticError("singular"),
    )
    named = [refusal_of(fault).violations[0] for fault in faults]
    receipts = {v.code: str(v.error("expert 'range3'")) for v in named}
    return {
        **receipts,
        "question_mismatch": str(misplaced.value),
        "same_rows": str(same.value),
        "vocabulary_mismatch": text.splitlines()[1].strip(),
        "task_unknown": task.splitlines()[1].strip(),
        "digest": str(violations[0].error("expert 'range3'")),
    }


def test_every_refusal_says_what_the_golden_file_says(
    environment: Environment,
    wheels: Mapping[str, Path],
    draft: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {
        **refused_wheels(capsys, wheels, draft),
        **refused_experts(capsys, environment),
        **refused_backbones(),
        **refused_elsewhere(capsys, environment),
    }
    assert found.keys() == CODES.keys(), "a code without an example here, or none of CODES"
    text = "".join(f"{code}\n  {VARYING.sub('…', found[code])}\n" for code in sorted(found))
    if os.environ.get("REFUSALS") == "write":
        GOLDEN.write_text(text, "utf-8")
    assert text == GOLDEN.read_text("utf-8"), "if that is better, run `make refusals`"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of one's own: paths in messages are relative, and homes are nobody's."""
    for name in TASKS.keys() - {"classification", "regression", "multi-label", *PLUGIN_TASKS}:
        monkeypatch.delitem(TASKS, name)  # another test's
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
