"""Two synthetic days, a few synthetic spectra, and a model of each, made with the commands."""

import warnings

import pytest
from click.testing import CliRunner

from undulatus.cli import main


@pytest.fixture
def runner():
    return CliRunner()


@pytest.fixture
def every_line(monkeypatch):
    """Print every line of progress, not one every few seconds."""
    monkeypatch.setattr("undulatus.cli.session.LEAST_SECONDS", 0.0)
    monkeypatch.setattr("undulatus.cli.session.MOST_SECONDS", 0.0)


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    """Two synthetic days in a file."""
    path = tmp_path_factory.mktemp("scenes") / "year.zarr"
    result = CliRunner().invoke(main, ["simulate", "landmarks", "--days", "2", "-o", str(path)])
    assert result.exit_code == 0, result.output
    assert str(path.resolve()) in result.stdout
    assert "192 acquisitions" in result.stdout
    return path


@pytest.fixture(scope="module")
def clouds_model(year):
    path = year.with_name("clouds.undulatus")
    command = ["fit", str(year), "--method", "rff", "-D", "5", "--n-estimators", "1"]
    command += ["--holdout", "0.5", "-o", str(path)]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert str(path.resolve()) in result.stdout
    assert "training pixels" in result.stderr
    return path


@pytest.fixture(scope="module")
def spectra(tmp_path_factory):
    path = tmp_path_factory.mktemp("spectra") / "iasi.zarr"
    made = CliRunner().invoke(main, ["simulate", "sounder", "--samples", "500", "-o", str(path)])
    assert made.exit_code == 0, made.output
    return path


@pytest.fixture(scope="module")
def sounder_model(spectra):
    path = spectra.with_name("sounder.undulatus")
    command = ["fit", str(spectra), "-o", str(path), "--components", "15", "--method", "rff"]
    command += ["--n-estimators", "1"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "cells of strata held out" in result.stdout
    assert "learning from" in result.stderr
    return path
