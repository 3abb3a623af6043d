"""``undulatus reproduce``: what it says, where, and its exit statuses."""

import json
import sys
from types import ModuleType

import pytest
from click.testing import CliRunner

from undulatus.cli import main
from undulatus.errors import InputError
from undulatus.paper import experiments


@pytest.fixture
def runner():
    return CliRunner()


@pytest.fixture
def asked(monkeypatch):
    """Stand-ins for the run and its report; what the run was asked for."""
    seen = {"counts": {"done": 3}}

    def reproduce(experiment, out, *, say, progress, **options):
        seen.update(options, experiment=experiment, out=out)
        say("making data")
        if "raises" in seen:
            raise seen["raises"]
        record = {"id": "high-gpc-exact-n9-run0", "status": "over time budget", "reason": "slow"}
        progress(experiments.Standing(0, 3, 7200.0))
        progress(experiments.Standing(3, 3, 0.0, record))
        (out / "run.json").write_text(json.dumps({"experiment": experiment}))
        return seen["counts"]

    report = ModuleType("undulatus.paper.report")
    report.write_report = lambda out: out / "report" / "index.html"
    monkeypatch.setitem(sys.modules, "undulatus.paper.report", report)
    monkeypatch.setattr(experiments, "reproduce", reproduce)
    return seen


@pytest.mark.parametrize("experiment", ["landmarks", "iavisa"])
def test_it_prints_what_it_wrote_on_stdout_and_progress_on_stderr(
    runner, asked, tmp_path, experiment
):
    result = runner.invoke(main, ["reproduce", experiment, "-o", str(tmp_path)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    # A claim of each experiment, and what became of all: nothing, of no trials.
    claim = {"landmarks": "VFF-GPC is more accurate than RFF-GPC.",
             "iavisa": "VFF-GPC is at its best with about five waves."}  # fmt: skip
    assert claim[experiment] in lines
    assert "holds 0, does not hold 0, not tested" in lines[-3]
    assert lines[-2:] == [
        f"trials: {tmp_path / 'trials.jsonl'} (3 done)",
        f"report: {tmp_path / 'report' / 'index.html'}",
    ]
    assert "making data" in result.stderr
    assert "over time budget: slow" in result.stderr
    assert "trials: 0 of 3, about 2.0 h left" in result.stderr
    assert asked["experiment"] == experiment
    assert asked["scale"] == "quick"
    assert asked["data"] is asked["workers"] is asked["seconds"] is asked["memory"] is None


def test_every_option_reaches_the_run(runner, asked, tmp_path):
    options = ["--scale", "paper", "--seed", "3", "--workers", "4", "--time-budget", "60"]
    more = ["--memory-budget", "1.5GB", "--data", str(tmp_path), "-o", str(tmp_path)]
    assert runner.invoke(main, ["reproduce", "landmarks", *options, *more]).exit_code == 0
    expected = {"scale": "paper", "seed": 3, "workers": 4, "seconds": 60.0}
    assert asked.items() >= (expected | {"memory": 1.5e9, "data": tmp_path}).items()


def test_ctrl_c_says_how_to_go_on_and_exits_as_shells_expect(runner, asked, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["undulatus", "reproduce", "iavisa", "-o", "an out"])
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", str(tmp_path)])
    assert result.exit_code == 0
    asked["raises"] = KeyboardInterrupt()
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", str(tmp_path)])
    assert result.exit_code == 130
    assert "undulatus reproduce iavisa -o 'an out'" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_failed_trials_are_told_after_the_report_with_exit_status_1(runner, asked, tmp_path):
    asked["counts"] = {"done": 2, "failed": 1}
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert "(2 done, 1 failed)" in result.stdout
    assert "report:" in result.stdout
    assert "1 trials failed" in result.stderr


def test_an_error_that_can_be_mended_has_no_traceback(runner, asked, tmp_path):
    asked["raises"] = InputError("holds another run")
    result = runner.invoke(main, ["reproduce", "iavisa", "-o", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds another run" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("size", ["many", "0", "1.2.3G", "-1G", "8 parsecs"])
def test_a_size_that_is_none_is_said_so(runner, asked, tmp_path, size):
    options = ["--memory-budget", size, "-o", str(tmp_path)]
    result = runner.invoke(main, ["reproduce", "iavisa", *options])
    assert result.exit_code == 1
    assert "is not a size" in result.stderr
