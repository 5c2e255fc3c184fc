"""Find the C++ compiler (the one that CXX names, else the first that is installed) and run it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx.errors import BuildError
from phalanx.settings import compiler_command
from phalanx.virtual_gpus.building.progress import Progress
from phalanx.virtual_gpus.building.recipe import Recipe

COMPILE_TIMEOUT_S = 600.0
_BETWEEN_LOOKS_S = 0.1
_LINES_SHOWN = 12
_WIDEST = 200
_NO_SPACE = "No space left on device"
_USUAL = ("g++", "c++", "clang++")
_ANSWER_TIMEOUT_S = 20


@dataclass(frozen=True)
class Compiler:
    """A compiler that can be started.

    Attributes:
        command: The command that starts it.
        version: The first line that it prints for --version, or "".
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
    except ValueError:  # an unclosed quote
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


def compile_library(recipe: Recipe, compiler: Compiler, output: Path, log: Path, progress: Progress) -> float:
    """Compile the sources and return how many seconds it took.

    Args:
        recipe: What to build.
        compiler: The compiler to use.
        output: The library to write.
        log: A file for the compiler's output.
        progress: Shows how long the build has run.

    Raises:
        BuildError: The compiler failed, or took too long.
        OSError: The log can't be written.
    """
    command = [*compiler.command, *recipe.arguments(output)]
    started = time.monotonic()
    with log.open("w") as stream:
        stream.write(f"{compiler.version}\n{shlex.join(command)}\n")
        stream.flush()
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise BuildError(f"the compiler {compiler.command[0]} can't be started: {error.strerror}") from error
        try:
            _watch(process, started, progress)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode != 0 or not output.is_file():
        raise _explain(process.returncode, compiler, log)
    return time.monotonic() - started


def _watch(process: subprocess.Popen[bytes], started: float, progress: Progress) -> None:
    while process.poll() is None:
        elapsed_s = time.monotonic() - started
        progress.show("building the virtual devices for this torch, once, about half a minute", elapsed_s)
        if elapsed_s > COMPILE_TIMEOUT_S:
            raise BuildError(f"the compiler had not built the virtual devices within {COMPILE_TIMEOUT_S:.0f} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_BETWEEN_LOOKS_S)


def _explain(code: int, compiler: Compiler, log: Path) -> BuildError:
    said = log.read_text(errors="replace").splitlines()[2:]
    name = " ".join(compiler.command)
    if any(_NO_SPACE in line for line in said):
        return BuildError(
            "the virtual devices could not be built: no space left on the device\n"
            f"  do       make room in {log.parent.parent} and in the folder for temporary files (TMPDIR)"
        )
    ended = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    hint = "  (signal 9 is what a machine short of memory sends)\n" if code == -signal.SIGKILL else ""
    shown = "".join(f"  {line}\n" for line in _most_telling(said))
    return BuildError(
        f"the virtual devices could not be built: {name} {ended}\n{hint}{shown}"
        "  do       try another compiler with CXX: g++ 11 or clang++ 14 and newer can do C++20"
    )


def _most_telling(said: list[str]) -> list[str]:
    """Return the errors, or else the last lines: a compiler may print thousands of notes about templates."""
    errors = [line for line in said if "error:" in line or "undefined reference" in line]
    lines = errors[:_LINES_SHOWN] if errors else said[-_LINES_SHOWN:]
    return [line if len(line) <= _WIDEST else f"{line[:_WIDEST]} ..." for line in lines]
