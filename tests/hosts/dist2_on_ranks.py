"""A rank that runs one of the tests of PyTorch's test_dist2.py, with its peers on other hosts: FILE TEST.

The test meets its peers at 127.0.0.1. On every host but the first, what connects to its ports there is passed on to the
first host, so that the file can stay as it is.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import threading
from typing import Any

from phalanx_tools.conformance.suite import import_common_distributed

_PORTS = (29500, 29781)  # of the stores in test_dist2.py
_FIRST_HOST = "host0"


def main(file: str, test: str) -> None:
    if os.environ["GROUP_RANK"] != "0":
        for port in _PORTS:
            listener = socket.create_server(("127.0.0.1", port))
            threading.Thread(target=_pass_on, args=(listener, port), daemon=True).start()
    import_common_distributed()
    case = _load(file).ProcessGroupGlooTest(test)
    case.rank = int(os.environ["RANK"])
    getattr(case, test)()  # setUp would start ranks on this host
    print(f"rank {case.rank} has passed {test}")


def _load(file: str) -> Any:
    spec = importlib.util.spec_from_file_location("test_dist2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _pass_on(listener: socket.socket, port: int) -> None:
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_connect, args=(near, port), daemon=True).start()


def _connect(near: socket.socket, port: int) -> None:
    with near:
        try:
            far = socket.create_connection((_FIRST_HOST, port), 10)
        except OSError:  # nobody listens there yet: the client tries again
            return
        far.settimeout(None)
        with far:
            back = threading.Thread(target=_copy, args=(far, near), daemon=True)
            back.start()
            _copy(near, far)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one end is gone
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
