"""What every command says and where: --quiet, --log, the bar, signals, exit statuses."""

import errno
import logging
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import click
import pytest
from sklearn.exceptions import ConvergenceWarning

from undulatus._progress import LOGGER
from undulatus.cli import Commands
from undulatus.cli.console import command_line, progress_bar, recipe, recorded_command, say
from undulatus.cli.session import LogFile, Pace, Session
from undulatus.errors import InputError

GOLDEN_MODEL = Path(__file__).parents[1] / "golden/0.2.0/rff-batch.undulatus"

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (?P<level>[A-Z]+) (?P<pid>\d+) (?P<command>\S+) "
    r"(?P<message>.*)"
)


def parsed(log):
    """Return level, command and message of each record in a log; other lines are indented."""
    lines = log.read_text().splitlines()
    found = [LINE.fullmatch(line) for line in lines if not line.startswith("    ")]
    assert all(found), lines
    assert {match["pid"] for match in found} == {str(os.getpid())}
    return [(match["level"], match["command"], match["message"]) for match in found]


@click.group(cls=Commands)
def tool():
    """Commands to try."""


@click.command()
@click.option("--how", default="well", help="How it goes.")
@click.option("-o", "--output", help="Not used.")
@click.option("--resume", is_flag=True, help="Not used.")
def work(how, **options):
    """Say some things, and end in some way."""
    say("began")
    with progress_bar("working") as progress:
        for step in range(1, 4):
            progress(step, 3)
            if how == "interrupted":
                raise KeyboardInterrupt
    if how == "warned":
        warnings.warn("it is not converged", ConvergenceWarning, stacklevel=1)
        warnings.warn("it will be another one day", FutureWarning, stacklevel=1)
    if how == "wrong":
        raise InputError("there is something wrong.\nMend it.")
    if how == "bug":
        raise ZeroDivisionError("our own")
    if how == "usage":
        raise click.UsageError("use it otherwise.")
    click.echo(f"result of {command_line()}: {recipe()}")


tool.add_command(work)

pytestmark = pytest.mark.filterwarnings("default::FutureWarning", "default::UserWarning")


# Standard error


def test_a_warning_does_not_end_a_command_even_if_the_environment_makes_it_an_error(
    runner, monkeypatch
):
    warnings.simplefilter("error")
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    result = runner.invoke(tool, ["work", "--how", "warned"])
    assert result.exit_code == 0
    assert "warning: it will be another one day" in result.stderr


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_leaves_the_result_alone(runner, place):
    arguments = ["--quiet", "work"] if place == "before" else ["work", "--quiet"]
    result = runner.invoke(tool, arguments)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith("result of")


@pytest.mark.usefixtures("every_line")
def test_progress_is_lines_where_there_is_no_terminal(runner):
    result = runner.invoke(tool, ["work"])
    lines = result.stderr.splitlines()
    assert lines[0] == "began"
    assert lines[1] == "working: 1 of 3 (33 %)"
    assert lines[-1] == "working: 3 of 3 (100 %)"
    assert len(lines) == 4


def test_lines_of_progress_are_seconds_apart_and_a_minute_after_an_hour(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    pace, due = Pace(), []
    for second in range(2 * 3600):
        now[0] = float(second)
        if pace.is_due():
            due.append(second)
    assert due[:3] == [5, 10, 15]
    assert due[-1] - due[-2] == 60
    # Twelve a minute for five minutes, then fewer and fewer, and sixty in the second hour.
    assert 150 < len(due) < 300


def test_a_warning_is_one_line_and_quiet_keeps_those_that_concern_results(runner):
    loud = runner.invoke(tool, ["work", "--how", "warned"]).stderr
    assert "undulatus work: warning: it is not converged\n" in loud
    assert "it will be another" in loud
    quiet = runner.invoke(tool, ["work", "--how", "warned", "--quiet"]).stderr
    assert quiet == "undulatus work: warning: it is not converged\n"


def test_quiet_keeps_errors(runner):
    result = runner.invoke(tool, ["work", "--quiet", "--how", "wrong"])
    assert result.exit_code == 1
    assert result.stderr == "undulatus work: there is something wrong.\nMend it.\n"


def test_work_goes_on_when_nobody_can_read_standard_error(runner, monkeypatch):
    echo = click.echo

    def fail(message=None, err=False, **options):
        if err:
            raise OSError(errno.ENOSPC, "No space left on device")
        echo(message, **options)

    monkeypatch.setattr(click, "echo", fail)
    result = runner.invoke(tool, ["work", "--how", "warned"])
    assert result.exit_code == 0
    assert "result of" in result.stdout


def test_nothing_stays_behind_a_command(runner, tmp_path):
    before = (LOGGER.handlers[:], LOGGER.level, warnings.showwarning)
    handler = signal.getsignal(signal.SIGTERM)
    for how in ("well", "wrong", "bug", "usage", "interrupted"):
        runner.invoke(tool, ["work", "--how", how, "--log", str(tmp_path / "log")])
    assert (LOGGER.handlers, LOGGER.level, warnings.showwarning) == before
    assert signal.getsignal(signal.SIGTERM) is handler


# Logs


@pytest.mark.usefixtures("every_line")
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_log_has_the_start_the_progress_and_the_end(runner, tmp_path, place):
    log = tmp_path / "a log"
    options = ["--log", str(log), "--quiet"]
    arguments = [*options, "work"] if place == "before" else ["work", *options]
    result = runner.invoke(tool, arguments)
    assert result.exit_code == 0
    assert result.stderr == ""
    start, began, *progress, over, end = parsed(log)
    assert start[0] == "INFO"
    assert re.fullmatch(r"start: undulatus \S+: undulatus .*work.* \(in .*\)", start[2])
    assert f"--log '{log}'" in start[2]
    assert began == ("INFO", "work", "began")
    assert progress[0] == ("PROGRESS", "work", "working: 1 of 3 (33 %)")
    assert over == ("PROGRESS", "work", "working: done after 0 s")
    assert end[0] == "INFO"
    assert re.fullmatch(r"end: exit status 0 after \d+\.\d s", end[2])


@pytest.mark.parametrize(
    ("how", "status", "level", "said", "traceback"),
    [
        ("wrong", 1, "ERROR", "there is something wrong.", True),
        ("bug", 1, "ERROR", "our own", True),
        ("usage", 2, "ERROR", "use it otherwise.", False),
        ("interrupted", 130, "ERROR", "interrupted.", True),
        ("warned", 0, "WARNING", "ConvergenceWarning: it is not converged", False),
    ],
)
def test_a_log_says_how_a_command_ended(runner, tmp_path, how, status, level, said, traceback):
    log = tmp_path / "log"
    result = runner.invoke(tool, ["work", "--how", how, "--log", str(log)])
    assert result.exit_code == status
    records = parsed(log)
    assert any(record[0] == level and record[2].startswith(said) for record in records)
    assert records[-1][2].startswith(f"end: exit status {status} after")
    assert ("\n    Traceback (most recent call last):" in log.read_text()) is traceback
    assert "Traceback" not in result.stderr


def test_a_log_is_appended_to_and_no_line_commands_a_terminal(runner, tmp_path):
    log = tmp_path / "log"
    for _ in range(2):
        runner.invoke(tool, ["work", "--how", "a\x1b[2J\nb", "--log", str(log)])
    records = parsed(log)
    assert [record[2].split(":")[0] for record in records].count("start") == 2
    assert "\x1b" not in log.read_text()


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("name", [".", "no/such/folder/log", "pipe", "a" * 300])
def test_a_log_that_cannot_be_opened_is_bad_usage_before_the_work(runner, tmp_path, place, name):
    os.mkfifo(tmp_path / "pipe")
    options = ["--log", str(tmp_path / name)]
    result = runner.invoke(tool, [*options, "work"] if place == "before" else ["work", *options])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "began" not in result.stderr
    assert "--log" in result.stderr or "cannot be opened" in result.stderr


def test_a_full_disk_under_the_log_is_said_once_and_work_goes_on(runner):
    result = runner.invoke(tool, ["work", "--log", "/dev/full"])
    assert result.exit_code == 0
    assert "result of" in result.stdout
    said = "warning: the log /dev/full cannot be written: No space left on device. Work goes on."
    assert result.stderr.count(said) == 1


def test_lines_of_several_writers_are_whole(tmp_path):
    # Far longer than the buffers of streams.
    words = "x" * 20_000

    def write(letter):
        log = LogFile(tmp_path / "log", Session([letter]))
        for _ in range(50):
            log.handle(logging.makeLogRecord({"msg": letter * 20_000, "levelname": "INFO"}))
        log.close()

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    messages = [record[2] for record in parsed(tmp_path / "log")]
    assert sorted(messages) == [words] * 50 + [words.replace("x", "y")] * 50


# What products remember


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("map /home/me/m.undulatus a/b.tif -o /tmp/c.tif", "map m.undulatus a/b.tif -o c.tif"),
        ("fit --label=/home/me/l.gpkg / --bands=a", "fit --label=l.gpkg / --bands=a"),
    ],
)
def test_what_is_made_does_not_remember_the_folders_of_whoever_made_it(typed, kept):
    with click.Context(tool) as context:
        context.meta["undulatus.session"] = Session(typed.split())
        assert recorded_command() == f"undulatus {kept}"
        assert command_line() == f"undulatus {typed}"


def test_a_recipe_leaves_out_what_does_not_change_the_result(runner):
    arguments = ["--quiet", "work", "--how", "an option", "-o", "x", "--resume", "--log=/dev/null"]
    result = runner.invoke(tool, arguments)
    assert result.stdout == (
        "result of undulatus --quiet work --how 'an option' -o x --resume --log=/dev/null: "
        "undulatus work --how 'an option'\n"
    )


# Terminals and signals

AT_A_TERMINAL = """
import sys, time
import click
from undulatus.cli import main
from undulatus.cli.console import say
from undulatus._progress import working_on

@click.command()
def learn():
    "Learn."
    with working_on("learning"):
        for index, name in enumerate(["high", "night"]):
            with working_on(f"regime {name} ({index + 1} of 2)", index, 2) as part:
                for step in range(5):
                    part.report(step, 5)
                    time.sleep(0.05)
                say(f"{name} is done")
                {then}
    click.echo("a result")

main.add_command(learn)
main(["learn"])
"""


def run_at_a_terminal(code, number=None):
    """Run code with standard error at a terminal; return status, output and what was shown."""
    ours, theirs = pty.openpty()
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, text=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            shown += os.read(ours, 4096)
        except OSError:
            break  # The other end is closed.
        if number is not None and b"the end" in shown:
            run.send_signal(number)
            number = None
    os.close(ours)
    out = run.communicate()[0]
    return run.returncode, out, shown.decode()


def last_screen(shown):
    """Return the lines that stay on the terminal: those that are not erased."""
    lines = [""]
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r\n|\r|\n|[^\x1b\r\n]+", shown):
        if part in ("\n", "\r\n"):
            lines.append("")
        elif part == "\x1b[2K":
            lines[-1] = ""
        elif part == "\x1b[1A":
            lines.pop()
        elif not part.startswith("\x1b") and part != "\r":
            lines[-1] += part
    return [line.rstrip() for line in lines if line.strip()]


def test_a_terminal_has_one_bar_that_names_the_regime_and_goes_away():
    status, out, shown = run_at_a_terminal(AT_A_TERMINAL.replace("{then}", "pass"))
    assert status == 0
    assert out == "a result\n"
    for words in ("learning: regime high (1 of 2)", "learning: regime night (2 of 2)", "━"):
        assert words in shown
    assert last_screen(shown) == ["high is done", "night is done"]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_signals_end_a_command_cleanly_after_its_bar(number, status):
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    # The bar is drawn by a thread of its own: it is read while the command sleeps.
    wait = "part.report(4, 5, 'waiting for the end'); time.sleep(60)"
    code += AT_A_TERMINAL.replace("{then}", wait)
    found, out, shown = run_at_a_terminal(code, number)
    assert found == status
    assert out == ""
    assert last_screen(shown) == ["high is done", "undulatus learn: interrupted."]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_that_python_drops_is_heard_all_the_same(number, status):
    # Python prints what is raised in __del__, and goes on.
    code = f"""
import os, signal, time
import click
from undulatus.cli import Commands

signal.signal(signal.SIGINT, signal.default_int_handler)

class Dropping:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
        time.sleep(10)

@click.group(cls=Commands)
def tool():
    pass

@tool.command()
def work():
    for _ in range(2):
        try:
            Dropping()
            time.sleep(10)
        except KeyboardInterrupt:
            print("heard", flush=True)
            raise

tool(["work"])
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == status
    assert run.stdout == "heard\n"
    assert run.stderr.splitlines()[-1].endswith("work: interrupted.")
    assert "Traceback" not in run.stderr


def test_nothing_is_said_after_the_last_line_of_an_interrupted_command():
    # As of Zarr, whose reads go on in a loop of their own.
    code = """
import asyncio
import click
from undulatus.cli import Commands

class Complaining:
    def __del__(self):
        raise RuntimeError("Event loop is closed")

kept = []

@click.group(cls=Commands)
def tool():
    pass

@tool.command()
def work():
    loop = asyncio.new_event_loop()
    kept.extend([Complaining(), loop, loop.create_task(asyncio.sleep(1.0))])
    loop.call_soon(loop.stop)
    loop.run_forever()
    raise KeyboardInterrupt

tool(["work"])
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert run.returncode == 130
    assert run.stderr.splitlines() == ["undulatus work: interrupted."]


def test_a_status_is_kept_though_code_in_a_string_was_interrupted(tmp_path):
    # As Ctrl-C or SIGTERM does while dataclasses are made.
    (tmp_path / "stopped.py").write_text(
        """
import runpy, sys
import undulatus.cli

def main():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        sys.exit(143)

undulatus.cli.main = main
runpy.run_module("undulatus.cli", run_name="__main__")
"""
    )
    command = [sys.executable, "-m", "stopped"]
    assert subprocess.run(command, cwd=tmp_path, check=False).returncode == 143


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_command_runs_with_a_closed_standard_stream(tmp_path, closed):
    log = tmp_path / "log"
    code = "import os; assert os.fstat(0) and os.fstat(1) and os.fstat(2)"
    run = subprocess.run(
        [sys.executable, "-c", AT_A_TERMINAL.replace("{then}", code).replace(
            'main(["learn"])', f"main(['learn', '--log', {str(log)!r}])"
        )],
        preexec_fn=lambda: os.close(closed),
        check=False,
        timeout=60,
    )  # fmt: skip
    assert run.returncode == 0
    # Nothing else was written to the log by its number.
    assert all("learn" in line for line in log.read_text().splitlines())


def test_sigterm_is_left_alone_by_commands_in_other_threads_and_where_it_has_a_handler(runner):
    handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        mine = signal.getsignal(signal.SIGTERM)
        assert runner.invoke(tool, ["work"]).exit_code == 0
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, handler)
    statuses = []
    thread = threading.Thread(
        target=lambda: statuses.append(runner.invoke(tool, ["work"]).exit_code)
    )
    thread.start()
    thread.join()
    assert statuses == [0]


def test_a_log_that_is_renamed_is_begun_again(tmp_path):
    log = tmp_path / "log"
    handler = LogFile(log, Session([]))
    try:
        for _ in range(2):
            handler.handle(logging.makeLogRecord({"msg": "here", "levelno": logging.INFO}))
            if not (tmp_path / "log.1").exists():
                log.rename(tmp_path / "log.1")
    finally:
        handler.close()
    assert [path.read_text().count("here") for path in (log, tmp_path / "log.1")] == [1, 1]


@pytest.mark.parametrize("words", [["--log", "no/such/folder/log"], []])
def test_neither_a_full_disk_nor_a_lost_log_ends_in_a_traceback(tmp_path, words):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "undulatus.cli", "info", GOLDEN_MODEL, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            check=False,
        )
    assert result.returncode == (2 if words else 1)
    assert "cannot be" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr
