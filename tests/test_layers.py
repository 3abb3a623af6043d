"""Imports go one way, and each foreign library has its home."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import undulatus

ROOT = Path(undulatus.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

MAY_IMPORT = {  # besides itself and EVERYWHERE
    "errors": set(),
    "_system": set(),
    "_files": set(),
    "_plain": set(),
    "_lazy": set(),
    "_daylight": set(),
    "_progress": set(),
    "gp": set(),
    "scenes": set(),
    "estimators": {"gp"},
    "regimes": {"estimators"},
    "storage": {"gp", "estimators", "regimes"},
    "datasets": set(),
    "products": {"scenes", "estimators", "regimes", "storage", "datasets"},
    "paper": {"scenes", "estimators", "regimes", "storage", "products"},
    "cli": {"scenes", "estimators", "regimes", "storage", "datasets", "products", "paper"},
    "__init__": {"estimators", "regimes", "storage"},
}
EVERYWHERE = {"errors", "_system", "_files", "_plain", "_lazy", "_daylight", "_progress"}
HOME_OF = {
    "sklearn": {"estimators", "regimes", "storage", "datasets", "products", "paper"},
    "xarray": {"scenes", "products", "paper"},
    "dask": {"scenes", "products", "paper", "gp"},
    "distributed": set(),
    "matplotlib": {"products", "paper"},
    "jinja2": {"products"},
    "click": {"cli"},
    "satpy": {"scenes"},
    "torch": {"gp"},
}
HOME_IN_GP = {"dask": "dask_data.py"}
IMPORTABLE = {
    ".".join(("undulatus", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(
        ".__init__"
    )
    for path in MODULES
}
HEAVY = {
    *("numpy", "scipy", "sklearn", "pandas", "xarray", "dask", "rasterio", "rich", "safetensors"),
    *("matplotlib", "torch", "zarr"),
}
"""What takes long to import, and neither the package nor the help of a command needs."""
HELP = "from undulatus.cli import main\nsay = lambda *words: main(words, standalone_mode=False)\n"
RUNS_WHAT_IT_READS = {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}

each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))


def layer_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports_of(path):
    """Every name imported in a file, at any depth of it; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@each_module
def test_imports_respect_the_layers(path):
    layer = layer_of(path)
    for name in imports_of(path):
        package, *inner = name.split(".")
        if package == "undulatus":
            allowed = MAY_IMPORT[layer] | {layer} | EVERYWHERE
            assert inner[0] in allowed, f"{layer} imports {name}"
        elif package in HOME_OF:
            assert layer in HOME_OF[package], f"{layer} imports {name}"


BENCHMARKS = sorted((ROOT.parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_benchmarks_import_what_there_is(path):
    # Not imported themselves: some need packages that tests do without.
    for name in imports_of(path):
        module, _, attribute = name.rpartition(".")
        if name.startswith("undulatus.") and module in IMPORTABLE:
            assert hasattr(importlib.import_module(module), attribute), name
        elif name.startswith("undulatus."):
            assert name in IMPORTABLE


@each_module
def test_dask_enters_the_mathematics_through_one_module(path):
    if layer_of(path) == "gp":
        for name in imports_of(path):
            package = name.split(".")[0]
            assert HOME_IN_GP.get(package, path.name) == path.name, f"{path.name} imports {name}"


@each_module
def test_no_module_imports_a_format_that_runs_what_it_reads(path):
    found = {name.split(".")[0] for name in imports_of(path)}
    assert not found & RUNS_WHAT_IT_READS


@pytest.mark.parametrize(
    ("what", "spared"),
    [
        (
            "from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures, load_model, save_model",
            {"xarray", "dask", "matplotlib", "click", "rich", "torch"},
        ),
        ("import undulatus", HEAVY),
        (f"{HELP}say('--version')", HEAVY),
        (f"{HELP}say('--help')\nfor name in main.commands: say(name, '--help')", HEAVY),
        ("from undulatus import scenes", {"satpy", "matplotlib", "torch"}),
    ],
    ids=["classifiers", "package", "version", "help", "scenes"],
)
def test_a_part_loads_without_the_libraries_it_does_not_need(what, spared):
    code = f"import sys\n{what}\nprint('LOADED', *sys.modules)\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in run.stdout.rpartition("LOADED")[2].split()}
    assert "undulatus" in loaded
    assert not loaded & spared
