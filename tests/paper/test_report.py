"""The report of a run: whole, self-contained, and safe whatever users call their data."""

import json
import re
from html.parser import HTMLParser

import pytest

from undulatus.paper.claims import judge_claims
from undulatus.paper.report import means_tables, not_done_table, render, write_report
from undulatus.paper.runs import make_run, read_run

VOID = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Elements with their attributes, and text; checks that elements are nested."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.text = [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def page_of(facts, records):
    run = make_run(facts, records)
    return Page(render(run, judge_claims(run), [], "out"))


@pytest.fixture
def out(made_up, tmp_path):
    """A small run in its folder; its data have names that are not safe in HTML."""

    def change(record):
        if record["n"] == 15_000:
            record |= {"status": "over time budget", "reason": "9 h > 600 s & <b>more</b>"}
        return record if record["regime"] == "high" else None

    data = {"source": "<script>alert(1)</script>", "synthetic": True, "path": 'a "b" <i>.nc'}
    facts, records = made_up("landmarks", change, data=data, runs=2)
    folder = tmp_path / "out"
    folder.mkdir()
    facts.write(folder)
    (folder / "trials.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return folder


def test_a_page_with_its_figures_replaces_an_earlier_one(out):
    path = out / "report" / "index.html"
    path.parent.mkdir()
    path.write_text("an older page")
    run = read_run(out)
    assert write_report(out, run, judge_claims(run)) == path
    assert [file.name for file in path.parent.iterdir()] == ["index.html"]
    html = path.read_text(encoding="utf-8")
    page = Page(html)
    assert {file.name for file in (out / "figures").iterdir()} == {
        "landmarks-batch.png",
        "landmarks-batch.pdf",
    }
    # Figures are embedded, and described in words.
    assert len(page.all("img")) == 1
    for image in page.all("img"):
        assert image["src"].startswith("data:image/png;base64,")
        assert len(image["alt"]) > 50
    # Text from users is escaped.
    assert page.all("script") == page.all("i") == page.all("b") == []
    assert "<script>alert(1)</script>" in page.words
    assert "9 h > 600 s & <b>more</b>" in page.words
    # Nothing is loaded over a network.
    assert not re.search(r"(https?:)?//", re.sub(r'src="data:[^"]*"', "", html))
    assert page.all("link") == []
    assert all(link["href"].startswith("#") for link in page.all("a"))


@pytest.mark.parametrize("experiment", ["landmarks", "iavisa"])
def test_a_page_has_all_claims_and_facts(made_up, experiment):
    facts, records = made_up(experiment, solvers=("batch", "stochastic"))
    page = page_of(facts, records)
    assert page.words.count("quick scale") >= 2
    assert "no satellite took these" in page.words
    for finding in judge_claims(make_run(facts, records)):
        assert finding.claim.statement in page.words
        assert finding.built_in in page.words
        for verdict in finding.verdicts.values():
            assert all(line in page.words for line in (*verdict.numbers, verdict.sizes))
    for fact in ("seed 7", "numpy 2.3.0", "cores 2", "0:12:34"):
        assert fact in page.words
    assert f"undulatus reproduce {experiment} --scale quick --seed 7 -o out" in page.words
    assert "All trials were completed." in page.words


def test_a_page_can_be_navigated(made_up):
    page = page_of(*made_up("iavisa"))
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"].removeprefix("#") for link in page.all("a")} <= set(ids)
    assert all("scope" in head for head in page.all("th"))
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))


def test_a_verdict_is_a_symbol_and_a_word_not_only_a_colour(made_up):
    page = page_of(*made_up("iavisa", lambda r: r | {"accuracy": 0.5}))
    assert "✗ does not hold" in page.words


def test_measured_data_are_not_called_synthetic(made_up):
    real = {"source": "SEVIRI", "synthetic": False, "path": "/data/a b.nc"}
    page = page_of(*made_up("landmarks", data=real))
    assert "Data: SEVIRI (measured)." in page.words
    assert "synthetic:" not in page.words
    assert "simulator" not in page.words
    assert "--data '/data/a b.nc'" in page.words


def test_a_page_without_trials_says_so(made_up):
    page = page_of(*made_up("iavisa", lambda record: None))
    assert "No trial was done" in page.words
    assert "0 trials done of 0" in page.words


def test_tables_of_means_are_by_regime_without_measures_nobody_took(made_up):
    tables = means_tables(make_run(*made_up("landmarks")))
    assert [table.title for table in tables] == [
        f"Illumination: {regime}" for regime in ("high", "mid", "low", "night")
    ]
    for table in tables:
        assert all(len(row) == len(table.head) for row in table.rows)
        assert "peak memory, MB" not in table.head
    (row,) = (r for r in tables[1].rows if r[:4] == ["VFF-GPC", "batch", "50,000", "200"])
    cells = dict(zip(tables[1].head, row, strict=True))
    # 0.9352 as in the test of means; 1e-5 times 50,000 times 200 seconds.
    assert cells["accuracy, %"] == "93.52"
    assert cells["CPU to train, s"] == "100"
    assert cells["runs"] == "3"


def test_trials_not_done_share_a_row_if_they_are_alike(made_up):
    def lost(record):
        if record["n"] == 300_000:
            record |= {"status": "over memory budget", "reason": "needs 9 GB"}
        return record

    table = not_done_table(make_run(*made_up("landmarks", lost)))
    common = ["batch", "high, mid, low, night", "over memory budget", "needs 9 GB"]
    # Four regimes, three D, three runs.
    assert table.rows == [
        ["RFF-GPC", *common, "300,000", "10 to 200", "36"],
        ["VFF-GPC", *common, "300,000", "10 to 200", "36"],
    ]
    assert not_done_table(make_run(*made_up("landmarks"))) is None
