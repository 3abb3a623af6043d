"""Progress as records of logging: names of parts, shares of the whole, time left."""

import logging
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

from undulatus import GPC, RFFGPC, RegimeClassifier, SpectralPCA
from undulatus._progress import (
    FIRST_SECONDS,
    LOGGER,
    Rate,
    Work,
    duration_text,
    report_block,
    watch_thread,
    working_on,
)
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


def test_the_time_left_follows_from_the_pace_since_the_beginning(told, clock):
    with working_on("mapping") as work:
        clock[0] += 10.0
        work.report(20, 100)
    assert told.reports[0].seconds_left == pytest.approx(40.0)
    assert str(told.reports[0]) == "mapping: 20 of 100 (20 %), about 40 s left"
    assert told.messages[-1] == "mapping: done after 10 s"


def test_what_an_earlier_run_did_tells_nothing_of_the_pace(told, clock):
    with working_on("learning") as work:
        clock[0] += 10.0
        work.report(60, 100, earlier=50)
    # Ten took 10 s, so forty take 40 s.
    assert told.reports[0].seconds_left == pytest.approx(40.0)


def test_what_a_resumed_part_found_done_tells_nothing_of_the_pace(told, clock):
    with working_on("learning"):
        for index in range(2):
            with working_on(f"regime {index}", index, 2) as part:
                clock[0] += 10.0
                part.report(60, 100, earlier=50 * (index == 0))
    first, second = told.reports
    # Ten of two hundred took 10 s; then forty of the first and sixty of the second took as long.
    assert first.seconds_left == pytest.approx(140.0)
    assert second.seconds_left < 10.0


def test_the_time_left_follows_a_change_of_pace(told, clock):
    with working_on("mapping") as work:
        # The first half takes 10 s; then each hundredth takes 10 s.
        for done in range(5, 51, 5):
            clock[0] += 1.0
            work.report(done, 100)
        for done in range(51, 61):
            clock[0] += 10.0
            work.report(done, 100)
    assert told.reports[-1].seconds_left == pytest.approx(400.0)


def test_what_is_prepared_before_anything_is_counted_tells_nothing_of_the_pace(told, clock):
    with working_on("learning"), working_on("regime high", 0, 4):
        Work("learning").report(0, detail="choosing the starting lengthscale")
        clock[0] += 60.0
        line = Work("learning")
        clock[0] += 10.0
        line.report(1, 5)
    # A twentieth took 10 s.
    assert told.reports[-1].seconds_left == pytest.approx(190.0)


@given(st.lists(st.floats(0.01, 0.2), min_size=5, max_size=30), st.floats(0.5, 20.0))
def test_at_an_even_pace_the_time_left_is_right(steps, pace):
    rate, now, share = Rate(0.0, 0.0), 0.0, 0.0
    for step in steps:
        if share + step >= 1.0:
            break
        share += step
        now += step * pace * 10.0
        left = rate.seconds_left(share, now)
        if now < FIRST_SECONDS:
            assert left is None
        else:
            # Sums of steps are rounded.
            assert left == pytest.approx((1.0 - share) * pace * 10.0, rel=1e-9)


def test_nothing_is_said_of_the_time_left_at_once(told, clock):
    with working_on("mapping") as work:
        clock[0] += 1.0
        work.report(1, 100)
    assert told.reports[0].time_left == ""


def test_a_part_after_the_whole_has_no_share_of_it(told, clock):
    with working_on("mapping") as work:
        clock[0] += 10.0
        work.report(100, 100)
        with working_on("counting pixels") as part:
            clock[0] += 1.0
            part.report(1, 554)
    assert str(told.reports[1]) == "mapping: counting pixels: 1 of 554"


def test_a_thread_that_nobody_watches_may_report_its_block():
    report_block(0.5)


def test_a_watched_thread_reports_its_block():
    seen = []
    with ThreadPoolExecutor(1, initializer=watch_thread, initargs=(seen.append,)) as pool:
        pool.submit(report_block, 0.5).result()
    assert seen == [0.5]


def test_parts_share_the_whole_equally_and_are_named_in_order(told, clock):
    with working_on("learning"):
        for index, name in enumerate(["high", "night"]):
            with working_on(f"regime {name}", index, 2) as part:
                part.report(1, 4, "estimator 1", at_most=True)
                clock[0] += 4.0
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
    assert "estimator 1 of 2, step" in details
    assert "estimator 2 of 2, step" in details
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
