"""Explanations as files that pandas reads back, and as lines for a terminal."""

import csv
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.products.explain.cosines import overall_importance
from undulatus.products.explain.table import strongest, summary_lines, write_csv
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS, absorbers


def test_a_spectrum_is_read_back_channel_by_channel(tmp_path, spectral):
    given = spectral()
    write_csv((given,), tmp_path / "cosines.csv")
    table = pd.read_csv(tmp_path / "cosines.csv", comment="#")
    assert list(table.columns[:5]) == [
        "wavenumber",
        "absorbers",
        "importance",
        "wave_1_pattern",
        "wave_1_frequency",
    ]
    assert len(table) == CHANNELS
    assert_array_equal(table["wavenumber"], WAVENUMBERS)
    assert table["absorbers"].tolist() == absorbers(WAVENUMBERS)
    # Seven digits are written.
    assert_allclose(table["importance"], given.importance, rtol=1e-6)
    for cosine in range(3):
        assert_allclose(table[f"wave_{cosine + 1}_pattern"], given.pattern[cosine], rtol=1e-6)
        assert_allclose(table[f"wave_{cosine + 1}_frequency"], given.frequency[cosine], rtol=1e-6)


def test_weights_and_units_are_comments_above_the_table(tmp_path, spectral):
    given = spectral()
    write_csv((given,), tmp_path / "cosines.csv")
    lines = (tmp_path / "cosines.csv").read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert lines[: len(comments)] == comments
    assert "K per standard deviation" in comments[0]
    assert "radians per noise" in comments[1]
    weights = np.array([line[1:].split(",") for line in comments[-3:]], dtype=float)
    assert_array_equal(weights[:, 0], [1, 2, 3])
    assert_allclose(weights[:, 1], given.weights, rtol=1e-5)
    assert_allclose(weights[:, 2].sum(), 1.0, rtol=1e-5)
    assert_allclose(weights[:, 4], given.phase_deviations, rtol=1e-5)


def test_regimes_with_their_own_features_and_cosines_share_a_table(tmp_path, explanation):
    day, night = explanation("day"), explanation("night", ("BT9", "BT10"), cosines=2, seed=1)
    write_csv((day, night), tmp_path / "cosines.csv")
    table = pd.read_csv(tmp_path / "cosines.csv", comment="#")
    assert table["regime"].tolist() == ["day"] * 3 + ["night"] * 2
    assert table["feature"].tolist() == ["R1", "BT9", "BT10", "BT9", "BT10"]
    assert_allclose(table["wave_2_direction"][:3], day.profile[1], rtol=1e-6)
    assert_allclose(table["wave_2_frequency"][3:], night.frequency[1], rtol=1e-6)
    assert table["wave_4_direction"].isna().tolist() == [False] * 3 + [True] * 2
    assert_allclose(table.groupby("regime")["importance"].sum(), 1.0, rtol=1e-6)


@pytest.mark.parametrize("name", ["R#1", 'a "b", c', "naïve µm"])
def test_odd_names_are_read_back(tmp_path, explanation, name):
    write_csv((explanation(names=(name, "b")),), tmp_path / "cosines.csv")
    table = pd.read_csv(tmp_path / "cosines.csv", comment="#", encoding="utf-8")
    assert table["feature"].tolist() == [name, "b"]


def test_a_file_that_exists_is_left_alone(tmp_path, explanation):
    path = tmp_path / "cosines.csv"
    path.write_text("mine")
    with pytest.raises(SceneError, match="exists already"):
        write_csv((explanation(),), path)
    assert path.read_text() == "mine"


def test_regions_in_kelvin_are_ranked_by_root_mean_square_and_valued_by_their_mean(spectral):
    given = spectral(cosines=1)
    profile = np.zeros(CHANNELS)
    profile[(WAVENUMBERS > 980.0) & (WAVENUMBERS < 1080.0)] = -3.0
    profile[(WAVENUMBERS > 2400.0) & (WAVENUMBERS < 2700.0)] = 2.0
    (first, value), (second, other), *_ = strongest(given, profile)
    assert (first, second) == ("O3 980-1080", "window 2400-2700")
    # The profile leaves out both ends of a region: two of 401 channels, and of 1,201.
    assert_allclose([value, other], [-3.0 * 399 / 401, 2.0 * 1199 / 1201], rtol=1e-12)


def test_regions_of_a_spectrum_without_patterns_are_valued_by_their_share(spectral):
    given = spectral(cosines=2, pattern=None, unit="standard deviations")
    found = dict(strongest(given, given.profile[0]))
    window = (WAVENUMBERS >= 770.0) & (WAVENUMBERS <= 980.0)
    assert_allclose(found["window 770-980"], np.sum(given.profile[0][window] ** 2), rtol=1e-12)
    # White noise: 3,401 of 8,461 channels lie in the band of water.
    line = summary_lines((given,))[-1]
    assert "H2O 1200-2050 (40%)" in line


def test_each_line_has_a_cosine_with_its_share_and_where_it_is_strongest(spectral):
    given = spectral()
    lines = summary_lines((given,))
    assert len(lines) == 1 + 3 + 1
    assert lines[0].split() == ["cosine", "weight", "phase", "strongest", "in"]
    for line, share, deviation in zip(
        lines[1:4], given.shares, given.phase_deviations, strict=True
    ):
        assert f"{share:.1%}" in line
        assert f"{deviation:.1f} rad" in line
        assert line.count(" K)") == 3
    assert lines[-1].split()[0] == "all"


def test_every_regime_has_a_heading_and_long_lists_are_cut(explanation):
    given = (explanation("day", cosines=12), explanation("night", ("BT9", "BT10"), seed=1))
    lines = summary_lines(given, most=10)
    assert lines[0] == "regime day"
    assert lines.index("regime night") == lines.index("") + 1
    assert sum("and 2 more" in line for line in lines) == 1
    # The deviation of the phase is not known for correlated features.
    assert not any("rad" in line for line in lines)
    last = lines[-1]
    assert "BT9 (" in last
    assert "%)" in last


def test_classes_have_rows_each_beside_the_importance_for_all(tmp_path, explanation, of_classes):
    given = of_classes(explanation, ("cloud", "land", "sea"))
    write_csv(given, tmp_path / "cosines.csv")
    table = pd.read_csv(tmp_path / "cosines.csv", comment="#")
    assert list(table.columns[:4]) == ["class", "feature", "importance", "importance_for_all"]
    assert table["class"].tolist() == ["cloud"] * 3 + ["land"] * 3 + ["sea"] * 3
    assert_allclose(table["importance"][3:6], given[1].importance, rtol=1e-6)
    assert_allclose(table["importance_for_all"], np.tile(overall_importance(given), 3), rtol=1e-6)
    assert_allclose(table["wave_2_direction"][3:6], given[1].profile[1], rtol=1e-6)
    assert "# class: land" in (tmp_path / "cosines.csv").read_text().splitlines()


def test_classes_of_regimes_have_both_columns(tmp_path, explanation, of_classes):
    given = [one for regime in ("day", "night") for one in of_classes(explanation, "abc", regime)]
    write_csv(given, tmp_path / "cosines.csv")
    table = pd.read_csv(tmp_path / "cosines.csv", comment="#")
    assert table.groupby(["regime", "class"]).size().tolist() == [3] * 6


def test_every_class_has_a_heading_and_all_of_them_a_last_line(explanation, of_classes):
    given = of_classes(explanation, ("cloud", "land", "sea"), "day")
    lines = summary_lines(given)
    headings = [line for line in lines if line.startswith("regime")]
    assert headings == [
        *(f"regime day, class {name}" for name in ("cloud", "land", "sea")),
        "regime day, all classes",
    ]
    assert lines[-2] == headings[-1]
    best = given[0].names[overall_importance(given).argmax()]
    assert lines[-1].split()[:3] == ["all", "100.0%", best]


def test_no_name_in_a_table_or_its_comments_is_a_formula(tmp_path, explanation):
    given = replace(
        explanation(), names=("=1+1", "@b", "c"), of_class="a,=x\x1b", towards="b;@y", regime="+r"
    )
    write_csv((given,), tmp_path / "cosines.csv")
    text = (tmp_path / "cosines.csv").read_text()
    assert "\x1b" not in text
    cells = [cell.strip() for row in csv.reader(text.splitlines()) for cell in row]
    assert not [cell for cell in cells if cell[:1] in ("=", "@", "+")]
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert not [line for line in comments if re.search("[,;] *[=@+]", line)]
