"""check --strict: what a published expert should have beyond its contract."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from redhost_author.project import ExpertPlan, write_plan, write_project
from redhost_author.strict import strict_check
from redhost_author.targets import resolve_targets

from redhost.cli import main


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of range2's package folder."""
    spec = importlib.util.find_spec("red_expert_range2")
    assert spec is not None and spec.origin is not None
    return Path(shutil.copytree(Path(spec.origin).parent, tmp_path / "copy"))


def change(folder: Path, **values: object) -> None:
    path = folder / "expert.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def lacks(folder: Path) -> set[str]:
    [target] = resolve_targets([str(folder)], home=folder, backbone=None)
    return {v.field for v in strict_check(target)}


def test_the_shipped_experts_lack_nothing(copy) -> None:
    assert lacks(copy) == set()


def test_a_package_without_what_people_need_is_reported_so(copy) -> None:
    manifest = json.loads((copy / "expert.json").read_text())
    change(
        copy,
        domain=" ",
        license="",
        off_domain=None,
        card={"kind": "none"},
        training={**manifest["training"], "metrics": {}},
    )
    (copy / "card.jsonl").unlink()
    assert lacks(copy) == {"domain", "license", "off_domain", "card", "training.metrics"}


def test_a_project_without_a_manifest_is_yet_to_be_trained(tmp_path) -> None:
    write_project(tmp_path, kind="expert", package_id="odd", summary="odd")
    [target] = resolve_targets([str(tmp_path)], home=tmp_path, backbone=None)
    assert "under src/" in target.violations[0].hint  # no plan either: any folder
    write_plan(tmp_path, ExpertPlan(id="odd"))
    [target] = resolve_targets([str(tmp_path)], home=tmp_path, backbone=None)
    [violation] = target.violations
    assert violation.found == "a project not trained yet"
    assert f"redhost train-expert {tmp_path} --data FILE" in violation.hint


def test_too_few_gate_rows_cannot_show_harm(copy) -> None:
    rows = (copy / "card.jsonl").read_text().splitlines()
    fit = [r for r in rows if '"fit"' in r]
    (copy / "card.jsonl").write_text("\n".join([*fit, next(r for r in rows if r not in fit)]))
    from hashlib import sha256

    digest = sha256((copy / "card.jsonl").read_bytes()).hexdigest()
    card = {"kind": "texts", "file": "card.jsonl", "sha256": digest, "fit": len(fit), "gate": 1}
    change(copy, card=card)
    assert lacks(copy) == {"card.gate"}


def test_files_the_manifest_does_not_name_are_strangers(copy) -> None:
    (copy / "helper.py").write_text("")
    (copy / "more").mkdir()
    (copy / "more" / "weights.bin").write_bytes(b"")
    [target] = resolve_targets([str(copy)], home=copy, backbone=None)
    [violation] = strict_check(target)
    assert violation.found == "helper.py, more/weights.bin"


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--strict",), 1)])
def test_only_strict_minds(copy, capsys, flags, code) -> None:
    change(copy, domain="")
    with pytest.raises(SystemExit) as e:
        main(["check", str(copy), *flags])
    assert e.value.code == code
    assert ("domain: expected a sentence" in capsys.readouterr().out) == bool(code)
