"""Every command line that the documentation shows is known, and runs where its data can be had.

Lines run as they are shown, in the order of ``IN_ORDER``, in one folder, on small data:
``simulate`` makes fewer days and spectra, and ``fit`` has fewer frequencies, unless the line says
otherwise. A line with a comment "needs ..." is of data that nobody can fetch; it is parsed only.
So is ``reproduce``, which takes minutes, and which ``tests/paper`` runs at a small scale.
"""

import re
import shlex
import shutil
import tomllib
from itertools import pairwise
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner
from tests.docs.pages import PAGES, ROOT

from undulatus.cli import main
from undulatus.products.demo import generate_clouds, write_example

IN_ORDER = (
    *("docs/index.md", "docs/howto/your-image.md", "docs/howto/improve.md"),
    "docs/howto/new-place.md",
    *("docs/reference/scores.md", "docs/reference/maps.md", "docs/howto/landmarks.md"),
    *("docs/howto/subset.md", "docs/howto/watch.md", "docs/howto/soundings.md"),
    *("docs/explanation/paper.md", "docs/howto/install.md", "README.md"),
)
"""Pages in the order in which a newcomer meets them: later lines use files of earlier ones."""

SMALL = {
    "simulate": {"landmarks": {"days": 4}, "sounder": {"samples": 400}},
    "fit": {"frequencies": 5, "n_estimators": 1, "method": "rff"},
    "watch": {"once": True, "settle": 0.0, "every": 0.1},
}

LONG = ("reproduce",)

OUTPUTS = ("-o", "--output", "--pages")

COMMANDS = [(page.name, line) for page in PAGES for line in page.commands()]

TYPED = list(dict.fromkeys(line for _, line in COMMANDS))


def arguments_of(line):
    return shlex.split(line, comments=True)


def comment_of(line):
    return line.partition("#")[2].strip()


def find_command(words):
    """Return the command that words name, and the words after its name."""
    command = main
    while isinstance(command, click.Group) and words:
        command, words = command.commands[words[0]], words[1:]
    return command, words


def parse(words):
    """Parse the words after ``undulatus``: options and values, whether or not files exist."""
    command, rest = find_command(words)
    context = click.Context(command, info_name=words[0])
    options, _, _ = command.make_parser(context).parse_args(list(rest))
    for option in command.params:
        value = options.get(option.name)
        if value is not None and not isinstance(option.type, click.Path):
            option.type_cast_value(context, value)


def test_command_lines_are_on_the_pages_that_run():
    with_lines = {name for name, line in COMMANDS if line.startswith("undulatus ")}
    assert with_lines <= set(IN_ORDER)


def test_only_blocks_of_commands_hold_commands():
    for page in PAGES:
        others = "\n".join(page.blocks("", "text", "bash", "console", "python"))
        lines = others.splitlines() + re.findall(r"(?m)^    (.*)$", page.text)
        found = [x for x in lines if re.match(r"undulatus [a-z]+ |pip install |make [a-z]+$", x)]
        assert not [x for x in found if not x.startswith("undulatus map: ")], page.name


@pytest.mark.parametrize("line", TYPED)
def test_a_command_line_is_known(line):
    words = arguments_of(line)
    if not words:
        return
    program, *rest = words
    if program == "undulatus":
        parse(rest)
    elif program == "pip":
        extras = re.findall(r"\[(\w+)\]", line)
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert set(extras) <= set(project["optional-dependencies"])
    elif program == "make":
        targets = re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text())
        assert rest[0] in targets
    else:
        assert program in ("cd",), f"nobody checks lines of {program}"


INLINE = [
    (page.name, found)
    for page in PAGES
    for found in re.findall(r"`(undulatus [^`]+|python -m benchmarks[^`]+|make \w+)`", page.text)
]


@pytest.mark.parametrize("line", sorted({line.replace("\n", " ") for _, line in INLINE}))
def test_a_command_in_a_sentence_is_known(line):
    program, *words = line.split()
    if program == "python":
        module = words[1].removeprefix("benchmarks.")
        assert (ROOT / "benchmarks" / f"{module}.py").exists()
        source = (ROOT / "benchmarks" / f"{module}.py").read_text()
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert all(option in source for option in options)
        return
    if program == "make":
        assert words[0] in re.findall(r"(?m)^(\w+):", (ROOT / "Makefile").read_text())
        return
    if words[0] in main.commands:
        command, rest = find_command(words)
        known = {name for option in command.params for name in option.opts}
        given = {word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)}
        assert given <= known | {"--help"}
    else:
        assert words[0] in ("COMMAND", "COMMAND:", "--version")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder as the demonstration leaves it, with an image that says where it is."""
    folder = tmp_path_factory.mktemp("newcomer")
    write_example(folder, generate_clouds())
    return folder


def prepare(words, folder):
    """Take away what an earlier line wrote to the same place, and bring what a person would."""
    for word, value in pairwise(words):
        path = folder / value
        if word in OUTPUTS and path.exists():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if words[0] in ("update", "adapt"):
        labels = folder / words[words.index("--label") + 1]
        points = pd.read_csv(labels)
        points.assign(**{"class": points["suggested"]}).to_csv(labels, index=False)
    if words[0] == "watch" and "--status" not in words:
        incoming = folder / "incoming"
        incoming.mkdir(exist_ok=True)
        shutil.copy(folder / "noon.nc", incoming)


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_every_command_line_runs_as_it_is_shown(folder, monkeypatch):
    monkeypatch.chdir(folder)
    pages = {page.name: page for page in PAGES}
    lines = dict.fromkeys(line for name in IN_ORDER for line in pages[name].commands())
    for line in lines:
        words = arguments_of(line)
        if not words or words[0] != "undulatus" or words[1] in LONG or "needs" in comment_of(line):
            continue
        prepare(words[1:], Path(folder))
        result = CliRunner().invoke(main, words[1:], default_map=SMALL)
        expected = 1 if "--status" in words and words[1] == "watch" else 0
        assert result.exit_code in {0, expected}, f"{line}\n{result.output}"
