"""Checking spectra: valid ones are put in standard form, every defect is named with its remedy."""

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, RADIANCE_UNITS, WAVENUMBERS, radiance_factor
from undulatus.scenes.radiometry import blackbody_radiance, radiance_slope
from undulatus.scenes.spectra import CODES, check_spectra, measurement

SAMPLES = 6
DIMS = ("sample", "channel")
RADIANCES = blackbody_radiance(WAVENUMBERS, np.linspace(240.0, 300.0, SAMPLES)[:, None])
RADIANCES = RADIANCES.astype(np.float32)
NOISE = (0.2 * radiance_slope(WAVENUMBERS, np.array(280.0))).astype(np.float32)


def spectra(**changed):
    """Make valid spectra, except for the variables and coordinates given by name."""
    variables = {
        "radiance": (DIMS, RADIANCES.copy(), {"units": RADIANCE_UNITS}),
        "noise": ("channel", NOISE.copy(), {"units": RADIANCE_UNITS}),
        "cloud_class": ("sample", np.array([0, 1, 2, 3, 0, 255], np.uint8)),
        "surface_type": ("sample", np.array([1, 18, 17, 17, 16, 2], np.uint8)),
        "climate_zone": ("sample", np.array([1, 5, 3, 3, 2, 1], np.uint8)),
        "season": ("sample", np.array([1, 2, 3, 4, 4, 1], np.uint8)),
        "day": ("sample", np.array([True, False, True, True, False, False])),
    }
    coords = {"wavenumber": ("channel", WAVENUMBERS.copy(), {"units": "cm-1"})}
    coords |= {name: changed.pop(name) for name in set(coords) & set(changed)}
    kept = {name: value for name, value in (variables | changed).items() if value is not None}
    return xr.Dataset(kept, {name: value for name, value in coords.items() if value is not None})


def in_kelvin(values, units="K"):
    return spectra(radiance=None, brightness_temperature=(DIMS, values, {"units": units}))


def scores(count=300):
    values = np.random.default_rng(0).normal(size=(SAMPLES, count))
    return xr.Dataset({"scores": (("sample", "component"), values)})


# Valid spectra


def test_spectra_in_standard_form_are_returned_unchanged():
    given = spectra()
    checked = check_spectra(given)
    assert checked["radiance"].dims == DIMS
    assert checked["radiance"].dtype == np.float32
    assert_array_equal(checked["radiance"], given["radiance"])
    assert_array_equal(checked["noise"], given["noise"])
    assert_array_equal(checked["wavenumber"], WAVENUMBERS)
    assert measurement(checked) == "radiance"
    xr.testing.assert_identical(given, spectra())


def test_checking_checked_spectra_changes_nothing():
    once = check_spectra(spectra())
    xr.testing.assert_identical(check_spectra(once), once)


@pytest.mark.parametrize(
    "disorder",
    {
        "transposed": lambda s: s.transpose(),
        "reversed": lambda s: s.isel(channel=slice(None, None, -1)),
        "shuffled": lambda s: s.isel(channel=np.random.default_rng(0).permutation(CHANNELS)),
        "in double precision": lambda s: s.astype({"radiance": float}),
        "wavenumbers in single precision": lambda s: s.assign_coords(
            wavenumber=s["wavenumber"].astype(np.float32)
        ),
        "with additional channels": lambda s: s.pad(channel=(0, 239)).assign_coords(
            wavenumber=("channel", 645.0 + 0.25 * np.arange(CHANNELS + 239))
        ),
    }.items(),
    ids=lambda item: item[0],
)
def test_channels_are_put_in_order(disorder):
    given = spectra(noise=None, cloud_class=None, surface_type=None, climate_zone=None)
    given = given.drop_vars(["season", "day"])
    checked = check_spectra(disorder[1](given))
    assert checked["radiance"].dims == DIMS
    assert_array_equal(checked["radiance"], RADIANCES)
    assert_array_equal(checked["wavenumber"], WAVENUMBERS)


UNITS = {
    "mW m-2 sr-1 (cm-1)-1": 1.0,
    "mW m^-2 sr^-1 (cm^-1)^-1": 1.0,
    "mW m⁻² sr⁻¹ (cm⁻¹)⁻¹": 1.0,
    "mW.m-2.sr-1.(cm-1)-1": 1.0,
    "mW m-2 sr-1 cm": 1.0,
    "mW/m2/sr/cm-1": 1.0,
    "mW/m^2/sr/(cm^-1)": 1.0,
    "mW/(m2 sr cm-1)": 1.0,
    "mW/(m^2.sr.cm^-1)": 1.0,
    "mW/(m2 sr (cm-1))": 1.0,
    "W m-2 sr-1 (cm-1)-1": 1e3,
    "W/(m2 sr cm-1)": 1e3,
    "W m-2 sr-1 (m-1)-1": 1e5,
    "W m-2 sr-1 m": 1e5,
    "W/m2/sr/(m-1)": 1e5,
    "W/m2/sr/m-1": 1e5,
    "W/m^2.sr.m^-1": 1e5,
    "W/(m2 sr m-1)": 1e5,
    "W m-1 sr-1": 1e5,
}


@pytest.mark.parametrize("units", UNITS)
def test_radiances_in_unambiguous_units_are_converted(units):
    factor = UNITS[units]
    given = spectra(
        radiance=(DIMS, RADIANCES / factor, {"units": units}),
        noise=("channel", NOISE / factor, {"units": units}),
    )
    checked = check_spectra(given)
    assert checked["radiance"].attrs["units"] == RADIANCE_UNITS
    # One division and one product in single precision.
    assert_allclose(checked["radiance"], RADIANCES, rtol=3e-7)
    assert_allclose(checked["noise"], NOISE, rtol=3e-7)


@pytest.mark.parametrize(
    "units", ["mW m-2 sr-1 cm-1", "W m-2 sr-1 um-1", "mW", "MW m-2 sr-1 (cm-1)-1", "1", "counts"]
)
def test_ambiguous_units_are_refused_by_name(units):
    assert radiance_factor(units) is None
    with pytest.raises(SceneError, match=r"radiance is in .*expected mW m-2 sr-1") as error:
        check_spectra(spectra(radiance=(DIMS, RADIANCES, {"units": units})))
    assert repr(units) in str(error.value)
    assert "undulatus.scenes.channels" in str(error.value)


def test_brightness_temperatures_are_accepted_in_place_of_radiances():
    checked = check_spectra(in_kelvin(np.full((SAMPLES, CHANNELS), 280.0)))
    assert measurement(checked) == "brightness_temperature"
    assert checked["brightness_temperature"].dtype == np.float32


def test_scores_need_no_channels():
    checked = check_spectra(scores().transpose())
    assert measurement(checked) == "scores"
    assert checked["scores"].dims == ("sample", "component")
    assert checked["scores"].dtype == np.float32


@pytest.mark.parametrize("missing", [slice(2, 4), slice(None)])
def test_missing_spectra_are_accepted(missing):
    values = RADIANCES.copy()
    values[missing] = np.nan
    values[0, 5] = np.inf
    checked = check_spectra(spectra(radiance=(DIMS, values, {"units": RADIANCE_UNITS})))
    assert np.isnan(checked["radiance"].values[missing]).all()
    assert np.isnan(checked["radiance"].values[0, 5])


def test_cloudy_is_derived_from_the_class_and_missing_stays_missing():
    assert check_spectra(spectra())["cloudy"].values.tolist() == [0, 1, 1, 1, 0, 255]
    own = ("sample", np.array([1, 1, 0, 0, 1, 255], np.uint8))
    assert check_spectra(spectra(cloudy=own))["cloudy"].values.tolist() == [1, 1, 0, 0, 1, 255]


def test_codes_read_as_floats_become_codes_again():
    given = spectra(cloud_class=("sample", np.array([0, 1, 2, 3, 0, np.nan])))
    checked = check_spectra(given)
    assert checked["cloud_class"].dtype == np.uint8
    assert checked["cloud_class"].values.tolist() == [0, 1, 2, 3, 0, 255]
    assert checked["day"].values.tolist() == [1, 0, 1, 1, 0, 0]


def test_lazy_spectra_stay_lazy_and_only_some_in_the_middle_are_read():
    computed = []

    def make(block, block_info=None):
        if block_info:
            computed.append(block_info[0]["chunk-location"][0])
        return block

    values = da.from_array(np.tile(RADIANCES, (200, 1)), chunks=(100, CHANNELS))
    values = values.map_blocks(make, meta=np.empty((0, 0), np.float32))
    given = xr.Dataset(
        {"radiance": (DIMS, values, {"units": RADIANCE_UNITS})},
        {"wavenumber": ("channel", WAVENUMBERS)},
    )
    checked = check_spectra(given)
    assert isinstance(checked["radiance"].data, da.Array)
    assert set(computed) == {5, 6}


# Defects


def with_wavenumber(values):
    return spectra(wavenumber=("channel", values))


DEFECTS = {
    "not a dataset": (
        lambda: spectra()["radiance"],
        ["a DataArray was given", 'array.to_dataset(name="radiance")'],
    ),
    "no measurement": (
        lambda: spectra(radiance=None),
        ["missing: radiance, brightness_temperature or scores. Found: noise", "spectra.rename"],
    ),
    "two measurements": (
        lambda: spectra(
            brightness_temperature=(DIMS, np.full(RADIANCES.shape, 280.0), {"units": "K"})
        ),
        ["found radiance and brightness_temperature; expected one", "spectra.drop_vars"],
    ),
    "other dims": (
        lambda: spectra().rename_dims(sample="pixel"),
        ["radiance has dims ('pixel', 'channel'); expected (sample, channel)", "rename_dims"],
    ),
    "wavenumber as a dim": (
        lambda: xr.Dataset(
            {"radiance": (("sample", "wavenumber"), RADIANCES, {"units": RADIANCE_UNITS})},
            {"wavenumber": WAVENUMBERS},
        ),
        ['spectra.swap_dims(wavenumber="channel")'],
    ),
    "dims swapped": (
        lambda: xr.Dataset(
            {"radiance": (DIMS, RADIANCES.T, {"units": RADIANCE_UNITS})},
        ),
        ["8461 samples and 6 channels: its dims are swapped", "rename("],
    ),
    "no samples": (
        lambda: spectra().isel(sample=slice(0)),
        ["radiance has no samples", "select others"],
    ),
    "no wavenumber": (
        lambda: spectra(wavenumber=None),
        [
            "no wavenumber for the 8461 channels; expected 645 to 2760 per cm by 0.25",
            'assign_coords(wavenumber=("channel", undulatus.scenes.channels.WAVENUMBERS))',
        ],
    ),
    "no wavenumber and too few channels": (
        lambda: spectra(wavenumber=None).isel(channel=slice(500)),
        ["for the 500 channels", "assign one"],
    ),
    "wavenumbers per sample": (
        lambda: spectra(wavenumber=(DIMS, np.tile(WAVENUMBERS, (SAMPLES, 1)))),
        ["wavenumber has dims ('sample', 'channel')", "expected one number per channel"],
    ),
    "wavenumbers as text": (
        lambda: with_wavenumber(WAVENUMBERS.astype(str)),
        ["expected one number per channel"],
    ),
    "wavenumbers that are missing": (
        lambda: with_wavenumber(np.r_[WAVENUMBERS[:-2], np.nan, np.inf]),
        ["wavenumber is not finite in 2 channels", "spectra.isel(channel=np.isfinite("],
    ),
    "wavenumbers of zero": (
        lambda: with_wavenumber(np.zeros(CHANNELS)),
        ["wavenumber runs from 0 to 0", "resample the spectra"],
    ),
    "per metre": (
        lambda: with_wavenumber(WAVENUMBERS * 100.0),
        ["wavenumber runs from 64500 to 276000", "seems to be per metre", "divide it by 100"],
    ),
    "wavelengths in µm": (
        lambda: with_wavenumber(1e4 / WAVENUMBERS),
        ["wavenumber runs from 3.62319 to 15.5039", "wavelengths in µm", "10000 / wavelength"],
    ),
    "wavelengths in nm": (
        lambda: with_wavenumber(1e7 / WAVENUMBERS),
        ["wavelengths in nm", "10000000 / wavelength"],
    ),
    "shifted by a channel": (
        lambda: with_wavenumber(WAVENUMBERS + 0.25),
        ["all are shifted by +0.25", "0.25 (k + 2579) per cm", "Subtract the shift"],
    ),
    "shifted by half a channel": (
        lambda: with_wavenumber(WAVENUMBERS - 0.125),
        ["all are shifted by -0.125", "resample the spectra"],
    ),
    "one range missing": (
        lambda: spectra().isel(channel=np.r_[0:220, 620:CHANNELS]),
        ["missing: 400 of 8461 channels, at 700.00-799.75 per cm", "Use whole spectra"],
    ),
    "many ranges missing": (
        lambda: spectra().isel(channel=slice(None, None, 2)),
        [
            "missing: 4230 of 8461 channels, at 645.25-645.25, 645.75-645.75, 646.25-646.25 and "
            "4227 more ranges per cm"
        ],
    ),
    "duplicate channels": (
        lambda: spectra().isel(channel=[*range(CHANNELS), 0, 1]),
        ["wavenumber has 2 duplicates", "keep one of each"],
    ),
    "another instrument": (
        lambda: with_wavenumber(np.linspace(649.62, 2665.11, CHANNELS)),
        ["wavenumber runs from 649.62 to 2665.11"],
    ),
    "no units": (
        lambda: spectra(radiance=(DIMS, RADIANCES)),
        ["radiance has no units", 'attrs["units"] = "mW m-2 sr-1 (cm-1)-1"'],
    ),
    "radiances that are watts": (
        lambda: spectra(radiance=(DIMS, RADIANCES / 1e5, {"units": RADIANCE_UNITS})),
        ["but its values lie around 0.000", "they look like W m-2 sr-1 (m-1)-1", "Convert them"],
    ),
    "radiances labelled SI": (
        lambda: spectra(radiance=(DIMS, RADIANCES, {"units": "W m-2 sr-1 (m-1)-1"})),
        ["radiance says W m-2 sr-1 (m-1)-1", "that were converted already"],
    ),
    "negative radiances": (
        lambda: spectra(radiance=(DIMS, -RADIANCES, {"units": RADIANCE_UNITS})),
        ["none is positive", "Was a mean subtracted"],
    ),
    "counts": (
        lambda: spectra(radiance=(DIMS, RADIANCES * 1e7, {"units": RADIANCE_UNITS})),
        ["the Earth has no such radiances", "Calibrate them"],
    ),
    "Celsius labelled kelvin": (
        lambda: in_kelvin(np.full(RADIANCES.shape, 12.0)),
        ["says K, but its values lie around 12", "look like degrees Celsius. Add 273.15"],
    ),
    "Celsius": (
        lambda: in_kelvin(np.full(RADIANCES.shape, 12.0), "degC"),
        ["brightness_temperature is in 'degC'; expected K: add 273.15"],
    ),
    "radiances labelled temperatures": (
        lambda: in_kelvin(np.full(RADIANCES.shape, 1e5)),
        ["they are not kelvin. If they are radiances, rename them"],
    ),
    "noise per sample": (
        lambda: spectra(noise=(DIMS, np.tile(NOISE, (SAMPLES, 1)), {"units": RADIANCE_UNITS})),
        ["noise has dims ('sample', 'channel'); expected (channel)"],
    ),
    "noise without units": (lambda: spectra(noise=("channel", NOISE)), ["noise has no units"]),
    "noise in kelvin": (
        lambda: spectra(noise=("channel", NOISE, {"units": "K"})),
        ["noise is in 'K'", "undulatus.scenes.radiometry.radiance_slope"],
    ),
    "noise of zero": (
        lambda: spectra(noise=("channel", 0 * NOISE, {"units": RADIANCE_UNITS})),
        ["noise has values that are not positive"],
    ),
    "scores of one band": (
        lambda: scores(90),
        ["scores has 90 components; expected 300 (90 + 120 + 90", "spectra.isel(component="],
    ),
    "scores with other dims": (
        lambda: scores().rename_dims(component="pc"),
        ["scores has dims ('sample', 'pc'); expected (sample, component)"],
    ),
    "codes per channel": (
        lambda: spectra(day=("channel", np.zeros(CHANNELS, np.uint8))),
        ["day has dims ('channel',); expected (sample)"],
    ),
    "codes as text": (
        lambda: spectra(season=("sample", np.array(list("abcdef")))),
        ["season is of type <U1; expected 1 to 4: turn it into numbers"],
    ),
    **{
        f"a wrong {name}": (
            lambda name=name: spectra(**{name: ("sample", np.full(SAMPLES, 99))}),
            [f"{name} has values such as 99; expected", "255 for missing: recode it"],
        )
        for name in CODES
    },
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_named_with_its_remedy(defect):
    make, phrases = DEFECTS[defect]
    with pytest.raises(SceneError) as error:
        check_spectra(make())
    for phrase in phrases:
        assert phrase in str(error.value)


def test_all_defects_are_listed_at_once():
    given = spectra(
        radiance=(DIMS, RADIANCES),
        wavenumber=("channel", WAVENUMBERS * 100.0),
        noise=("channel", NOISE, {"units": "K"}),
        season=("sample", np.full(SAMPLES, 7)),
    )
    with pytest.raises(SceneError) as error:
        check_spectra(given)
    listed = str(error.value).splitlines()
    assert listed[0] == "The spectra cannot be used:"
    assert [line.split()[1] for line in listed[1:]] == [
        "radiance",
        "wavenumber",
        "noise",
        "season",
    ]


REMEDIES = {
    "wavenumber as a dim": lambda s: s.swap_dims(wavenumber="channel"),
    "dims swapped": lambda s: s.rename(sample="channel", channel="sample").assign_coords(
        wavenumber=("channel", WAVENUMBERS)
    ),
    "no wavenumber": lambda s: s.assign_coords(wavenumber=("channel", WAVENUMBERS)),
    "per metre": lambda s: s.assign_coords(wavenumber=s["wavenumber"] / 100.0),
    "wavelengths in µm": lambda s: s.assign_coords(wavenumber=1e4 / s["wavenumber"]),
    "two measurements": lambda s: s.drop_vars("brightness_temperature"),
    "duplicate channels": lambda s: (
        s.swap_dims(channel="wavenumber")
        .drop_duplicates("wavenumber")
        .swap_dims(wavenumber="channel")
    ),
}


@pytest.mark.parametrize("defect", REMEDIES)
def test_the_remedy_fixes_the_defect(defect):
    fixed = REMEDIES[defect](DEFECTS[defect][0]())
    assert_array_equal(check_spectra(fixed)["radiance"], RADIANCES)


# Channels of other instruments


def few(wavenumber, **attrs):
    """Make temperatures of some channels under a name of their own."""
    values = 260.0 + np.arange(len(wavenumber)) + np.zeros((SAMPLES, 1))
    return xr.Dataset(
        {"brightness_temperature": (DIMS, values, {"units": "K"})},
        {"wavenumber": ("channel", np.asarray(wavenumber, dtype=float))},
        {"channel_set": "HIRS, 3 channels", **attrs},
    )


def test_channels_that_are_named_as_a_set_need_not_be_those_of_iasi():
    checked = check_spectra(few([2500.0, 670.0, 900.0]))
    assert_array_equal(checked["wavenumber"], [670.0, 900.0, 2500.0])
    assert_array_equal(checked["brightness_temperature"][0], [261.0, 262.0, 260.0])
    without = few([2500.0, 670.0, 900.0])
    del without.attrs["channel_set"]
    with pytest.raises(SceneError, match="channels"):
        check_spectra(without)


@pytest.mark.parametrize("wavenumber", [[670.0, 670.0], [670.0, -1.0], [670.0, np.nan]])
def test_channels_of_a_set_have_a_wavenumber_each(wavenumber):
    with pytest.raises(SceneError, match="of HIRS, 3 channels must be a positive number"):
        check_spectra(few(wavenumber))
    with pytest.raises(SceneError, match="have no wavenumber each"):
        check_spectra(few(wavenumber).drop_vars("wavenumber"))


def test_values_of_a_set_are_compared_with_their_units_where_it_has_a_window():
    celsius = few([670.0, 900.0])
    celsius["brightness_temperature"] = celsius["brightness_temperature"] - 273.15
    celsius["brightness_temperature"].attrs["units"] = "K"
    with pytest.raises(SceneError, match="degrees Celsius"):
        check_spectra(celsius)
    check_spectra(celsius.isel(channel=[0]))
