"""The paper's figures from records: written twice, complete, and described in words."""

import matplotlib.image
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from undulatus.paper.figures import (
    COLOURS,
    MARKS,
    PANELS,
    TRADE,
    FigureStyle,
    draw_figures,
    draw_method_legend,
    draw_panel,
)
from undulatus.paper.runs import make_run, means


def only_high(record):
    return record if record.get("regime", "high") == "high" else None


def test_landmarks_have_a_figure_for_each_solver(made_up, tmp_path):
    run = make_run(*made_up("landmarks", only_high, solvers=("batch", "stochastic")))
    drawn = draw_figures(run, tmp_path / "figures")
    assert [figure.name for figure in drawn] == ["landmarks-batch", "landmarks-stochastic"]
    for figure in drawn:
        assert figure.png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert figure.pdf.read_bytes()[:5] == b"%PDF-"
        picture = matplotlib.image.imread(figure.png)
        assert picture.shape[1] == 2580  # Four panels of 4.3 inches, 150 dots each.
        assert picture[..., :3].std() > 0.05
        assert "synthetic" not in figure.title
        assert "VFF-GPC 96.9 % (n = 300,000, D = 200)" in figure.alt
    assert plt.get_fignums() == []


def test_spectra_have_a_figure_for_each_solver_and_one_of_over_fitting(made_up, tmp_path):
    run = make_run(*made_up("iavisa"))
    drawn = draw_figures(run, tmp_path)
    assert [figure.name for figure in drawn] == ["iavisa-batch", "overfitting"]
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}.{kind}" for name in ("iavisa-batch", "overfitting") for kind in ("png", "pdf")
    }
    assert "batch: at D = 150, 100.0 % of training and 80.1 % of test rows" in drawn[1].alt


def test_maps_are_included_if_they_were_drawn(made_up, tmp_path):
    run = make_run(*made_up("iavisa", lambda r: r | {"train_accuracy": None} if r["n"] else r))
    (tmp_path / "maps.png").write_bytes(b"a picture")
    drawn = draw_figures(run, tmp_path)
    assert [figure.name for figure in drawn] == ["iavisa-batch", "maps"]
    assert drawn[-1].png == tmp_path / "maps.png"
    assert "no satellite took these" in drawn[-1].caption


def test_a_run_without_trials_has_no_figures(made_up, tmp_path):
    assert draw_figures(make_run(*made_up("landmarks", lambda record: None)), tmp_path) == []


def texts_of(monkeypatch, run, folder):
    """Draw the figures; return all text that is put on them."""
    texts = []
    put = Figure.text
    monkeypatch.setattr(
        Figure, "text", lambda f, x, y, s, **how: texts.append(s) or put(f, x, y, s, **how)
    )
    draw_figures(run, folder)
    return " ".join(texts)


def test_figures_note_synthetic_data_and_trials_not_done(made_up, tmp_path, monkeypatch):
    def lost(record):
        if record["n"] == 15_000:
            return only_high(record | {"status": "over time budget", "reason": "9 h"})
        return only_high(record)

    text = texts_of(monkeypatch, make_run(*made_up("landmarks", lost)), tmp_path)
    assert "Not shown: 3 trials of GPC, n = 15,000 (high): over time budget." in text
    assert "synthetic: no satellite took these" in text


def test_a_single_point_can_be_drawn(made_up, tmp_path):
    def one(record):
        return only_high(record) if (record["n"], record["D"]) == (10_000, 50) else None

    assert len(draw_figures(make_run(*made_up("landmarks", one, runs=1)), tmp_path)) == 1


def test_a_figure_leaves_out_regimes_that_its_solver_was_not_tried_in(made_up, tmp_path):
    def few(record):
        if record["regime"] not in ("high", "mid") or (record["D"] or 10) > 10:
            return None
        high = record["regime"] == "high" or record["solver"] != "batch"
        return record if high and record["n"] == 10_000 else None

    run = make_run(*made_up("landmarks", few, solvers=("batch", "stochastic"), runs=1))
    batch, stochastic = draw_figures(run, tmp_path)
    assert "mid" not in batch.alt
    assert "mid" in stochastic.alt


def test_gpc_alone_can_be_drawn(made_up, tmp_path):
    def one(record):
        return only_high(record) if record["method"] == "gpc" else None

    assert len(draw_figures(make_run(*made_up("landmarks", one)), tmp_path)) == 1


@pytest.fixture
def table(made_up):
    return means(make_run(*made_up("landmarks", only_high)).done)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_a_panel_has_units_and_every_method_and_size(table, panel):
    axis = Figure().subplots()
    draw_panel(axis, table, panel, FigureStyle(table))
    labels = axis.get_xlabel(), axis.get_ylabel()
    assert all(
        label.endswith((", s", ", %")) or label == "number of frequencies D" for label in labels
    )
    # Three sizes of each of three methods; error bars are not lines.
    lines = [line for line in axis.get_lines() if len(line.get_xdata())]
    assert len(lines) == 9
    if panel is TRADE:
        assert axis.get_xscale() == "log"


def test_methods_differ_by_more_than_colour_and_sizes_by_width(table):
    style = FigureStyle(table)
    assert len(set(COLOURS.values())) == len(set(MARKS.values())) == len(COLOURS)
    widths = [style.line("vff", n)["linewidth"] for n in style.sizes("vff")]
    assert widths == sorted(set(widths))


def test_the_legend_names_every_method_and_size(table):
    figure = Figure()
    draw_method_legend(figure, table, FigureStyle(table), 0.1)
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "GPC, n = 15,000" in labels
    assert len(labels) == 9
