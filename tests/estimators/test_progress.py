"""The line that says how far a fit has come."""

import io
import sys

import pytest

from undulatus import GPC, RFFGPC, VFFGPC
from undulatus.estimators import progress
from undulatus.estimators.progress import ProgressLine

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODELS = {
    "GPC": lambda verbose: GPC(max_iter=3, tol=0.0, verbose=verbose),
    "RFFGPC": lambda verbose: RFFGPC(
        4, solver="batch", max_iter=3, tol=0.0, random_state=0, verbose=verbose
    ),
    "VFFGPC": lambda verbose: VFFGPC(
        4, solver="batch", max_iter=3, tol=0.0, random_state=0, verbose=verbose
    ),
}
each_model = pytest.mark.parametrize("name", MODELS)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows what it is told."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@each_model
def test_nothing_is_written_unless_asked_for(name, moons, capsys):
    MODELS[name](0).fit(*moons)
    assert capsys.readouterr() == ("", "")


@each_model
@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_goes_to_standard_error_a_line_an_iteration(name, moons, capsys, verbose):
    fitted = MODELS[name](verbose).fit(*moons)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == fitted.n_iter_
    assert all(line.startswith(f"{name}: step") for line in lines)


def test_the_stochastic_solver_tells_its_iterations_and_its_exact_passes(moons, capsys):
    fitted = RFFGPC(4, solver="stochastic", max_iter=2, random_state=0, verbose=2).fit(*moons)
    lines = capsys.readouterr().err.splitlines()
    steps = [line for line in lines if "RFFGPC: step" in line]
    passes = [line for line in lines if "RFFGPC: exact pass" in line]
    assert len(steps) == fitted.n_iter_ == 2
    assert all("held-back NLL" in line for line in steps)
    assert steps + passes == lines
    assert len(passes) == len(fitted.bound_history_) - 1


def test_a_line_tells_step_bound_and_time(capsys, clock):
    line = ProgressLine("VFFGPC", 2, 10)
    clock[0] += 6.0
    line(2, "bound -1234.57")
    line.close()
    told = capsys.readouterr().err
    # Two steps took 6 s, so eight take 24 s.
    assert told == (
        "VFFGPC: step 2 of at most 10, bound -1234.57, 6 s elapsed, at most 24 s left\n"
    )


def test_a_note_tells_what_is_done_after_the_last_step(capsys, clock):
    line = ProgressLine("VFFGPC", 2, 10)
    clock[0] += 6.0
    line.note("exact pass 3")
    assert capsys.readouterr().err == "VFFGPC: exact pass 3, 6 s elapsed\n"


@pytest.mark.usefixtures("clock")
def test_on_a_terminal_one_line_is_rewritten(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine("GPC", 1, 3)
    line(1, "bound -3")
    line(2, "bound -2")
    line.close()
    told = terminal.getvalue()
    assert told.count("\r") == 2
    assert told.count("\n") == 1
    assert told.endswith("\n")


@pytest.mark.usefixtures("clock")
def test_a_terminal_gets_a_line_an_iteration_when_asked_twice(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine("GPC", 2, 3)
    line(1, "bound -3")
    line(2, "bound -2")
    line.close()
    assert terminal.getvalue().count("\n") == 2
    assert "\r" not in terminal.getvalue()


def test_a_silent_line_writes_nothing_even_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    line = ProgressLine("GPC", 0, 3)
    line(1, "bound -3")
    line.note("exact pass 1")
    line.close()
    assert terminal.getvalue() == ""
