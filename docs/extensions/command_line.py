"""Directives that write the reference of the command line from the commands themselves."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from undulatus.cli import main

SHARED = {option.name for option in main.params}
"""Options of every command, which are listed once."""


def all_commands(group: click.Group = main, path: str = "undulatus") -> Iterator[tuple[str, Any]]:
    """Yield the name and the command of everything that can be typed."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _paragraph(text: str) -> nodes.paragraph:
    """Return a paragraph in which options are code, so that their two hyphens stay two."""
    pieces = re.split(r"(--[a-z][a-z-]*(?:=[\w.,-]*\w)?)", text)
    inner = [nodes.literal(x, x) if x.startswith("--") else nodes.Text(x) for x in pieces if x]
    return nodes.paragraph("", "", *inner)


def _paragraphs(text: str) -> list[nodes.paragraph]:
    parts = inspect.cleandoc(text).split("\n\n")
    return [_paragraph(part.replace("\b", "").replace("\n", " ")) for part in parts]


def _option_text(option: click.Parameter, context: click.Context) -> tuple[str, str] | None:
    record = option.get_help_record(context)
    if record is None:
        return None
    return record[0], " ".join(record[1].split())


def _options(pairs: list[tuple[str, str]]) -> nodes.Node:
    listed = nodes.definition_list(classes=["options"])
    for name, text in pairs:
        term = nodes.term("", "", nodes.literal(name, name))
        body = nodes.definition("", _paragraph(text))
        listed += nodes.definition_list_item("", term, body)
    return listed


class CommandsDirective(Directive):
    """A section for each command: how it is called, what it does, its options."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        return [self._section(name, command) for name, command in all_commands()]

    def _section(self, name: str, command: click.Command) -> nodes.section:
        context = click.Context(command, info_name=name)
        section = nodes.section(ids=[name.replace(" ", "-")], names=[name])
        section += nodes.title("", "", nodes.literal(name, name))
        usage = " ".join([name, *command.collect_usage_pieces(context)])
        section += nodes.literal_block(usage, usage, language="text")
        section += _paragraphs(command.help or "")
        found = [
            _option_text(option, context)
            for option in command.get_params(context)
            if isinstance(option, click.Option)
            and option.name not in SHARED
            and "--help" not in option.opts
        ]
        if any(found):
            section += _options([pair for pair in found if pair])
        self.state.document.note_explicit_target(section)
        return section


class SharedOptionsDirective(Directive):
    """The options that all commands share."""

    def run(self) -> list[nodes.Node]:
        """Return the list."""
        context = click.Context(main)
        found = [_option_text(o, context) for o in main.get_params(context)]
        return [_options([pair for pair in found if pair])]


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("commands", CommandsDirective)
    app.add_directive("shared-options", SharedOptionsDirective)
    return {"parallel_read_safe": True}
