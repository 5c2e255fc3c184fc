"""A topic of which the second probe finds a problem, so that the third makes no sense."""

from __future__ import annotations

import functools

from phalanx.doctor.finding import Answer, Probe, Topic

TOPIC = Topic(
    "Chain",
    (
        Probe("first", functools.partial(Answer, "note", "fine")),
        Probe("second", functools.partial(Answer, "problem", "broken")),
        Probe("third", functools.partial(Answer, "ok", "pointless")),
    ),
    is_chain=True,
)
