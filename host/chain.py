"""A graph cut in parts: how the parts' inputs and outputs are bound so that they run one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Tensors = Mapping[str, tuple[int, str, Sequence[int]]]
"""Tensors by name: the address they lie at, their type and shape."""

TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(uint16)": "uint16",
    "tensor(int16)": "int16",
}
"""ONNX Runtime's names of the types that may pass between parts."""


def bind_chain(sessions: Iterable[Any], tensors: Tensors) -> list[Any]:
    """A binding for each part, in order. What is not among `tensors` passes between parts under its name, in
    memory that the bindings keep."""
    between: dict[str, Any] = {}
    bindings = []
    for session in sessions:
        binding = session.io_binding()
        for value in session.get_inputs():
            if value.name in tensors:
                address, dtype, shape = tensors[value.name]
                binding.bind_input(value.name, "cpu", 0, np.dtype(dtype).type, list(shape), address)
            else:
                binding.bind_ortvalue_input(value.name, between[value.name])
        for value in session.get_outputs():
            if value.name in tensors:
                address, dtype, shape = tensors[value.name]
                binding.bind_output(value.name, "cpu", 0, np.dtype(dtype).type, list(shape), address)
            else:
                between[value.name] = _buffer(value)
                binding.bind_ortvalue_output(value.name, between[value.name])
        bindings.append(binding)
    return bindings


def _buffer(value: Any) -> Any:
    import onnxruntime as ort

    if value.type not in TYPES:
        raise TypeError(f"{value.name} passes between parts as {value.type}, expected {', '.join(TYPES)}")
    return ort.OrtValue.ortvalue_from_numpy(np.zeros(value.shape, TYPES[value.type]))
