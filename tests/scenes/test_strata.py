"""Cells of strata: which spectra are held out together, and which are scored together."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes import synthetic_sounder
from undulatus.scenes.strata import PARTS, STRATA, cells, each_stratum, hold_out_cells


@pytest.fixture(scope="module")
def spectra():
    """Labels and strata of 2,000 synthetic spectra; their radiances stay lazy."""
    return synthetic_sounder(2000, seed=3)


def test_spectra_of_one_cell_agree_in_every_stratum_and_others_do_not(spectra):
    names = cells(spectra)
    codes = np.column_stack([spectra[name].values for name in STRATA])
    for cell in np.unique(names)[:20]:
        assert len(np.unique(codes[names == cell], axis=0)) == 1
    assert len(np.unique(names)) == len(np.unique(codes, axis=0))


@given(st.floats(0.05, 0.9), st.integers(0, 20))
def test_cells_are_held_out_whole_and_in_about_the_share_asked_for(share, seed):
    spectra = synthetic_sounder(2000, seed=3)
    held_out, names = hold_out_cells(spectra, share, seed)
    own = cells(spectra)
    assert not set(own[~held_out]) & set(own[held_out])
    assert set(names) == set(own[held_out])
    largest = np.unique(own, return_counts=True)[1].max()
    assert abs(held_out.sum() - share * 2000) <= largest


def test_the_seed_chooses_the_cells(spectra):
    assert hold_out_cells(spectra, 0.25, 1)[1] == hold_out_cells(spectra, 0.25, 1)[1]
    assert hold_out_cells(spectra, 0.25, 1)[1] != hold_out_cells(spectra, 0.25, 2)[1]


def test_spectra_without_strata_are_held_out_by_days(spectra):
    bare = spectra.drop_vars(STRATA)
    assert_array_equal(cells(bare), spectra["time"].values.astype("datetime64[D]").astype(str))


def test_spectra_without_strata_or_time_are_held_out_in_runs(spectra):
    bare = spectra.drop_vars([*STRATA, "time"])
    names = cells(bare)
    assert len(np.unique(names)) == PARTS
    # Runs: the name changes once between two neighbours, and never comes back.
    assert np.count_nonzero(names[1:] != names[:-1]) == PARTS - 1
    other = xr.Dataset(coords={"sample": np.arange(1999)})
    assert not set(cells(other)) & set(names)


def test_one_cell_alone_cannot_be_held_out(spectra):
    same = spectra.isel(sample=np.flatnonzero(cells(spectra) == cells(spectra)[0]))
    with pytest.raises(SceneError, match="lie in one cell"):
        hold_out_cells(same, 0.25, 0)


def test_every_spectrum_is_in_one_value_of_each_stratum_named_as_told(spectra):
    found = each_stratum(spectra)
    for stratum in STRATA:
        members = sum(rows.astype(int) for (name, _), rows in found.items() if name == stratum)
        assert_array_equal(members, 1)
    assert ("season", "winter") in found
    assert_array_equal(found["surface_type", "water"], spectra["surface_type"].values == 17)


def test_a_missing_code_is_in_no_stratum_and_codes_without_names_are_numbers(spectra):
    codes = spectra["season"].values.copy()
    codes[:10] = 255
    found = each_stratum(xr.Dataset({"season": ("sample", codes)}))
    assert set(found) == {("season", str(code)) for code in (1, 2, 3, 4)}
    assert not any(rows[:10].any() for rows in found.values())
