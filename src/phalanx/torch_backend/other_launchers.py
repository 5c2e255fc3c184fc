"""What torch's env:// does not read by itself: the ranks that mpiexec and srun number, and where those of srun meet."""

from __future__ import annotations

from urllib.parse import urlparse

from phalanx import settings
from phalanx.launch.context import current_context


def complete_url(url: str) -> str:
    """Return the URL with rank and world_size if the program gives neither, and mpiexec or srun does.

    Under srun, also set MASTER_ADDR and MASTER_PORT for torch, unless they are set.
    """
    if settings.has_torch_placement() or urlparse(url).query or current_context() is not None:
        return url
    placement = settings.read_placement()
    if placement is None:
        return url
    settings.set_environment_defaults(**settings.slurm_master())
    return f"env://?rank={placement.rank}&world_size={placement.size}"
