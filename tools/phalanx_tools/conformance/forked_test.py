"""One test of the suite on freshly forked ranks.

Stricter than the suite's own driver: every rank's end counts, not only rank 0's, and a test that calls torch.compile
has to have compiled something.
"""

from __future__ import annotations

import functools
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.settings import set_environment
from phalanx_tools.conformance.compiled import PASSED_VACUOUSLY
from phalanx_tools.conformance.heavy import num_threads_of
from phalanx_tools.conformance.outcomes import Outcome
from phalanx_tools.conformance.suite import Suite
from phalanx_tools.conformance.upstream_ranks import UPSTREAM_ERROR, End, UpstreamRanks

_VACUOUS = 12  # a rank's exit code when it called torch.compile and nothing was compiled
# Upstream ends these ranks on purpose and does not look at how they end.
_CODES_UNCHECKED = ("test_ddp_has_finalized",)


def run_test(suite: Suite, name: str, timeout_s: float) -> Outcome:
    """Run one test on the suite's number of ranks."""
    start = time.monotonic()
    reason = suite.reason_to_skip(name)
    if reason is not None:
        return Outcome(name, "skipped", reason, 0.0)
    folder = Path(tempfile.mkdtemp(prefix="phalanx-upstream-"))
    try:
        _make_ready(suite, folder)
        ranks = UpstreamRanks(suite.world_size, folder, functools.partial(_play, suite, name, folder))
        codes = ranks.run(start + timeout_s)
        status, reason = judge(codes, ranks, suite.skip_codes, are_codes_checked=name not in _CODES_UNCHECKED)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Outcome(name, status, reason, time.monotonic() - start)


def judge(
    codes: dict[int, int], ranks: UpstreamRanks, skip_codes: dict[int, str], *, are_codes_checked: bool = True
) -> tuple[str, str]:
    """Return a test's status, and its reason, from how its ranks ended."""
    values = set(codes.values())
    if values == {0} or (not are_codes_checked and UPSTREAM_ERROR not in values and not ranks.late):
        return "passed", ""
    if codes[0] in skip_codes and values <= {0, *skip_codes}:
        return "skipped", skip_codes[codes[0]]
    if values <= {0, _VACUOUS}:
        return "failed", PASSED_VACUOUSLY
    bad = [(rank, code) for rank, code in sorted(codes.items()) if code != 0 and code not in skip_codes]
    return "failed", "\n".join(_with_ranks(ranks.how_ended(rank, code) for rank, code in bad))


def _with_ranks(ends: Iterable[End]) -> list[str]:
    """Return each text once, with all ranks that ended so."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for end in ends:
        ranks.setdefault((end.how, end.last_words), []).append(end.rank)
    return [
        f"{'rank' if len(those) == 1 else 'ranks'} {', '.join(map(str, those))} {how}{last_words}"
        for (how, last_words), those in ranks.items()
    ]


def _make_ready(suite: Suite, folder: Path) -> None:
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir()
    suite.module.INIT_METHOD = f"file://{folder}/init_dir/shared"
    set_environment(TEMP_DIR=str(folder), INIT_METHOD=suite.module.INIT_METHOD)
    suite.module.Barrier.barrier_id = 0


def _play(suite: Suite, name: str, folder: Path, rank: int, pipe: Any) -> None:
    import torch

    torch.set_num_threads(num_threads_of(name, suite.world_size))
    if suite.mode.backend == "mpi":  # its groups are told neither rank nor store: mpirun's words count
        place = {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(suite.world_size)}
        set_environment(**place, PMIX_NAMESPACE=folder.name)
    try:
        suite.case._run(rank, name, str(folder / "store"), pipe)
    except SystemExit as leaving:
        if leaving.code:
            raise
    if suite.compile_watch.found_nothing():
        sys.exit(_VACUOUS)
