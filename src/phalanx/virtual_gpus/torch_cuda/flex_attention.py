"""Compiled flex_attention: Inductor has only Triton templates for it, so it is compiled as plain operations.

torch has an implementation in plain operations for programs that do not compile. When torch.compile traces a call, this
module lets it trace that implementation, forward and backward, in place of the operator. It computes all scores, so its
memory grows with the product of both sequence lengths.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from phalanx.patches import Patches

MODULE = "torch._higher_order_ops.flex_attention"
_WHY = "Inductor has only Triton templates for flex_attention on CUDA devices"


_WARNING = (
    "compiled flex_attention: this is a virtual GPU, which runs no Triton kernels; it is compiled as plain operations, "
    "which compute all scores, so it needs memory for the product of both sequence lengths"
)


class FlexAttentionWarning(UserWarning):
    """Compiled flex_attention runs as plain operations, because the device is a virtual GPU."""


def replace(patches: Patches) -> None:
    """Let torch.compile trace plain operations in place of flex_attention and its backward."""
    flex: Any = sys.modules[MODULE]  # its package has another object under that name
    _replace(patches, flex.flex_attention, flex.sdpa_dense)
    _replace(patches, flex.flex_attention_backward, flex.sdpa_dense_backward)


def _replace(patches: Patches, operator: Any, plain: Callable[..., Any]) -> None:
    from torch._subclasses.functional_tensor import FunctionalTensorMode

    rules: dict[Any, Any] = operator.python_key_table  # how modes, such as those of tracing, treat the operator
    before = rules[FunctionalTensorMode]

    def trace(mode: Any, query: Any, *others: Any) -> Any:
        if query.device.type != "cuda":
            return before(mode, query, *others)
        with mode:
            return plain(query, *others)

    rules[FunctionalTensorMode] = trace
    name = f'{MODULE}.{operator.name()}.python_key_table["{FunctionalTensorMode.__name__}"]'
    patches.note(name, lambda: rules.__setitem__(FunctionalTensorMode, before), _WHY)


def with_warning(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that compiles a graph with Inductor, which now warns of the first flex_attention in a graph.

    Tracing can't warn: torch keeps its result, so another process with the same graph does not trace.
    """
    has_warned: list[bool] = []

    def compile_fx(graph: Any, *arguments: Any, **options: Any) -> Any:
        if not has_warned and _has_flex_attention(graph):
            has_warned.append(True)
            warnings.warn(_WARNING, FlexAttentionWarning, stacklevel=2)
        return compile_graph(graph, *arguments, **options)

    return compile_fx


def _has_flex_attention(graph: Any) -> bool:
    operator = vars(sys.modules[MODULE])["flex_attention"]
    parts = graph.modules() if isinstance(graph, torch.fx.GraphModule) else ()
    graphs = [part.graph for part in parts if isinstance(part, torch.fx.GraphModule)]  # checkpointing has its own
    return any(_is_on_gpu(node) for each in graphs for node in each.nodes if node.target is operator)


def _is_on_gpu(node: torch.fx.Node) -> bool:
    query: Any = node.args[0]
    return getattr(query.meta.get("example_value"), "is_cuda", True)
