"""redhost plugins and redhost trust: what code may enter, and what became of it."""

from __future__ import annotations

import json

PLUGIN = """
import redhost

@redhost.hookimpl
def redhost_composed(receipt):
    pass
"""


def install(environment, code: str = PLUGIN) -> None:
    environment.install_code("noter", {"__init__.py": code}, {"redhost.plugins": "note = noter"})


def states(call) -> dict[str, dict[str, str]]:
    return {x["dist"]: x for x in json.loads(call("plugins", "--json")[1])}


def test_a_new_plugin_is_untrusted_and_the_next_step_is_stated(environment, call) -> None:
    install(environment, "raise SystemExit('imported')")
    assert states(call)["noter"]["state"] == "untrusted"
    assert states(call)["noter"]["reason"] == "its code was not read or allowed by you"
    code, out, _ = call("plugins")
    assert code == 0 and "noter: Run 'redhost trust noter'." in out


def test_a_trusted_plugin_is_loaded_until_its_code_changes(environment, call) -> None:
    install(environment)
    assert call("trust", "noter")[:2] == (0, call("trust", "noter")[1])
    assert states(call)["noter"] == {
        "name": "note",
        "dist": "noter",
        "version": "1.0",
        "state": "loaded",
        "reason": None,
        "hint": None,
    }
    (environment.package("noter") / "__init__.py").write_text(PLUGIN + "\n# changed\n")
    assert states(call)["noter"]["state"] == "untrusted"
    assert states(call)["noter"]["reason"] == "its code has changed since you trusted it"


def test_trust_says_what_exactly_is_trusted(environment, call) -> None:
    install(environment)
    code, out, _ = call("trust", "noter")
    assert code == 0 and out.startswith("noter is trusted as sha256:")


def test_trust_is_taken_back(environment, call) -> None:
    install(environment)
    call("trust", "noter")
    assert call("trust", "noter", "--revoke")[:2] == (0, "noter is not trusted any more\n")
    assert states(call)["noter"]["state"] == "untrusted"
    code, _, err = call("trust", "notre", "--revoke")
    assert code != 0 and "unknown trusted distribution 'notre'" in err


def test_trust_is_taken_back_from_what_is_gone(environment, call) -> None:
    install(environment)
    call("trust", "noter")
    environment.uninstall("noter")
    assert call("trust", "noter", "--revoke")[0] == 0
    assert call("trust", "noter", "--revoke")[0] != 0  # there is nothing left to take back


def test_a_plugin_of_this_project_says_why_it_is_trusted(call) -> None:
    state = states(call)["redhost-onnx"]
    reason = "it lies in the source tree of this redhost"
    assert (state["state"], state["reason"]) == ("loaded", f"trusted: {reason}")
    shown = f"redhost-onnx is still trusted: {reason}. Uninstall it to end that.\n"
    assert call("trust", "redhost-onnx", "--revoke")[:2] == (0, shown)


def test_a_plugin_that_fails_is_a_line_and_exit_0(environment, call) -> None:
    install(environment, "raise RuntimeError('no voice')")
    call("trust", "noter")
    code, out, _ = call("plugins")
    assert code == 0 and "RuntimeError: no voice" in out
    assert states(call)["noter"]["state"] == "failed"


def test_an_unknown_distribution_is_suggested(environment, call) -> None:
    install(environment)
    code, _, err = call("trust", "notre")
    assert code == 2 and "unknown plugin distribution 'notre'. Did you mean 'noter'?" in err


def test_a_damaged_record_of_trust_is_one_line_and_nothing_is_trusted(
    environment, call, tmp_path
) -> None:
    install(environment)
    call("trust", "noter")
    (tmp_path / "config" / "trust.json").write_text("{")
    state = states(call)["noter"]
    assert state["state"] == "failed" and "cannot read" in state["reason"]
    assert state["hint"] == "Remove it, then trust again what should be."
