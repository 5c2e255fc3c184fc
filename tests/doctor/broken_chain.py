"""A topic of which the second probe finds a problem, so that the third makes no sense."""

from __future__ import annotations

from phalanx.doctor.finding import Answer, Probe, Topic

TOPIC = Topic(
    "Chain",
    __name__,
    (
        Probe("first", lambda: Answer("note", "fine")),
        Probe("second", lambda: Answer("problem", "broken")),
        Probe("third", lambda: Answer("ok", "pointless")),
    ),
    is_chain=True,
)
