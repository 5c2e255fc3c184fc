"""torch's classes without types, because its stubs do not describe every version that phalanx supports."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
import torch.distributed as _distributed
from torch._C import _distributed_c10d

dist: Any = _distributed
native: Any = _distributed_c10d
c10d: Any = _distributed.distributed_c10d
ProcessGroup: Any = _distributed.ProcessGroup
Work: Any = dist._Work
BackendOptions: Any = _distributed_c10d.Backend.Options
library: Any = torch.library
autograd: Any = torch.autograd
Store: TypeAlias = Any
