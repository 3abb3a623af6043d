"""The ledger of a watcher summed up by time."""

import pytest

from undulatus._files import JsonLines
from undulatus.errors import InputError
from undulatus.products.watch.report import draw_report, read_report


@pytest.fixture
def ledger(tmp_path):
    log = JsonLines(tmp_path / "watch.jsonl")
    log.append({"time": "2026-01-01T00:00:00Z", "settings": {}})
    for day in range(1, 11):
        for hour in (3, 15):
            pixels = {"mapped": 90, "missing": 10, "low_confidence": 9, "outside": 0}
            pixels["outside"] = 18 if day > 8 else 0
            record = {"time": f"2026-01-{day:02}T{hour:02}:00:00Z", "input": f"{day} {hour}"}
            record |= {"result": "mapped", "model": "ab" if day < 5 else "cd", "pixels": pixels}
            log.append(record | {"latency": float(hour)})
    log.append({"time": "2026-01-10T04:00:00Z", "input": "x", "result": "set aside"})
    log.append({"time": "2026-01-10T04:00:00Z", "input": "y", "result": "expired"})
    return tmp_path


def test_days_have_counts_shares_and_latencies(ledger):
    report = read_report(ledger)
    assert len(report.periods) == 10
    last = report.periods[-1]
    assert (last.period, last.mapped, last.set_aside, last.pixels) == ("2026-01-10", 2, 1, 200)
    assert (last.missing, last.low_confidence, last.out_of_domain) == (0.1, 0.1, 0.2)
    assert (last.latency_median, last.latency_max, last.models) == (9.0, 15.0, ["cd"])
    # 2 of the last 7 days have a share of 0.2, and none of those before.
    assert report.drift == (
        "the last 7 days: out of domain 5.71%, 0.00% before; low confidence 10.00%, 10.00% before"
    )
    assert report.rows()[-1]["out of domain %"] == "20.00"


@pytest.mark.parametrize(("by", "count"), [("hour", 21), ("day", 10), ("month", 1)])
def test_periods_are_hours_days_or_months(ledger, by, count):
    report = read_report(ledger, by)
    assert len(report.periods) == count
    assert sum(each.mapped for each in report.periods) == 20


def test_a_report_is_drawn_over_time(ledger):
    for name in ("drift.svg", "drift.png"):
        draw_report(read_report(ledger), ledger / name)
    text = (ledger / "drift.svg").read_text()
    assert "<svg" in text
    assert (ledger / "drift.png").read_bytes().startswith(b"\x89PNG")


def test_there_is_no_report_where_nothing_watches(tmp_path):
    with pytest.raises(InputError, match=r"watch\.jsonl does not exist"):
        read_report(tmp_path)
