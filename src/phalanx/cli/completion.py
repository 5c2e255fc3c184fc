"""What the Tab key offers for the words of a command. Nothing here imports torch or the program."""

from __future__ import annotations

import contextlib
import pkgutil
import shlex
import sys
from pathlib import Path

import click
from click.shell_completion import CompletionItem


class ProgramCommand(click.Command):
    """A command whose options come before its PROGRAM: options after it belong to the program, and are unknown here."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Offer options until the program is named."""
        return [] if ctx.params.get("program") else super().shell_complete(ctx, incomplete)


def complete_program(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer files, or modules after -m."""
    return _modules(incomplete) if context.params.get("is_module") else [_files(incomplete)]


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer files."""
    return [_files(incomplete)]


def complete_folder(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell offer folders."""
    return [CompletionItem(incomplete, type="dir")]


def complete_gpu_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer what virtual GPUs can claim to be."""
    from phalanx.gpu_models import GPU_MODELS

    return [CompletionItem(key) for key in GPU_MODELS if key.startswith(incomplete.lower())]


def complete_job(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the jobs that run, or else files: a flight record is a job too."""
    names: list[str] = []
    with contextlib.suppress(Exception):  # a person who types a command can't do anything about an error
        from phalanx.diagnosis.job_list import find_jobs

        names = [_word_for(job.name, job.record.pid or min(job.pids)) for job in find_jobs()]
    # Before the names: the script for bash forgets what was offered before it gets to the files.
    found = [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
    return [_files(incomplete), *found]


def _word_for(name: str, pid: int) -> str:
    """Return the name of a job, or its process if the name would have to be quoted."""
    return name if name and shlex.quote(name) == name else str(pid)


def _files(incomplete: str) -> CompletionItem:
    return CompletionItem(incomplete, type="file")


def _modules(incomplete: str) -> list[CompletionItem]:
    """Return the modules that python -m would find: those in this folder first."""
    package, dot, _ = incomplete.rpartition(".")
    folders = [str(Path(folder, *package.split("."))) for folder in dict.fromkeys([str(Path.cwd()), *sys.path])]
    names = (module.name for module in pkgutil.iter_modules(folders, prefix=package + dot))
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]
