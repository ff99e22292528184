"""One op of ggml, run by the oracle's own library as a graph of one node."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Build = Callable[[Any, ctypes.c_void_p, Sequence[ctypes.c_void_p]], int]
"""`(library, context, operands)` -> the address of the op's node."""

# `enum ggml_type` of ggml.h.
_TYPES = {"float32": 0, "int32": 26}
_RETURN_POINTERS = ("ggml_init", "ggml_new_tensor", "ggml_get_data", "ggml_new_graph")


class _Init(ctypes.Structure):
    """`struct ggml_init_params` of ggml.h."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def computed(op: str, build: Build, operands: Sequence[Array], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The float32 values, in `shape` (NumPy order), of the node that `build` makes with the function `op`."""
    from tests.interface.files.test_quants_oracle import library

    ggml, pointer = library(), ctypes.c_void_p
    for name in (*_RETURN_POINTERS, op):
        getattr(ggml, name).restype = pointer
    n_bytes = sum(array.nbytes for array in operands) + 4 * math.prod(shape)
    context = pointer(ggml.ggml_init(_Init(2 * n_bytes + (4 << 20), None, False)))
    tensors = []
    for array in operands:
        ne = (ctypes.c_int64 * array.ndim)(*array.shape[::-1])
        tensor = pointer(ggml.ggml_new_tensor(context, _TYPES[array.dtype.name], array.ndim, ne))
        values = np.ascontiguousarray(array)
        ctypes.memmove(ggml.ggml_get_data(tensor), values.ctypes.data, values.nbytes)
        tensors.append(tensor)
    node = pointer(build(ggml, context, tensors))
    graph = pointer(ggml.ggml_new_graph(context))
    ggml.ggml_build_forward_expand(graph, node)
    assert ggml.ggml_graph_compute_with_ctx(context, graph, 1) == 0
    out = np.empty(shape, np.float32)
    ctypes.memmove(out.ctypes.data, ggml.ggml_get_data(node), out.nbytes)
    ggml.ggml_free(context)
    return out
