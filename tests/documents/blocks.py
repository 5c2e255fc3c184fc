"""The code blocks of README.md and docs/*.md, with what a hidden comment above a block says about it.

A comment is an HTML comment on a line of its own, directly above the block. There may be several:

    not run: REASON    the block can't run in a test
    saved as FILE      later blocks of the page find the block in this file
    inside NAME        the block runs inside the text of tests/documents/surroundings/NAME, in place of the line BLOCK
    exits with N       the exit code of the block, if it is not 0
    needs PACKAGE      the block is skipped where this Python package is not installed
    printed by FILE    tests/documents/symptoms/FILE prints the lines of the block (a "text" block)
    printed            the lines of the block (a "text" block) are among what the last block before it has printed
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
# The languages of blocks that run, and of those that are only read.
RUN_LANGUAGES = ("python", "sh")
READ_LANGUAGES = ("text", "dockerfile", "toml")

_FENCE = re.compile(r"^ *```(.*)$")
_COMMENT = re.compile(r"^ *<!-- (.*) -->$")


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    page: str
    line: int
    language: str
    text: str
    comments: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def said(self, words: str) -> str | None:
        """Return what follows these words in the comment that begins with them; None if there is none."""
        found = [comment[len(words) :].lstrip(": ") for comment in self.comments if comment.startswith(words)]
        return found[0] if found else None

    @property
    def can_run(self) -> bool:
        """Whether it has a language that runs, and no comment says that it can't."""
        return self.language in RUN_LANGUAGES and self.said("not run") is None

    @property
    def has_tests(self) -> bool:
        """Whether pytest runs it."""
        text = self.text if self.said("inside") is None else whole_text(self)
        return self.language == "python" and re.search(r"^\s*def test_", text, re.MULTILINE) is not None


def whole_text(block: Block) -> str:
    """Return the text of a block inside its surroundings. Tests that name none get the imports of a test file."""
    name = block.said("inside") or ("test_file" if block.has_tests else None)
    if name is None:
        return block.text
    around = (ROOT / "tests/documents/surroundings" / name).read_text()
    (indent,) = re.findall(r"^( *)BLOCK$", around, re.MULTILINE)
    inner = "".join(indent + line if line.strip() else line for line in block.text.splitlines(keepends=True))
    return around.replace(f"{indent}BLOCK\n", inner)


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, in their order."""
    lines = page.read_text().splitlines()
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    assert len(fences) % 2 == 0, f"{page}: a code block does not end"
    return [_block(page, lines, begin, end) for begin, end in zip(fences[::2], fences[1::2], strict=True)]


def _block(page: Path, lines: list[str], begin: int, end: int) -> Block:
    fence = _FENCE.match(lines[begin])
    assert fence is not None
    text = "".join(line + "\n" for line in lines[begin + 1 : end])
    return Block(str(page.relative_to(ROOT)), begin + 1, fence[1].strip(), text, _comments_above(lines, begin))


def _comments_above(lines: list[str], begin: int) -> tuple[str, ...]:
    comments: list[str] = []
    while begin > 0 and (comment := _COMMENT.match(lines[begin - 1])):
        comments.insert(0, comment[1])
        begin -= 1
    return tuple(comments)


ALL_BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def blocks_before(block: Block) -> list[Block]:
    """Return the blocks of the same page above this one."""
    return [other for other in ALL_BLOCKS if other.page == block.page and other.line < block.line]
