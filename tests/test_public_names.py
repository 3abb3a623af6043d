"""What a user can import, and what tab completion shows."""

import importlib.resources

import pytest

import undulatus
from undulatus import products, scenes

CONTRACT = {
    "undulatus": "GPC RFFGPC VFFGPC FourierFeatures save_model load_model datasets scenes "
    "products",
    "undulatus.regimes": "RegimeClassifier Regime DAYLIGHT",
    "undulatus.scenes": "open_scene open_spectra write_dataset synthetic_landmark check_scene",
    "undulatus.products": "fit_scene score_scene map_scene fit_spectra score_spectra maps",
}


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in CONTRACT.items() for name in names.split()],
)
def test_a_public_name_can_be_imported(module, name):
    assert hasattr(importlib.import_module(module), name)


def test_import_undulatus_alone_makes_scenes_and_products_reachable():
    assert undulatus.scenes is scenes
    assert undulatus.products is products


@pytest.mark.parametrize("package", [undulatus, products], ids=lambda p: p.__name__)
def test_every_name_that_tab_completion_shows_exists_and_is_no_internal(package):
    shown = dir(package)
    assert not [name for name in shown if name.startswith("_")]
    for name in shown:
        assert getattr(package, name) is not None


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'VFFGP'"):
        undulatus.VFFGP  # noqa: B018


def test_type_checkers_are_told_that_the_package_has_types():
    assert importlib.resources.files("undulatus").joinpath("py.typed").is_file()
