"""What ranks did when: traces, and pages that show them.

The engine writes raw files while ranks run. From there: raw_file reads one, spans joins all, waits finds who waited for
whom, rows keeps overlapping calls apart; chrome_trace and page write the results.
"""

from __future__ import annotations

from phalanx.timeline.write import Written, write_timeline

__all__ = ["Written", "write_timeline"]
