"""`redhost lab robust --game`: closed forms through the command, and games that are none."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from red_lab.robust import robust

import redhost

CHANNEL = [[0.89, 0.11], [0.11, 0.89]]


def call(path: Path, game: object, *flags: str) -> str:
    path.write_text(json.dumps(game))
    done = CliRunner().invoke(robust, ["--game", str(path), *flags], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_the_binary_symmetric_channel_has_its_capacity(tmp_path) -> None:
    game = {"domains": CHANNEL, "experts": CHANNEL}
    solution = json.loads(call(tmp_path / "game.json", game, "--json"))
    entropy = -(0.11 * math.log(0.11) + 0.89 * math.log(0.89))
    assert solution["value"] == pytest.approx(math.log(2) - entropy, abs=1e-7)
    assert solution["lambda"] == pytest.approx([0.5, 0.5], abs=1e-6)
    assert solution["lower"] <= solution["value"] <= solution["upper"]
    assert "certificate 0.3466" in call(tmp_path / "game.json", game)


@pytest.mark.parametrize(
    "rows", [[[0.5, 0.6], [0.5, 0.5]], [[-0.1, 1.1], [0.5, 0.5]], [[1.0], [0.5, 0.5]]]
)
def test_rows_that_are_no_distributions_are_wrong_usage(tmp_path, rows) -> None:
    path = tmp_path / "game.json"
    path.write_text(json.dumps({"domains": rows, "experts": CHANNEL}))
    with pytest.raises(redhost.UsageError, match="domains"):
        CliRunner().invoke(robust, ["--game", str(path)], catch_exceptions=False)


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path) -> None:
    with pytest.raises(redhost.UsageError, match="cannot be read"):
        CliRunner().invoke(robust, ["--game", str(tmp_path / "no")], catch_exceptions=False)
