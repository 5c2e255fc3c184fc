"""What the engine records, read back: the two sides of the raw format agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import phalanx
from phalanx.timeline.spans import read_spans
from phalanx.timeline.waits import find_waits

pytestmark = pytest.mark.slow


def test_a_recording_of_real_ranks_has_every_call_with_its_size_and_line(tmp_path: Path) -> None:
    def work() -> None:
        group = phalanx.connect()
        with phalanx.trace(str(tmp_path)):
            whole, block = torch.ones(1000), torch.ones(500)
            group.all_reduce(whole)
            group.all_gather_single(torch.empty(1000), block)
            group.reduce_scatter_single(block, whole)
            group.all_to_all_single(torch.empty(1000), whole)
            group.broadcast(whole, root=1)
            if group.rank == 0:
                group.send(block, 1, tag=7)
            else:
                group.recv(block, 0, tag=7)

    phalanx.spawn(work, ranks=2, timeout_s=60)
    timeline = read_spans(tmp_path)
    find_waits(timeline)
    assert (tmp_path / "timeline.html").is_file()
    sizes = [(span.call.operation, span.call.size_bytes) for span in timeline.spans if span.rank == 0]
    assert sizes == [
        ("all_reduce", 4000),
        ("all_gather", 2000),
        ("reduce_scatter", 2000),
        ("all_to_all", 4000),
        ("broadcast", 4000),
        ("send", 2000),
    ]
    assert all(Path(__file__).name in span.place for span in timeline.spans)
    assert all(span.is_finished for span in timeline.spans)
    sends = [span for span in timeline.spans if span.call.tag == 7]
    assert [span.call.operation for span in sends] == ["send", "recv"]
    assert len({span.event for span in timeline.spans}) == 6
