"""A group's identity as torch asks for it: names, rank, size, store, options.

torch asks the C++ backends of a group for its names. Our group has no C++ backend, so it has these methods itself,
under the names that Python and the C++ trampolines use.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch

from phalanx.torch_backend.untyped import BackendOptions, ProcessGroup, Store, dist


class Options(BackendOptions):  # type: ignore[misc]
    """The options that a group was made with."""

    def __init__(self, backend_name: str, timeout: timedelta, ranks: Sequence[int], name: str) -> None:
        super().__init__(backend_name, timeout)
        self._backend_name = backend_name
        self.global_ranks_in_group = list(ranks)
        self.group_name = name

    def __deepcopy__(self, _: object) -> Options:  # for split_group
        return Options(self._backend_name, self._timeout, self.global_ranks_in_group, self.group_name)


class NamedGroup(ProcessGroup):  # type: ignore[misc]
    """The names, rank and size of a group."""

    # torch asks a backend for these features, which exist only in C++ backends.
    supports_splitting = False
    supports_coalescing = False
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, rank: int, size: int, store: Store, *, name: str, backend_name: str) -> None:
        super().__init__(rank, size)  # the form with a store makes an object that C++ can't call back into
        self._rank_of_self = rank
        self._num_ranks = size
        self._store = store
        self._name = name
        self._description = "" if not name else "undefined"
        self._backend_name = backend_name
        self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    def rank(self) -> int:
        """Return this rank, from 0."""
        return self._rank_of_self

    def size(self) -> int:
        """Return how many ranks there are."""
        return self._num_ranks

    getRank, getSize = rank, size

    def name(self) -> str:
        """Return the backend's name."""
        return self._backend_name

    getBackendName = _get_backend_name = name

    def get_group_store(self) -> Store:
        """Return the store that the ranks met through."""
        return self._store

    @property
    def group_name(self) -> str:
        """The group's name, the same on all ranks."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._description

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc

    def getGroupName(self) -> str:
        """Return the group's name."""
        return self._name

    def getGroupDesc(self) -> str:
        """Return what the group is for."""
        return self._description

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Tell torch to allocate tensors itself."""
        return False
