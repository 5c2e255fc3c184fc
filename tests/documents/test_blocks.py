"""The commands and programs that README.md and docs/*.md show work as they stand there."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest
import torch

from tests.cuda_simulator.build import has_compiler
from tests.documents.blocks import ALL_BLOCKS, PAGES, READ_LANGUAGES, ROOT, RUN_LANGUAGES, Block, whole_text
from tests.documents.commands import commands_of_lines, unknown_in
from tests.documents.running import lines_missing_in, prepare_folder, run_block, run_command, run_symptom

_KNOWN_COMMENTS = ("not run: ", "saved as ", "inside ", "exits with ", "needs ", "printed")
_TESTS = [block for block in ALL_BLOCKS if block.can_run and block.has_tests]
_SAVED = [block for block in ALL_BLOCKS if block.can_run and block.said("saved as") and not block.has_tests]
# A command that several pages show runs once.
_PROGRAMS = list(
    {whole_text(block): block for block in ALL_BLOCKS if block.can_run and block not in [*_TESTS, *_SAVED]}.values()
)


def _shown_output(block: Block) -> Block | None:
    """Return the block that shows what this one prints."""
    after = [other for other in ALL_BLOCKS if other.page == block.page and other.line > block.line]
    for other in after:
        if "printed" in other.comments:
            return other
        if other.can_run:
            break
    return None


def test_every_block_says_its_language() -> None:
    languages = (*RUN_LANGUAGES, *READ_LANGUAGES)
    assert [str(block) for block in ALL_BLOCKS if block.language not in languages] == []


def test_every_comment_on_a_block_is_known_and_gives_what_it_must() -> None:
    comments = [(str(block), comment) for block in ALL_BLOCKS for comment in block.comments]
    assert len(comments) > 10
    assert [(block, text) for block, text in comments if not text.startswith(_KNOWN_COMMENTS)] == []
    reasons = [(str(block), block.said("not run")) for block in ALL_BLOCKS if block.said("not run") is not None]
    assert [block for block, reason in reasons if len((reason or "").split()) < 3] == []


def test_every_block_runs_or_says_why_it_does_not() -> None:
    ran = {*map(str, _TESTS), *map(str, _SAVED), *(str(block) for block in ALL_BLOCKS if _has_twin(block))}
    shown = {str(block) for block in ALL_BLOCKS if block.language in RUN_LANGUAGES and block.said("not run") is None}
    assert len(shown) > 40
    assert shown - ran == set()


def _has_twin(block: Block) -> bool:
    return block.can_run and whole_text(block) in [whole_text(other) for other in _PROGRAMS]


def test_a_saved_program_is_run_by_a_later_block() -> None:
    for block in _SAVED:
        later = [
            other for other in ALL_BLOCKS if other.page == block.page and other.line > block.line and other.can_run
        ]
        name = Path(block.said("saved as") or "").stem
        assert [other for other in later if re.search(rf"\b{name}\b", other.text)], f"{block} is never run"


@pytest.mark.parametrize("block", [block for block in ALL_BLOCKS if block.language == "python"], ids=str)
def test_programs_are_python(block: Block) -> None:
    ast.parse(whole_text(block))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_have_only_options_that_exist(page: Path) -> None:
    text = page.read_text()
    shown = [block.text for block in ALL_BLOCKS if block.page == str(page.relative_to(ROOT)) and block.language == "sh"]
    inline = [
        " ".join(code.split()) for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    ]
    # In a sentence, "phalanx standing in for nccl" is no command.
    named = [
        words for words in commands_of_lines("\n".join(inline)) if words[0] != "phalanx" or words[1:2] != ["standing"]
    ]
    commands = [*commands_of_lines("\n".join(shown)), *named]
    assert [(words, unknown) for words in commands if (unknown := unknown_in(words))] == []


def test_an_option_that_does_not_exist_is_found() -> None:
    (words,) = commands_of_lines("PHALANX_TRACE=out phalanx run -n 4 --tarce out train.py --rate 1")
    assert unknown_in(words) == "no option --tarce"
    assert unknown_in(["phalanx", "diagnosis"]) == "no command diagnosis"
    assert unknown_in(["make", "tests"]) == "no target tests"


def test_a_line_that_is_not_printed_is_found() -> None:
    output = "one\nrank 1 (pid 77) waits 9.4 s\nlast"
    assert lines_missing_in(output, "rank 1 (pid 5) waits 12 s\n...\nlast") == []
    assert lines_missing_in(output, "rank 1 (pid 5) waits for long\n") == ["rank 1 (pid 5) waits for long"]
    assert lines_missing_in(output, "last\none") == ["one"]


@pytest.mark.slow
@pytest.mark.parametrize("block", _PROGRAMS, ids=str)
def test_commands_and_programs_work(block: Block, tmp_path: Path) -> None:
    if "virtual" in whole_text(block) and not has_compiler():
        pytest.skip("there is no g++, which builds virtual GPUs")
    if package := block.said("needs"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    code, output = run_block(block, tmp_path)
    assert code == int(block.said("exits with") or 0), output
    if shown := _shown_output(block):
        assert lines_missing_in(output, shown.text) == [], output


@pytest.mark.slow
def test_tests_on_the_pages_pass(tmp_path: Path) -> None:
    if not has_compiler():
        pytest.skip("there is no g++, which builds virtual GPUs")
    prepare_folder(tmp_path)
    for block in _TESTS:
        name = re.sub(r"\W", "_", str(block))
        (tmp_path / f"test_{name}.py").write_text(whole_text(block))
    code, output = run_command([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], tmp_path)
    assert code == 0, output


_SYMPTOMS = sorted({name for block in ALL_BLOCKS if (name := block.said("printed by "))})


def test_every_program_of_symptoms_is_shown() -> None:
    assert sorted(file.name for file in (ROOT / "tests/documents/symptoms").iterdir() if file.is_file()) == _SYMPTOMS


@pytest.mark.slow
@pytest.mark.parametrize("name", _SYMPTOMS)
def test_symptoms_are_shown_as_they_are_printed(name: str, tmp_path: Path) -> None:
    if name == "answers_of_torch.py" and torch.version.cuda is not None:
        pytest.skip("these are the answers of a torch for the CPU")
    output = run_symptom(name, tmp_path)
    shown = [block for block in ALL_BLOCKS if block.said("printed by ") == name]
    missing = {str(block): lines for block in shown if (lines := lines_missing_in(output, block.text))}
    assert missing == {}, output
