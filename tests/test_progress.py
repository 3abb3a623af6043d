"""Progress as records of logging: names of parts, shares of the whole, time left."""

import logging
import time

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from undulatus import GPC, RFFGPC, RegimeClassifier, SpectralPCA
from undulatus._progress import LOGGER, Work, duration_text, working_on
from undulatus.regimes import Regime


class Kept(logging.Handler):
    """Keeps the progress of records, and their messages."""

    def __init__(self):
        super().__init__()
        self.reports, self.messages = [], []

    def emit(self, record):
        self.messages.append(record.getMessage())
        if record.progress is not None:
            self.reports.append(record.progress)


@pytest.fixture
def told():
    handler, level = Kept(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.DEBUG)
    yield handler
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_from_the_pace_since_the_first_report(told, clock):
    with working_on("mapping") as work:
        # As if half had been done before: it tells nothing of the pace.
        work.report(50, 100)
        clock[0] += 10.0
        work.report(60, 100)
    first, second = told.reports
    assert first.seconds_left is None
    assert second.seconds_left == pytest.approx(40.0)
    assert str(second) == "mapping: 60 of 100 (60 %), about 40 s left"
    assert told.messages[-1] == "mapping: done after 10 s"


def test_parts_share_the_whole_equally_and_are_named_in_order(told, clock):
    with working_on("learning"):
        for index, name in enumerate(["high", "night"]):
            with working_on(f"regime {name}", index, 2) as part:
                part.report(1, 4, "member 1", at_most=True)
                clock[0] += 1.0
    assert [report.what for report in told.reports] == [
        "learning: regime high",
        "learning: regime night",
    ]
    assert [report.share for report in told.reports] == [0.125, 0.625]
    # The other regime may take longer.
    assert told.reports[1].time_left.startswith("about")
    # Only the whole is said to be over.
    assert len(told.messages) == 3


def test_a_part_with_the_name_of_its_task_is_not_named_twice(told):
    with working_on("learning"):
        Work("learning").report(1, 2)
    assert told.reports[0].what == "learning"


def test_work_of_unknown_size_has_no_share_and_no_time(told):
    with working_on("reading") as work:
        work.report(1200)
    assert str(told.reports[0]) == "reading: 1,200"


def test_nothing_is_made_up_when_nobody_listens(monkeypatch):
    monkeypatch.setattr("undulatus._progress.Progress", None)
    with working_on("mapping") as work:
        work.report(1, 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.4, "3 s"), (89.0, "89 s"), (600.0, "10 min"), (7200.0, "2.0 h"), (3 * 86400, "3.0 days")],
)
def test_durations_are_in_units_that_suit_them(seconds, text):
    assert duration_text(seconds) == text


def test_a_fit_names_its_regime_its_member_and_its_step(told, moons):
    X, y = moons
    table = {"a": X[:, 0], "b": X[:, 1], "sun": np.arange(120) % 2 * 10.0}
    regimes = (Regime("low", 0.0, 5.0, ("a", "b")), Regime("high", 5.0, 20.0, ("a", "b")))
    estimator = RFFGPC(4, n_estimators=2, random_state=0)
    RegimeClassifier(estimator, regimes, by="sun").fit(table, y)
    places = [report.what for report in told.reports]
    assert list(dict.fromkeys(places)) == [
        "learning: regime low (1 of 2)",
        "learning: regime high (2 of 2)",
    ]
    details = " ".join(report.detail for report in told.reports)
    assert "member 1: " in details
    assert "member 2: " in details
    assert all("step" in report.detail or "pass" in report.detail for report in told.reports)
    shares = [report.share for report in told.reports]
    assert shares == sorted(shares)
    assert told.messages[-1].startswith("learning: done")


def test_an_exact_fit_names_its_class(told, moons):
    X, _ = moons
    GPC().fit(X[:30], np.arange(30) % 3)
    assert list(dict.fromkeys(report.what for report in told.reports)) == [
        f"learning: class {number} of 3" for number in (1, 2, 3)
    ]


def test_principal_components_are_reported_while_rows_are_read_to_learn_from(told):
    rows = np.random.default_rng(0).normal(size=(60, 5))
    make_pipeline(SpectralPCA(2)).fit_transform(rows)
    assert [report.what for report in told.reports] == [
        "principal components: covariance",
        "principal components: reducing",
    ]
    told.reports.clear()
    # Blocks of a map are reduced in many threads: the map itself is reported.
    SpectralPCA(2).fit(rows).transform(rows)
    assert {report.what for report in told.reports} == {"principal components: covariance"}
