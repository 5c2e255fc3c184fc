"""The options of ProcessGroupNCCL. They are stored and shown, but change nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from phalanx.torch_backend.untyped import BackendOptions

DEFAULT_TIMEOUT = timedelta(minutes=10)
_UNSET = -(2**31)


class NcclConfig:
    """NCCL's own settings, under its names."""

    def __init__(self) -> None:
        self.blocking = _UNSET
        self.cga_cluster_size = _UNSET
        self.min_ctas = _UNSET
        self.max_ctas = _UNSET
        self.net_name: str | None = None
        self.split_share = _UNSET
        self.traffic_class = _UNSET
        self.comm_name: str | None = None
        self.collnet_enable = _UNSET
        self.cta_policy = _UNSET
        self.shrink_share = _UNSET
        self.nvls_ctas = _UNSET


class NcclOptions(BackendOptions):  # type: ignore[misc]
    """The class that replaces `ProcessGroupNCCL.Options` while the stand-in is installed."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        super().__init__("nccl", DEFAULT_TIMEOUT)
        self.is_high_priority_stream = is_high_priority_stream
        self.config = NcclConfig()
        self.split_from: Any = None
        self.split_color: int | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> NcclOptions:
        """Copy the options, as torch does when it splits a group; their C++ part can't be copied by default."""
        copied = NcclOptions(self.is_high_priority_stream)
        copied._timeout = self._timeout
        copied.global_ranks_in_group = list(self.global_ranks_in_group)
        copied.group_name = self.group_name
        copied.config.__dict__.update(self.config.__dict__)
        copied.split_from, copied.split_color = self.split_from, self.split_color
        return copied
