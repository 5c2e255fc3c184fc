"""Which C++ compiler there is: the one CXX names, else the first that is installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from dataclasses import dataclass

from phalanx.errors import BuildError
from phalanx.settings import compiler_command

_USUAL = ("g++", "c++", "clang++")
_ANSWER_TIMEOUT_S = 20


@dataclass(frozen=True)
class Compiler:
    """A compiler that can be started.

    Attributes:
        command: How it is called.
        version: The first line of what it says about itself, or "".
    """

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """Find the compiler.

    Raises:
        BuildError: There is none.
    """
    asked = compiler_command()
    if asked:
        command = _split(asked)
        if not command or shutil.which(command[0]) is None:
            raise BuildError(
                f'virtual devices need a C++ compiler, and CXX is "{asked}", which can\'t be started\n'
                "  do       set CXX to a compiler that is there, such as g++, or unset it"
            )
        return Compiler(command, _version(command))
    for name in _USUAL:
        if shutil.which(name) is not None:
            return Compiler((name,), _version((name,)))
    raise BuildError(
        f"virtual devices need a C++ compiler to be built, and there is none ({', '.join(_USUAL)} were looked for)\n"
        "  do       install one (apt install g++, dnf install gcc-c++, conda install gxx), or set CXX to yours"
    )


def _split(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError:  # a quote without its other half
        return ()


def _version(command: tuple[str, ...]) -> str:
    try:
        answer = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.partition("\n")[0].strip()
