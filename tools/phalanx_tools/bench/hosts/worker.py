"""The program of a rank on one of several hosts: which contender, and where its orders come from.

Its working folder is not searched for modules: `phalanx run` and torchrun put the folder of the script first.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[3])
    from phalanx_tools.bench.worker_torch import serve

    serve(sys.argv[1], sys.argv[2], "env://")
