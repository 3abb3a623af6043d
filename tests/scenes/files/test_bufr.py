"""BUFR of sounders: messages that eccodes encodes, read back; and bad ones, refused by name."""

import subprocess
import sys
import warnings
from functools import cache

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.datasets import load_hirs_orbit, load_iasi_spectra
from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files import bufr, bufr_messages
from undulatus.scenes.files.bufr import open_bufr
from undulatus.scenes.files.opening import open_spectra
from undulatus.scenes.radiometry import brightness_temperature
from undulatus.scenes.spectra import check_spectra

eccodes = pytest.importorskip("eccodes")

WHEN = {"year": 2020, "month": 5, "day": 6, "hour": 7, "minute": 8, "second": 9.5}


def encode(template, subsets, keys, *, repeats=(), compressed=True, version=38):
    """Return a message of a template, in which other elements are missing."""
    handle = eccodes.codes_bufr_new_from_samples("BUFR4")
    try:
        eccodes.codes_set(handle, "masterTablesVersionNumber", version)
        eccodes.codes_set(handle, "compressedData", int(compressed))
        eccodes.codes_set(handle, "numberOfSubsets", subsets)
        if repeats:
            name = "inputExtendedDelayedDescriptorReplicationFactor"
            eccodes.codes_set_array(handle, name, list(repeats) * (1 if compressed else subsets))
        eccodes.codes_set_array(handle, "unexpandedDescriptors", [template])
        for key, value in keys.items():
            if np.ndim(value):
                eccodes.codes_set_array(handle, key, np.asarray(value, float))
            else:
                eccodes.codes_set(handle, key, value)
        eccodes.codes_set(handle, "pack", 1)
        return eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)


def place(n, latitude=10.0):
    """Return elements that every view has."""
    return {
        **WHEN,
        "latitude": latitude + np.arange(n) / 4,
        "longitude": 20.0,
        "solarZenithAngle": np.linspace(30.0, 100.0, n),
        "satelliteZenithAngle": 12.0,
    }


@cache
def hirs(n=4, compressed=True, first=200.0, channels=19, satellite=None):
    """Return a message of HIRS: temperatures rise by one from channel to channel."""
    keys = place(n)
    if satellite is not None:
        keys["satelliteIdentifier"] = satellite
    for channel in range(1, channels + 1):
        keys[f"#{channel}#tovsOrAtovsOrAvhrrInstrumentationChannelNumber"] = channel
        # Wavenumbers fall as the numbers of channels rise.
        wavenumber = 2700.0 - 100.0 * channel
        name = "log10OfTemperatureRadianceCentralWaveNumberForAtovs"
        keys[f"#{channel}#{name}"] = float(np.log10(100.0 * wavenumber))
        keys[f"#{channel}#channelQualityFlagsForAtovs"] = 0
        keys[f"#{channel}#brightnessTemperature"] = first + channel + np.arange(n) / 10
    keys["channelRadiance"] = np.arange(n)
    keys["scanLineQualityFlagsForAtovs"] = 0
    if not compressed:
        return b"".join(_one_by_one(310008, n, keys))
    return encode(310008, n, keys)


def _one_by_one(template, n, keys):
    for row in range(n):
        own = {key: value[row] if np.ndim(value) else value for key, value in keys.items()}
        yield encode(template, 1, own, compressed=False)


def write(path, *messages):
    path.write_bytes(b"".join(messages))
    return path


def values_of(opened):
    name = next(n for n in ("radiance", "brightness_temperature", "scores") if n in opened)
    return opened[name].values


# IASI


@cache
def iasi(n=2, numbers=tuple(range(1, 8701)), bad=()):
    """Return a message of all channels, and its scaled radiances, (n, channels)."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1000, 9000, (n, len(numbers)))
    keys = {**place(n), "#1#gqisFlagQual": [float(row in bad) for row in range(n)]}
    # The first three ranges are of the flags.
    for row, (first, last, power) in enumerate([(1, 3340, 7), (3341, 8461, 8)], start=1):
        keys[f"#{row + 3}#startChannel"], keys[f"#{row + 3}#endChannel"] = first, last
        keys[f"#{row}#channelScaleFactor"] = power
    for i, number in enumerate(numbers, start=1):
        keys[f"#{i}#channelNumber"] = int(number)
        keys[f"#{i}#scaledRadiance"] = counts[:, i - 1]
    keys["cloudAmountInSegment"] = [0.0, 40.0][:n]
    return encode(340007, n, keys), counts


def test_radiances_of_iasi_are_counts_times_the_power_of_ten_of_their_range(tmp_path):
    message, counts = iasi()
    opened = check_spectra(open_spectra(write(tmp_path / "a.bufr", message)))
    assert_array_equal(opened["wavenumber"], WAVENUMBERS)
    power = np.where(np.arange(CHANNELS) < 3340, 7.0, 8.0)
    # From W m-2 sr-1 (m-1)-1; single precision.
    assert_allclose(opened["radiance"], counts[:, :CHANNELS] * 10.0 ** (5 - power), rtol=1e-6)
    assert_array_equal(opened["cloudy"], [0, 1])
    assert_array_equal(opened["day"], [1, 0])
    assert opened["time"].values[0] == np.datetime64("2020-05-06T07:08:09.500")
    assert opened.attrs["sensor"] == "iasi"
    assert "channel_set" not in opened.attrs


def test_channels_in_another_order_come_out_by_wavenumber(tmp_path):
    numbers = (*range(CHANNELS, 0, -1), *range(CHANNELS + 1, 8701))
    message, counts = iasi(numbers=numbers)
    opened = open_bufr(write(tmp_path / "a.bufr", message))
    assert_array_equal(opened["channel_number"], np.arange(1, CHANNELS + 1))
    assert_allclose(opened["radiance"][:, 0], counts[:, CHANNELS - 1] * 1e-2, rtol=1e-6)


def test_a_spectrum_that_its_producer_calls_bad_has_no_values_and_is_counted(tmp_path):
    opened = open_bufr(write(tmp_path / "a.bufr", iasi(bad=(1,))[0]))
    assert opened.attrs["flagged_spectra"] == 1
    assert_array_equal(opened["flagged"], [0, 1])
    missing = np.isnan(opened["radiance"].values)
    assert_array_equal(missing.all(axis=1), [False, True])
    assert not missing[0].any()


@cache
def iasi_selection(n=2):
    """Return a message of four channels, and of 2, 3 and 2 components."""
    keys = place(n)
    keys["#4#startChannel"], keys["#4#endChannel"] = 1, CHANNELS
    keys["#1#channelScaleFactor"] = 7
    for i, number in enumerate((16, 300, 1000, 8000), start=1):
        keys[f"#{i}#channelNumber"] = number
        keys[f"#{i}#scaledRadiance"] = 5000 + i + np.arange(n)
    for band, step in enumerate((0.5, 0.25, 2.0), start=1):
        keys[f"#{band}#scoreQuantizationFactor"] = step
    for i in range(1, 8):
        keys[f"#{i}#nonNormalizedPrincipalComponentScore"] = 10 * i + np.arange(n)
    return encode(340008, n, keys, repeats=(4, 2, 3, 2))


def test_a_selection_of_channels_is_named_and_checked_as_one(tmp_path):
    opened = check_spectra(open_bufr(write(tmp_path / "a.bufr", iasi_selection())))
    assert opened.attrs["channel_set"] == "IASI, 4 channels"
    assert_allclose(opened["wavenumber"], 645.0 + 0.25 * np.array([15, 299, 999, 7999]))
    assert_allclose(opened["radiance"], [[50.01, 50.02, 50.03, 50.04]] * 2, atol=0.011)


def test_scores_are_read_on_request_and_multiplied_by_the_step_of_their_band(tmp_path):
    opened = open_bufr(write(tmp_path / "a.bufr", iasi_selection()), measured="scores")
    assert opened["scores"].dims == ("sample", "component")
    steps = np.repeat([0.5, 0.25, 2.0], [2, 3, 2])
    assert_allclose(opened["scores"][0], 10 * np.arange(1, 8) * steps)
    with pytest.raises(SceneError, match="has 7 components; expected 300"):
        check_spectra(opened)


def test_scores_that_are_not_there_are_an_error(tmp_path):
    path = write(tmp_path / "a.bufr", iasi()[0])
    with pytest.raises(SceneError, match=r"a\.bufr, message 1: it holds no principal comp"):
        open_bufr(path, measured="scores")


# CrIS, AIRS, HIRS


def test_channels_of_cris_have_the_wavenumbers_of_their_bands(tmp_path):
    keys = {**place(2), "#1#fieldOfViewQualityFlags": [0.0, float(1 << 17)]}
    bands = [(65000, 109500, 1, 713), (121000, 175000, 714, 1146), (215500, 255000, 1147, 1305)]
    for i, (low, high, first, last) in enumerate(bands):
        keys[f"#{i + 1}#band"] = i
        keys[f"#{2 * i + 1}#waveNumber"], keys[f"#{2 * i + 2}#waveNumber"] = low, high
        keys[f"#{i + 1}#startChannel"], keys[f"#{i + 1}#endChannel"] = first, last
    for i, number in enumerate((1, 713, 714, 1305), start=1):
        keys[f"#{i}#channelNumber"] = number
        keys[f"#{i}#channelRadiance"] = 0.05 * i
    opened = open_bufr(write(tmp_path / "a.bin", encode(310060, 2, keys, repeats=(4,))))
    assert_allclose(opened["wavenumber"], [650.0, 1095.0, 1210.0, 2550.0])
    assert_allclose(opened["radiance"][0], [50.0, 100.0, 150.0, 200.0], rtol=1e-6)
    # The second bit of the flags: invalid data.
    assert_array_equal(opened["flagged"], [0, 1])


def test_the_microwave_channels_beside_airs_are_left_out(tmp_path):
    # Those have places of their own, the second and third in a view.
    keys = {f"#1#{name}": value for name, value in place(3).items()}
    name = "log10OfTemperatureRadianceCentralWaveNumberForAtovs"
    for i, wavenumber in enumerate((650.0, 700.0), start=1):
        keys[f"#{i}#channelNumber"] = i
        keys[f"#{i}#{name}"] = float(np.log10(100.0 * wavenumber))
        keys[f"#{i}#brightnessTemperature"] = 220.0 + i
    for i in range(3, 27):
        keys[f"#{i}#channelNumber"] = i
        keys[f"#{i}#{name}"] = 2.0
    opened = open_bufr(write(tmp_path / "a.bufr", encode(310050, 3, keys, repeats=(2,))))
    assert_allclose(opened["wavenumber"], [650.0, 700.0], rtol=1e-6)
    assert_allclose(opened["brightness_temperature"], [[221.0, 222.0]] * 3)
    assert opened.attrs["channel_set"] == "AIRS, 2 channels"


def test_temperatures_of_hirs_come_by_wavenumber_with_the_visible_channel(tmp_path):
    opened = check_spectra(open_bufr(write(tmp_path / "a.bufr", hirs())))
    assert_array_equal(opened["channel_number"], np.arange(19, 0, -1))
    assert_allclose(opened["wavenumber"], 2700.0 - 100.0 * np.arange(19, 0, -1), rtol=1e-6)
    expected = 200.0 + np.arange(19, 0, -1) + np.arange(4)[:, None] / 10
    assert_allclose(opened["brightness_temperature"], expected, atol=0.006)
    assert_array_equal(opened["visible_radiance"], np.arange(4))


def test_messages_are_read_compressed_or_not_alone_or_together(tmp_path):
    whole = values_of(open_bufr(write(tmp_path / "a.bufr", hirs())))
    single = open_bufr(write(tmp_path / "b.bufr", hirs(compressed=False)))
    assert_array_equal(values_of(single), whole)
    # With headers of bulletins before and between messages.
    header = b"\r\n0001 IEMX01 EUMP 221200\r\n"
    mixed = write(tmp_path / "c", header, hirs(compressed=False), header, hirs())
    assert_array_equal(values_of(open_spectra(mixed)), np.concatenate([whole, whole]))


def test_several_views_in_a_message_without_compression_are_read(tmp_path):
    keys = {f"#{row}#channelRadiance": 4 + row for row in (1, 2, 3)}
    keys |= {f"#{row}#latitude": 10.0 * row for row in (1, 2, 3)}
    path = write(tmp_path / "a.bufr", encode(310008, 3, keys, compressed=False))
    decoded = bufr_messages.decode(bufr_messages.find_messages(path)[0])
    assert decoded.values.shape == (3, 156)
    assert_array_equal(decoded.first(14045), [5.0, 6.0, 7.0])
    assert_allclose(decoded.first(5001), [10.0, 20.0, 30.0], rtol=1e-12)


def test_blocks_of_any_size_hold_the_same_spectra(tmp_path, monkeypatch):
    path = write(tmp_path / "a.bufr", hirs(), hirs(7, first=210.0), hirs(2), hirs(5))
    whole = open_bufr(path)
    assert whole["brightness_temperature"].data.numblocks == (1, 1)
    monkeypatch.setattr(bufr, "SPECTRA_PER_BLOCK", 6)
    small = open_bufr(path)
    assert small["brightness_temperature"].data.chunks[0] == (11, 2, 5)
    xr.testing.assert_equal(small.compute(), whole.compute())


def test_flagged_lines_and_channels_of_hirs_have_no_values(tmp_path):
    keys = {**place(3), "scanLineQualityFlagsForAtovs": [0.0, float(1 << 14), float(1 << 16)]}
    name = "log10OfTemperatureRadianceCentralWaveNumberForAtovs"
    for channel in range(1, 20):
        keys[f"#{channel}#tovsOrAtovsOrAvhrrInstrumentationChannelNumber"] = channel
        keys[f"#{channel}#{name}"] = float(np.log10(100.0 * (600.0 + 100.0 * channel)))
        keys[f"#{channel}#brightnessTemperature"] = 250.0
    keys["#5#channelQualityFlagsForAtovs"] = float(1 << 22)
    opened = open_bufr(write(tmp_path / "a.bufr", encode(310008, 3, keys)))
    # Bit 10, not calibrated, counts; bit 8, calibrated with few temperatures, does not.
    assert_array_equal(opened["flagged"], [0, 1, 0])
    missing = np.isnan(opened["brightness_temperature"].values)
    assert missing[1].all()
    assert_array_equal(np.flatnonzero(missing[0]), [4])


# Bad input


def test_microwave_sounders_are_refused(tmp_path):
    keys = place(2)
    for channel in range(1, 20):
        keys[f"#{channel}#tovsOrAtovsOrAvhrrInstrumentationChannelNumber"] = 27 + channel
        keys[f"#{channel}#log10OfTemperatureRadianceCentralWaveNumberForAtovs"] = 2.0
    path = write(tmp_path / "a.bufr", encode(310008, 2, keys))
    with pytest.raises(SceneError, match=r"message 1: its channels are microwaves"):
        open_bufr(path)


def test_another_template_is_named(tmp_path):
    synop = encode(307080, 1, {"latitude": 10.0}, compressed=False)
    path = write(tmp_path / "a.bufr", hirs(), synop)
    with pytest.raises(SceneError, match=r"a\.bufr, message 2: it is of the template 307080"):
        open_bufr(path)


def test_elements_of_no_sounder_are_named(tmp_path):
    path = write(tmp_path / "a.bufr", encode(1007, 1, {"satelliteIdentifier": 4}))
    with pytest.raises(SceneError, match=r"message 1: .* another template .* 001007"):
        open_bufr(path)


def test_messages_of_several_instruments_or_channels_do_not_mix(tmp_path):
    path = write(tmp_path / "a.bufr", hirs(), iasi_selection())
    with pytest.raises(SceneError, match=r"message 2: it holds IASI .* message 1 HIRS"):
        open_bufr(path)
    path = write(tmp_path / "b.bufr", hirs(), hirs(channels=18))
    with pytest.raises(SceneError, match=r"message 2: (it holds HIRS|its channels)"):
        open_bufr(path)


def test_satellites_do_not_mix_in_a_file(tmp_path):
    two = hirs(satellite=3), hirs(satellite=4)
    assert open_bufr(write(tmp_path / "a.bufr", two[1])).attrs["platform_name"] == "Metop-A"
    words = r"satellites, whose instruments differ: Metop-B, Metop-A\. Sort the messages"
    with pytest.raises(SceneError, match=rf"b\.bufr, message 2: .* {words}"):
        open_bufr(write(tmp_path / "b.bufr", *two))
    in_one = hirs.__wrapped__(satellite=np.array([4, 4, 209, 4]))
    with pytest.raises(SceneError, match=r"message 1: .* Metop-A, NOAA-18"):
        open_bufr(write(tmp_path / "c.bufr", in_one))


def test_files_of_several_instruments_do_not_mix(tmp_path):
    paths = [
        write(tmp_path / "a.bufr", hirs()),
        write(tmp_path / "b.bufr", iasi_selection()),
    ]
    with pytest.raises(SceneError, match=r"a\.bufr, b\.bufr do not fit together"):
        open_spectra(paths)
    pair = open_spectra([paths[0], paths[0]])
    assert pair.sizes["sample"] == 8


def test_a_file_cut_anywhere_is_named_and_nothing_is_decoded(tmp_path, monkeypatch):
    message = hirs()
    monkeypatch.setattr(bufr, "decode", None)
    for length in {0, 1, 3, 4, 7, 8, 20, *range(30, len(message), 211), len(message) - 1}:
        path = write(tmp_path / "cut.bufr", message, message[:length])
        if length < 4:
            continue
        with pytest.raises(SceneError, match=r"cut\.bufr, message 2: .* cut off"):
            open_bufr(path)


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (7, 1, "edition 1"),
        (6, 10, "does not end with 7777|cut off"),
        (10, 200, "section"),
        (17, 0x80, "section|template"),
        (35, 0, "no subset"),
    ],
)
def test_a_header_that_lies_is_refused_before_eccodes_sees_it(
    tmp_path, monkeypatch, offset, value, words
):
    message = bytearray(hirs())
    message[offset] = value
    monkeypatch.setattr(bufr, "decode", None)
    with pytest.raises(SceneError, match=rf"lie\.bufr, message 1: .*({words})"):
        open_bufr(write(tmp_path / "lie.bufr", bytes(message)))


def test_a_section_of_another_length_is_refused(tmp_path):
    message = bytearray(hirs())
    message[8 + 22 + 2] += 2
    with pytest.raises(SceneError, match="message 1: its section"):
        open_bufr(write(tmp_path / "lie.bufr", bytes(message)))


@pytest.mark.parametrize(
    ("descriptor", "words"),
    [
        (b"\xfa\x66", "template 358102"),
        (b"\x81\xff", "operator 201255"),
        (b"\x45\x00", "repeats more elements"),
    ],
)
def test_descriptors_that_crash_eccodes_are_not_given_to_it(
    tmp_path, monkeypatch, descriptor, words
):
    message = bytearray(hirs())
    place = message.index(b"\xca\x08", 30)
    message[place : place + 2] = descriptor
    monkeypatch.setattr(bufr, "decode", None)
    with pytest.raises(SceneError, match=words):
        open_bufr(write(tmp_path / "odd.bufr", bytes(message)))


def test_what_a_message_says_of_its_quality_is_not_given_to_eccodes(tmp_path):
    message = hirs()
    template = message.index(b"\xca\x08", 30)
    # The operators 222000 and 236000, and a repetition that eccodes does not survive.
    more = b"\x96\x00\xa4\x00\x41\x20\x01\x1f"
    longer = bytearray(message[: template + 2] + more + message[template + 2 :])
    longer[4:7] = len(longer).to_bytes(3, "big")
    section = template - 7
    size = int.from_bytes(longer[section : section + 3], "big") + len(more)
    longer[section : section + 3] = size.to_bytes(3, "big")
    expected = values_of(open_bufr(write(tmp_path / "a.bufr", message)))
    found = values_of(open_bufr(write(tmp_path / "b.bufr", bytes(longer))))
    assert_array_equal(found, expected)


def test_what_is_not_bufr_is_told_so(tmp_path):
    with pytest.raises(SceneError, match=r"a\.bufr is empty"):
        open_bufr(write(tmp_path / "a.bufr", b""))
    with pytest.raises(SceneError, match=r"b\.bufr holds no BUFR message"):
        open_bufr(write(tmp_path / "b.bufr", b"CDF\x01" + bytes(200)))
    with pytest.raises(SceneError, match="cannot be read"):
        open_bufr(tmp_path / "absent.bufr")


def test_places_that_are_not_on_earth_are_refused(tmp_path):
    path = write(tmp_path / "a.bufr", encode(310008, 2, _hirs_at([10.0, 200.0])))
    with pytest.raises(SceneError, match="message 1: it has a latitude of 200 degrees"):
        open_bufr(path)


def _hirs_at(latitude):
    keys = {**place(len(latitude)), "latitude": latitude}
    for channel in range(1, 20):
        keys[f"#{channel}#tovsOrAtovsOrAvhrrInstrumentationChannelNumber"] = channel
        name = "log10OfTemperatureRadianceCentralWaveNumberForAtovs"
        keys[f"#{channel}#{name}"] = float(np.log10(100.0 * (600.0 + 100.0 * channel)))
    return keys


def test_a_missing_eccodes_is_told_with_the_way_to_install_it(tmp_path, monkeypatch):
    bufr_messages._quiet_eccodes.cache_clear()
    monkeypatch.setitem(sys.modules, "eccodes", None)
    with pytest.raises(SceneError, match=r"pip install 'undulatus\[sounder\]'"):
        open_bufr(write(tmp_path / "a.bufr", hirs()))
    bufr_messages._quiet_eccodes.cache_clear()


def test_a_message_that_eccodes_cannot_decode_is_named_in_silence(tmp_path, capfd):
    message = bytearray(hirs())
    # An old version of the tables, in which the templates of sounders do not exist.
    message[8 + 13] = 1
    message[8 + 14] = 0
    with pytest.raises(SceneError, match=r"a\.bufr, message 1: (eccodes cannot decode|it)"):
        open_bufr(write(tmp_path / "a.bufr", bytes(message)))
    assert capfd.readouterr().err == ""


FUZZ = """
import sys
from pathlib import Path
import numpy as np
from undulatus.errors import SceneError
from undulatus.scenes.files.bufr import open_bufr
sound, path = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
rng = np.random.default_rng(0)
for _ in range(80):
    message = bytearray(sound)
    end = 100 if rng.random() < 0.6 else len(message)
    for _ in range(rng.integers(1, 5)):
        message[rng.integers(0, end)] = rng.integers(0, 256)
    path.write_bytes(message)
    try:
        open_bufr(path)["brightness_temperature"].compute()
    except SceneError as error:
        assert str(path) in str(error)
print("done")
"""


def test_mutated_messages_are_read_or_refused_and_eccodes_prints_nothing(tmp_path):
    sound = write(tmp_path / "sound.bufr", hirs())
    command = [sys.executable, "-c", FUZZ, str(sound), str(tmp_path / "mutated.bufr")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


# Real files


@pytest.mark.network
def test_real_spectra_of_iasi_are_those_that_eccodes_gives_element_by_element(fetched):
    path = fetched(load_iasi_spectra).iasi
    spectra = check_spectra(open_spectra(path))
    assert spectra["radiance"].shape == (120, CHANNELS)
    assert spectra.attrs["flagged_spectra"] == 0
    with open(path, "rb") as file:
        handle = eccodes.codes_bufr_new_from_file(file)
    eccodes.codes_set(handle, "unpack", 1)
    # Ranges of scale factors as the message has them.
    for rank, number, power in ((1, 1, 7), (3000, 3000, 7), (8461, 8461, 9)):
        counts = eccodes.codes_get_array(handle, f"#{rank}#scaledIasiRadiance")
        assert eccodes.codes_get(handle, f"#{rank}#channelNumber") == number
        found = spectra["radiance"][:15, number - 1]
        assert_allclose(found, counts * 10.0 ** (5 - power), rtol=1e-6)
    eccodes.codes_release(handle)
    # The Antarctic plateau in November, seen in a window.
    window = brightness_temperature(900.0, spectra["radiance"].values[:, 1020].astype(float))
    assert 200.0 < window.min() < window.max() < 260.0
    assert spectra["latitude"].max() < -70.0


@pytest.mark.network
def test_real_samples_of_airs_and_cris_are_read_and_a_wrongly_written_one_is_refused(fetched):
    samples = fetched(load_iasi_spectra)
    airs = check_spectra(open_spectra(samples.airs))
    assert airs["brightness_temperature"].shape == (96, 324)
    assert 0 <= airs["cloud_cover"].min() <= airs["cloud_cover"].max() <= 100
    cris = check_spectra(open_spectra(samples.cris))
    assert cris["radiance"].shape == (15, 1305)
    assert_allclose(cris["wavenumber"][[0, 713, 1304]], [650.0, 1210.0, 2550.0])
    with pytest.raises(SceneError, match=r"iasi_241\.bufr, message 1: numbers of channels"):
        open_spectra(samples.iasi_selection)


@pytest.mark.network
def test_the_real_orbit_of_hirs_has_its_documented_contents(fetched):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        orbit = check_spectra(open_spectra(fetched(load_hirs_orbit).path))
    assert orbit["brightness_temperature"].shape == (51_968, 19)
    assert orbit.attrs["platform_name"] == "Metop-A"
    lit = orbit["solar_zenith_angle"].values < 70.0
    seen = np.isfinite(orbit["visible_radiance"].values)
    assert not seen[orbit["solar_zenith_angle"].values > 95.0].any()
    window = orbit["brightness_temperature"].values[:, orbit["channel_number"] == 8][:, 0]
    rows = lit & seen & np.isfinite(window)
    # Cloud is bright and cold.
    assert np.corrcoef(orbit["visible_radiance"].values[rows], window[rows])[0, 1] < -0.7
