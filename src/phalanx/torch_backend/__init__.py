"""The torch.distributed door: phalanx as a backend of init_process_group, under its own name.

Only this package knows torch's internals (`torch._C`, `distributed_c10d`).
"""

NAME = "phalanx"
