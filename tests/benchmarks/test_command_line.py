"""The command line finds each registered command and hands it its own options."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import types
from pathlib import Path

import pytest

from benchmarks import __main__ as command_line


def test_every_registered_module_exists() -> None:
    for module, summary in command_line.COMMANDS.values():
        assert importlib.util.find_spec(module) is not None, module
        assert summary


def test_command_gets_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []

    def run(arguments: argparse.Namespace) -> int:
        seen.append(arguments)
        return 3

    module = types.SimpleNamespace(
        add_arguments=lambda parser: parser.add_argument("--steps", type=int, default=5), main=run
    )
    monkeypatch.setitem(sys.modules, "made_up_command", module)
    monkeypatch.setitem(command_line.COMMANDS, "made-up", ("made_up_command", "a test"))
    assert command_line.main(["made-up", "--steps", "7"]) == 3
    assert seen[0].steps == 7


def test_unknown_command_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["no-such-command"])
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    for name in command_line.COMMANDS:
        assert name in message


@pytest.mark.parametrize("command", ["synthetic", "images", "forecasting", "kernels", "score-vi"])
@pytest.mark.parametrize("seeds", ["0", "-2", "1.5", "many"])
def test_a_number_of_seeds_below_one_is_refused(
    command: str, seeds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main([command, "--seeds", seeds])
    assert stopped.value.code == 2
    assert "expected a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["bnn", "--sets", "yacht"], []),
        (["logistic", "--sets", "a9a"], []),
        (["regression", "--sets", "yacht"], []),
        (["forecasting"], ["exchange_rate.npz", "The file holds X, (n, channels) in time order"]),
    ],
)
def test_missing_data_say_what_to_do(
    options: list[str],
    told: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PPL_EXT_DATA", raising=False)
    assert command_line.main([*options, "--out", str(tmp_path / "out")]) == 1
    message = "".join(capsys.readouterr())
    assert all(word in message for word in ["PPL_EXT_DATA", *told])
    assert options[0] != "forecasting" or not (tmp_path / "out").exists()
