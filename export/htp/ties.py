"""Values that only move numbers about, and so must share one encoding in an all-integer graph."""

from __future__ import annotations

import onnx

MOVES = {"Reshape", "Transpose", "Squeeze", "Split", "Concat", "Identity"}


class Ties:
    """Groups of values joined by moving operators, and by the cache: what a pass gives out comes back in."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._parent: dict[str, str] = {}
        numbers = {tensor.name for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type in MOVES:
                for other in (*node.input[1:], *node.output):
                    if other not in numbers:
                        self._join(node.input[0], other)
        for value in graph.input:
            if value.name.startswith("past_"):
                self._join(value.name, value.name.removesuffix("_in") + "_out")
        self._groups: dict[str, list[str]] = {}
        for name in list(self._parent):
            self._groups.setdefault(self._root(name), []).append(name)

    def group(self, value: str) -> list[str]:
        """All values that share an encoding with `value`, itself included."""
        return self._groups.get(self._root(value), [value])

    def _root(self, name: str) -> str:
        while self._parent.get(name, name) != name:
            name = self._parent[name]
        return name

    def _join(self, a: str, b: str) -> None:
        self._parent.setdefault(a, a)
        self._parent.setdefault(b, b)
        self._parent[self._root(a)] = self._root(b)
