"""Timelines: when each rank called which operation, as a trace and as a page.

The engine writes one raw file per process while ranks run. `raw_file` reads a file, `spans` joins all of them, `waits`
finds which rank waited for which, `rows` separates overlapping calls, and `chrome_trace` and `page` write the results.
"""

from __future__ import annotations

from phalanx.timeline.write import Written, write_timeline

__all__ = ["Written", "write_timeline"]
