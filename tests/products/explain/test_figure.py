"""Pictures of explanations are readable, of a sensible size, and no text overlaps another."""

from itertools import combinations

import matplotlib.image
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from undulatus.errors import InputError
from undulatus.products.explain.cosines import overall_importance
from undulatus.products.explain.figure import (
    GAS_COLOURS,
    MOST_BARS,
    MOST_COSINES,
    draw_explanation,
)
from undulatus.scenes.channels import GASES

LONG = "a_feature_with_a_long_name"


def scores(explanation, **changes):
    names = [
        f"band {band} component {i}" for band, n in ((1, 90), (2, 120), (3, 90)) for i in range(n)
    ]
    return explanation(names=names, measurement="scores", **changes)


@pytest.fixture(
    params=["spectra", "many cosines", "one cosine", "no pattern", "scores", "scores, no pattern",
            "features", "regimes", "many features", "classes", "classes of regimes",
            "classes of spectra", "classes of scores"]
)  # fmt: skip
def shown(request, explanation, spectral, of_classes):
    """Explanations of every kind that can be drawn."""
    rng = np.random.default_rng(0)
    pattern = rng.uniform(-1.0, 1.0, (4, 300))
    return {
        "spectra": lambda: (spectral(5),),
        "many cosines": lambda: (spectral(20),),
        "one cosine": lambda: (spectral(1),),
        "no pattern": lambda: (spectral(3, pattern=None, unit="standard deviations"),),
        "scores": lambda: (scores(explanation, pattern=pattern),),
        "scores, no pattern": lambda: (scores(explanation),),
        "features": lambda: (explanation(names=("a", LONG, "c")),),
        "regimes": lambda: tuple(
            explanation(name, names=[f"BT{i}_mean5" for i in range(count)])
            for name, count in (("high", 16), ("mid", 16), ("low", 16), ("night", 6))
        ),
        "many features": lambda: (explanation(names=[f"x{i}" for i in range(300)]),),
        "classes": lambda: of_classes(explanation, [f"land cover {i}" for i in range(9)]),
        "classes of regimes": lambda: (
            *of_classes(explanation, ("cloud", "land", "sea"), "day"),
            *of_classes(explanation, ("cloud", "land", "sea"), "night", ("BT9", "BT10")),
        ),
        "classes of spectra": lambda: of_classes(spectral, ("clear", "low", "high"), cosines=4),
        "classes of scores": lambda: of_classes(
            lambda **options: scores(explanation, **options), ("clear", "low", "high"), cosines=4
        ),
    }[request.param]()


@pytest.fixture
def drawn(shown, tmp_path, monkeypatch):
    """Return the figure that was saved."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (figures.append(self), path.touch()))
    draw_explanation(shown, tmp_path / "cosines.png")
    (figure,) = figures
    return figure


def texts_of(figure, monkeypatch):
    """Return every text as it is drawn, with its box in pixels."""
    texts = []
    draw = Text.draw

    def watch(text, renderer, *arguments, **options):
        if text.get_visible() and text.get_text().strip():
            texts.append((text.get_text(), text.get_window_extent(renderer)))
        draw(text, renderer, *arguments, **options)

    monkeypatch.setattr(Text, "draw", watch)
    FigureCanvasAgg(figure).draw()
    return texts


def test_no_text_overlaps_another_or_leaves_the_picture(drawn, monkeypatch):
    texts = texts_of(drawn, monkeypatch)
    assert len(texts) > 10
    width, height = drawn.bbox.width, drawn.bbox.height
    for text, box in texts:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= width, text
        assert box.y1 <= height, text
    for (one, box), (other, other_box) in combinations(texts, 2):
        apart = (
            box.x1 <= other_box.x0 + 1
            or other_box.x1 <= box.x0 + 1
            or box.y1 <= other_box.y0 + 1
            or other_box.y1 <= box.y0 + 1
        )
        assert apart, (one, other)


def test_a_picture_is_a_readable_png_of_a_sensible_size(shown, tmp_path):
    path = tmp_path / "cosines.png"
    draw_explanation(shown, path)
    picture = matplotlib.image.imread(path)
    assert 800 <= picture.shape[1] <= 4000
    assert 300 <= picture.shape[0] <= 4000
    assert picture[..., :3].std() > 0.05


def test_the_suffix_pdf_gives_a_pdf(explanation, tmp_path):
    draw_explanation((explanation(),), tmp_path / "cosines.pdf")
    assert (tmp_path / "cosines.pdf").read_bytes()[:5] == b"%PDF-"


def test_another_suffix_is_refused(explanation, tmp_path):
    with pytest.raises(InputError, match=r"must be a \.png or \.pdf file, not .*cosines\.jpg"):
        draw_explanation((explanation(),), tmp_path / "cosines.jpg")


@pytest.mark.parametrize("shown", ["many cosines"], indirect=True)
def test_the_cosines_of_the_largest_weight_are_drawn_with_their_shares(drawn, shown):
    titles = [axis.get_title(loc="left") for axis in drawn.axes if axis.get_title(loc="left")]
    assert len(titles) == MOST_COSINES + 1
    for number, (title, share) in enumerate(zip(titles, shown[0].shares, strict=False), 1):
        if number <= MOST_COSINES:
            assert title.startswith(f"cosine {number}: {100 * share:.0f} % of the weight")
    share_drawn = 100 * shown[0].shares[:MOST_COSINES].sum()
    assert f"{share_drawn:.0f} %" in titles[-1]


@pytest.mark.parametrize("shown", ["spectra"], indirect=True)
def test_every_gas_has_a_lane_with_its_name_and_its_own_colour(drawn):
    labels = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert labels == ["CO₂", "O₃", "H₂O", "CH₄", "N₂O", "CO"]
    assert len({GAS_COLOURS[gas] for gas in GASES}) == len(GASES)


@pytest.mark.parametrize("shown", ["regimes"], indirect=True)
def test_every_regime_has_a_panel_with_the_most_important_feature_on_top(drawn, shown):
    assert len(drawn.axes) == 4
    for axis, explanation in zip(drawn.axes, shown, strict=True):
        assert axis.get_title(loc="left") == f"regime {explanation.regime}"
        assert (
            axis.get_yticklabels()[0].get_text()
            == explanation.names[explanation.importance.argmax()]
        )
        lengths = [bar.get_width() for bar in axis.patches]
        assert lengths == sorted(lengths, reverse=True)
        assert len(lengths) == len(explanation.names)


@pytest.mark.parametrize("shown", ["many features"], indirect=True)
def test_only_the_most_important_of_many_features_are_shown_and_the_title_says_so(drawn):
    (axis,) = drawn.axes
    assert len(axis.patches) == MOST_BARS
    assert axis.get_title(loc="left") == f"the first {MOST_BARS} of 300 features"


@pytest.mark.parametrize("shown", ["classes of regimes"], indirect=True)
def test_every_class_of_a_regime_has_a_panel_beside_that_of_all_classes(drawn, shown):
    titles = [axis.get_title(loc="left") for axis in drawn.axes]
    assert titles[:2] == ["regime day, all classes", "regime day, class cloud"]
    assert titles[-1] == "regime night, class sea"
    assert len(titles) == 8
    together = [bar.get_width() for bar in drawn.axes[0].patches]
    expected = 100.0 * np.sort(overall_importance(shown[:3]))[::-1]
    np.testing.assert_allclose(together, expected, rtol=1e-12)


@pytest.mark.parametrize("shown", ["classes of spectra"], indirect=True)
def test_classes_of_spectra_have_a_curve_each_below_that_of_all(drawn, shown):
    titles = [axis.get_title(loc="left") for axis in drawn.axes if axis.get_title(loc="left")]
    assert titles == ["all classes", "class clear", "class low", "class high"]
    curve = drawn.axes[-1].lines[0].get_ydata()
    np.testing.assert_array_equal(curve, shown[-1].importance)
