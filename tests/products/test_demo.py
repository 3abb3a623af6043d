"""The demonstration, where no image can be fetched and where one can."""

from functools import partial

import matplotlib.image
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus import VFFGPC, load_model
from undulatus.errors import DatasetError
from undulatus.products import demo
from undulatus.products.demo import generate_clouds, run_demo

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture
def quick(monkeypatch):
    """The same demonstration with a small image and a short fit."""
    monkeypatch.setattr(demo, "generate_clouds", partial(generate_clouds, 32, 24))
    monkeypatch.setattr(demo, "VFFGPC", partial(VFFGPC, 8, max_iter=3))


@pytest.fixture
def no_index(monkeypatch):
    def fail():
        raise DatasetError("s2cloudless could not be fetched with pip: no index")

    monkeypatch.setattr(demo, "load_sentinel2_clouds", fail)


@pytest.mark.usefixtures("quick", "no_index")
def test_without_an_index_a_generated_image_is_used_and_called_so(tmp_path):
    lines = []
    result = run_demo(tmp_path / "new" / "folder", lines.append)
    assert result.generated
    assert "GENERATED" in result.source
    assert any("no index" in line for line in lines)
    assert any("GENERATED" in line for line in lines)


@pytest.mark.usefixtures("quick", "no_index")
def test_everything_that_is_said_to_be_written_is_there(tmp_path):
    result = run_demo(tmp_path, lambda line: None)
    assert set(result.written) == {"picture", "model"}
    assert matplotlib.image.imread(result.written["picture"]).shape[1] > 1000
    model = load_model(result.written["model"])
    image = generate_clouds(32, 24)
    assert_array_equal(model.classes_, [0, 1])
    assert model.predict(image.X).shape == (32 * 24,)


@pytest.mark.usefixtures("quick", "no_index")
def test_the_classifier_is_scored_next_to_its_baselines(tmp_path):
    scores = run_demo(tmp_path, lambda line: None).scores
    assert set(scores) == {"majority", "logistic regression", "VFF-GPC"}
    assert scores["VFF-GPC"].accuracy > scores["majority"].accuracy
    assert scores["VFF-GPC"].nll < scores["majority"].nll
    assert scores["majority"].auc == 0.5


@pytest.mark.usefixtures("quick")
def test_an_image_that_can_be_fetched_is_not_called_generated(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "load_sentinel2_clouds", lambda: generate_clouds(32, 24))
    lines = []
    result = run_demo(tmp_path, lines.append)
    assert not result.generated
    assert "real Sentinel-2" in result.source
    assert not any("GENERATED" in line for line in lines)


@pytest.mark.usefixtures("quick", "no_index")
def test_the_demonstration_prints_nothing_itself(tmp_path, capsys):
    run_demo(tmp_path, lambda line: None)
    assert capsys.readouterr() == ("", "")


def test_generated_clouds_have_the_form_of_the_real_image():
    data = generate_clouds(32, 24)
    assert data.X.shape == (32 * 24, 13)
    assert data.X.dtype == np.float32
    assert data.shape == (32, 24)
    assert set(np.unique(data.y)) == {0, 1}
    assert_array_equal(np.sort(np.concatenate([data.train, data.test])), np.arange(32 * 24))
    assert data.row[data.train].max() < 16 <= data.row[data.test].min()
    assert_array_equal(data.row * 24 + data.column, np.arange(32 * 24))


def test_one_seed_generates_one_image():
    one, same, other = (generate_clouds(32, 24, seed) for seed in (0, 0, 1))
    assert_array_equal(one.X, same.X)
    assert not np.array_equal(one.X, other.X)
