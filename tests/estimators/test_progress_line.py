"""The line of progress of a fit: what it counts, and the time left."""

import io
import sys
import time

import pytest

from undulatus.estimators.progress_line import ProgressLine


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows the time it is set to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_a_progress_line_shows_step_bound_and_time(capsys, clock):
    line = ProgressLine("VFFGPC", 2, 10)
    clock[0] += 6.0
    line(1, "bound -2000")
    clock[0] += 6.0
    line(2, "bound -1234.57")
    line.close()
    written = capsys.readouterr().err.splitlines()
    # Two steps took 12 s, so eight take 48 s.
    assert written[1] == (
        "VFFGPC: step 2 of at most 10: bound -1234.57, 12 s elapsed, at most 48 s left"
    )


def test_a_progress_line_of_estimators_counts_what_is_planned_of_all(capsys, clock):
    line = ProgressLine("VFFGPC", 2, 10, 2, passes_cost=5.0)
    clock[0] += 3.0
    line(1, "validation NLL 0.5")
    clock[0] += 9.0
    line(4, "validation NLL 0.4")
    clock[0] += 18.0
    line.note_pass(3, 3, "lower bound -9")
    clock[0] += 1.0
    line.finish(0)
    line(1, "validation NLL 0.6", estimator=1)
    written = capsys.readouterr().err.splitlines()
    assert written[1].startswith(
        "VFFGPC: estimator 1 of 2, step 4 of about 10: validation NLL 0.4"
    )
    # Four of thirty took 12 s, fifteen 30 s.
    assert written[1].endswith("12 s elapsed, about 78 s left")
    assert written[2].startswith("VFFGPC: estimator 1 of 2, pass 3 over all rows: lower bound -9")
    assert written[2].endswith("30 s elapsed, about 25 s left")
    assert written[3].startswith("VFFGPC: estimator 2 of 2, step 1 of about 10")


def test_the_steps_of_an_earlier_fit_tell_nothing_of_the_time_left(capsys, clock):
    line = ProgressLine("VFFGPC", 2, 100)
    clock[0] += 3.0
    line(91, "bound -3")
    assert capsys.readouterr().err.endswith("3 s elapsed, at most 27 s left\n")


def test_a_fit_that_needs_more_steps_than_planned_says_so(capsys):
    line = ProgressLine("VFFGPC", 2, 10, passes_cost=5.0)
    line(10, "validation NLL 0.5")
    line(11, "validation NLL 0.4")
    assert "step 11 of about 11" in capsys.readouterr().err


@pytest.mark.usefixtures("clock")
def test_a_terminal_shows_one_line_that_is_rewritten(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine("GPC", 1, 3)
    line(1, "bound -3")
    line(2, "bound -2")
    line.close()
    written = terminal.getvalue()
    assert written.count("\r") == 2
    assert written.count("\n") == 1
    assert written.endswith("\n")


@pytest.mark.usefixtures("clock")
def test_verbose_2_writes_a_line_per_iteration_on_a_terminal_too(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine("GPC", 2, 3)
    line(1, "bound -3")
    line(2, "bound -2")
    line.close()
    assert terminal.getvalue().count("\n") == 2
    assert "\r" not in terminal.getvalue()


def test_verbose_0_writes_nothing_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine("GPC", 0, 3)
    line(1, "bound -3")
    line.note_pass(1, 12, "lower bound -1")
    line.close()
    assert terminal.getvalue() == ""
