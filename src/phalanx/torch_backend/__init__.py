"""Make phalanx a backend of torch.distributed: init_process_group("phalanx").

Only this package knows torch's internals (`torch._C`, `distributed_c10d`).
"""

NAME = "phalanx"
