"""The command line as a whole: exit statuses, errors without a traceback, help."""

import subprocess
import sys

import click
import pytest

from undulatus.cli import main
from undulatus.errors import ModelFileError


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "broken.undulatus"
    path.write_bytes(b"not a model")
    return path


def test_a_users_error_is_printed_without_a_traceback(runner, broken):
    result = runner.invoke(main, ["info", str(broken)])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"undulatus info: {broken}: ")
    assert "Traceback" not in result.output


def test_debug_raises_the_error(runner, broken):
    result = runner.invoke(main, ["--debug", "info", str(broken)])
    assert result.exit_code == 1
    assert isinstance(result.exception, ModelFileError)


@pytest.mark.parametrize(("options", "shown"), [([], False), (["--debug"], True)])
def test_a_process_ends_with_1_and_shows_a_traceback_only_with_debug(broken, options, shown):
    command = [sys.executable, "-m", "undulatus.cli", *options, "info", str(broken)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stdout == ""
    assert ("Traceback" in run.stderr) is shown
    assert str(broken) in run.stderr


def test_our_own_bugs_show_their_traceback(runner, broken, monkeypatch):
    def fail(path):
        raise ZeroDivisionError

    monkeypatch.setattr("undulatus.storage.load_model", fail)
    result = runner.invoke(main, ["info", str(broken)])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "arguments",
    [
        ["info"],
        ["info", "no-such-file"],
        ["fit", "no.zarr", "-o", "m"],
        ["simulate", "landmarks"],
        ["paint"],
        ["demo", "--size", "3"],
        ["--loud", "demo"],
    ],
    ids=" ".join,
)
def test_bad_usage_ends_with_2(runner, arguments):
    result = runner.invoke(main, arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr
    assert "Traceback" not in result.output


def commands(command=main, path=()):
    """Give every command and group with the words that call it."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(*each, id=" ".join(each[0])) for each in commands()]
)
def test_every_command_and_option_has_a_help_text(runner, path, command):
    result = runner.invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert command.help.splitlines()[0].endswith(".")
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert option.opts[0] in result.stdout


def test_help_lists_the_commands_in_the_order_they_were_added(runner):
    text = runner.invoke(main, ["--help"]).stdout.partition("Commands:")[2]
    assert [line.split()[0] for line in text.splitlines() if line] == list(main.commands)
    # Alphabetical order, click's own, would begin with browse.
    assert next(iter(main.commands)) == "demo"


def test_no_line_of_the_list_of_commands_is_cut(runner):
    assert "..." not in runner.invoke(main, ["--help"]).stdout.partition("Commands:")[2]


def test_the_version_is_printed(runner):
    result = runner.invoke(main, ["--version"])
    assert result.exit_code == 0
    assert "0." in result.stdout
