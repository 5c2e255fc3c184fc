"""The commands that pages show, read as the programs themselves read them."""

from __future__ import annotations

import re
import shlex

import click

from phalanx.cli.main import main as phalanx
from phalanx_tools.__main__ import main as dev
from tests.documents.blocks import ROOT

_ASSIGNMENT = re.compile(r"\w+=")


def commands_of_lines(text: str) -> list[list[str]]:
    """Return the words of each command line that starts phalanx, ./dev or make."""
    lines = text.replace("\\\n", " ").splitlines()
    split = (re.split(r"&&|\|\||[|;&]", line.removeprefix("$ ")) for line in lines)
    commands = (_words(command) for pieces in split for command in pieces)
    return [words for words in commands if words and words[0] in _READERS]


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a sentence with an apostrophe
        return []
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]
    return words


def unknown_in(words: list[str]) -> str | None:
    """Return what a program does not know of its command line: an option, a subcommand, a target."""
    return _READERS[words[0]](words[1:])


def _unknown_to_phalanx(words: list[str]) -> str | None:
    return _unknown_to(phalanx, words)


def _unknown_to_dev(words: list[str]) -> str | None:
    return _unknown_to(dev, words)


def _unknown_to(command: click.Command, words: list[str]) -> str | None:
    context = click.Context(command, **command.context_settings)
    try:
        _, rest, _ = command.make_parser(context).parse_args(list(words))
    except click.NoSuchOption as error:
        return f"no option {error.option_name}"
    except click.UsageError:
        return None  # the page names an option without its value
    if not isinstance(command, click.Group) or not rest:
        return None
    below = command.get_command(context, rest[0])
    return f"no command {rest[0]}" if below is None else _unknown_to(below, rest[1:])


def _unknown_to_make(words: list[str]) -> str | None:
    makefile = (ROOT / "Makefile").read_text()
    targets = (word for word in words if re.fullmatch(r"[a-z]+", word))
    unknown = [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
    return f"no target {unknown[0]}" if unknown else None


_READERS = {"phalanx": _unknown_to_phalanx, "./dev": _unknown_to_dev, "make": _unknown_to_make}
