"""What a fault is, what users must get when it strikes, and the workshop it is made in.

A fault is one entry of the tables beside this module: its name, a function that makes it and does
what a user would do then, and the outcome. ``make test`` tries all of them.
"""

import os
import re
import shutil
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from click.testing import CliRunner

from undulatus import RFFGPC, VFFGPC, load_model
from undulatus.cli import main
from undulatus.estimators.base import ProgressLine
from undulatus.products import map_scene
from undulatus.products.predict import MISSING

BANDS = ("B02", "B03", "B08")


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    name: str
    """What happens, in words."""
    make: Callable[["Workshop"], Any]
    """Makes it, does what a user would do then, and returns what the user gets."""
    outcome: Callable[["Workshop", Callable[[], Any]], None]
    """Checks what the user gets, from a function that calls ``make``."""


# Outcomes


def refused(kind, words):
    """An error of this kind, whose message matches ``words``."""

    def check(shop, trial):
        with pytest.raises(kind) as caught:
            trial()
        assert re.search(words, str(caught.value), re.DOTALL), f"it says: {caught.value}"

    return check


def exits(code, words, keeps=None):
    """A command that ends with this status and says ``words``.

    If it failed it leaves no file, but for one whose path holds ``keeps``, and loses none.
    """

    def check(shop, trial):
        result = trial()
        assert result.exit_code == code, (result.output, result.exception)
        assert re.search(words, result.output, re.DOTALL), f"it says: {result.output}"
        assert "Traceback" not in result.output
        left = [name for name in shop.listing() if keeps is None or keeps not in name]
        assert not code or left == shop.before, "files were left, or lost"

    return check


def gives(expected):
    """This value, or one for which this function is true."""

    def check(shop, trial):
        found = trial()
        assert expected(found) if callable(expected) else found == expected, f"it gave {found!r}"

    return check


def same():
    """Two results that are the same to the bit: with the fault, and without."""

    def check(shop, trial):
        with_fault, without = trial()
        if isinstance(with_fault, xr.Dataset):
            xr.testing.assert_identical(with_fault.drop_attrs(), without.drop_attrs())
        elif isinstance(with_fault, bytes):
            assert with_fault == without
        else:
            np.testing.assert_array_equal(with_fault, without)

    return check


def missing(pixels):
    """A map in which these pixels (rows, columns) are missing, and no others."""

    def check(shop, trial):
        flagged = (trial()["quality_flag"].values & MISSING) > 0
        assert set(map(tuple, np.argwhere(flagged).tolist())) == set(pixels)

    return check


def sound():
    """Probabilities that are finite, lie in [0, 1] and sum to one."""

    def check(shop, trial):
        probabilities = trial()
        assert np.isfinite(probabilities).all()
        assert ((probabilities >= 0.0) & (probabilities <= 1.0)).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)

    return check


# What faults are made from


class Workshop:
    """Small sound data and models to spoil, and a folder of its own, which is the current one."""

    def __init__(self, store: Path, folder: Path) -> None:
        self.store = store
        """Where files lie that all faults share."""
        self.folder = folder
        rng = np.random.default_rng(0)
        self.X = rng.normal(size=(60, 3))
        self.y = (self.X[:, 0] + 0.5 * rng.normal(size=60) > 0).astype(int)
        self.table = pd.DataFrame(self.X, columns=BANDS)
        self.image = xr.DataArray(
            rng.normal(size=(3, 8, 10)),
            dims=("band", "y", "x"),
            coords={"band": list(BANDS), "y": 80.0 - 10.0 * np.arange(8), "x": np.arange(10.0)},
        )
        self.before: list[str] = []

    # Python

    def classifier(self, **options):
        """Return a small classifier that learns its waves."""
        few = {"n_frequencies": 3, "n_estimators": 1, "max_iter": 3, "random_state": 0}
        return VFFGPC(**few | options)

    def fit(self, X=None, y=None, model=None, **fit):
        """Fit a small classifier to rows and labels, sound ones unless others are given."""
        model = RFFGPC(3, n_estimators=1, random_state=0) if model is None else model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return model.fit(self.X if X is None else X, self.y if y is None else y, **fit)

    def probabilities(self, X=None, y=None, **fit):
        """Return the probabilities of the rows that were learned from."""
        return self.fit(X, y, **fit).predict_proba(self.X if X is None else X)

    def model(self):
        """Return a model of the named bands."""
        return self.fit(self.table)

    def map(self, image=None, **options):
        """Map an image, the sound one unless another is given."""
        return map_scene(self.model(), self.image if image is None else image, **options)

    def spoilt(self, *pixels, value=np.nan):
        """Return the image with a value in the first band of some pixels (row, column)."""
        image = self.image.copy(deep=True)
        for row, column in pixels:
            image[0, row, column] = value
        return image

    @contextmanager
    def interrupt(self, step):
        """Press Ctrl-C when a fit reports so many steps."""
        report = ProgressLine.__call__

        def report_and_interrupt(line, done, *rest):
            report(line, done, *rest)
            if done == step:
                raise KeyboardInterrupt

        ProgressLine.__call__ = report_and_interrupt
        try:
            yield
        finally:
            ProgressLine.__call__ = report

    # Files and commands

    def copy(self, *names):
        """Copy files into the folder, and return the path of the last one."""
        target = self.folder
        for name in names:
            source, target = self.store / name, self.folder / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
        return target

    def load(self, name):
        """Return a model in a file."""
        return load_model(name)

    def run(self, *arguments):
        """Run a command in the folder; what it says is in ``output``."""
        self.before = self.listing()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # With colours, or click would take away what commands a terminal.
            return CliRunner().invoke(main, [str(word) for word in arguments], color=True)

    def listing(self):
        """Return the names of all files in the folder, hidden ones too."""
        return sorted(
            os.path.join(root, name)
            for root, folders, files in os.walk(self.folder)
            for name in (*files, *folders)
        )
