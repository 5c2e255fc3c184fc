from __future__ import annotations

import os
import socket
from contextlib import ExitStack

import phalanx
from phalanx.launch.ports import claim_port


def test_two_worlds_get_different_ports_that_can_be_opened() -> None:
    with claim_port() as one, claim_port() as other:
        assert one != other
        for port in (one, other):
            with socket.create_server(("127.0.0.1", port)):
                pass


def test_a_port_that_somebody_listens_on_is_not_given_out() -> None:
    with claim_port() as port:
        server = socket.create_server(("127.0.0.1", port))
    with server, claim_port() as other:
        assert other != port


def test_ranks_do_without_a_port_where_there_is_none() -> None:
    def program() -> tuple[str | None, float]:
        import torch

        ones = torch.ones(1)
        phalanx.connect().all_reduce(ones)
        return os.environ.get("MASTER_PORT"), float(ones)

    with ExitStack() as claims:
        while claims.enter_context(claim_port()):
            pass
        assert phalanx.spawn(program, ranks=2) == [(None, 2.0)] * 2
