"""A bundle's own target graph run by torch: many texts in one pass, in bfloat16, on a CPU or a GPU.

ONNX Runtime's CPU provider has no bfloat16 and the graph holds one text; drafts want half a million tokens.
So the exported nodes are interpreted one by one, and attention alone is put in their place, a text a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import NodeProto, helper, numpy_helper
from torch import Tensor

from hexgraft.host.bundle import Bundle
from hexgraft.models.errors import BundleError

functional = torch.nn.functional
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class TorchGraph:
    """The CPU graph of a bundle's target without its attention: `run` calls back for that.

    Matrices are kept in `dtype`, and products taken in it; everything between them is float32.
    """

    def __init__(self, bundle: Bundle, *, dtype: torch.dtype, device: str = "cpu") -> None:
        self.model = bundle.target
        self.dtype, self.device = dtype, device
        file = bundle.file(bundle.graph("target", "cpu").file)
        proto = onnx.load(str(file), load_external_data=False)
        self._values: dict[str, Any] = {}
        for tensor in proto.graph.initializer:
            self._values[tensor.name] = self._constant(tensor, bundle, file.parent)
        self._nodes = list(proto.graph.node)
        self._local = {
            node.name.removesuffix(".scores.masked")
            for node in self._nodes
            if node.name.endswith(".scores.masked") and node.input[1] == "grouped_mask_local"
        }
        self._plans: dict[tuple[str, ...], list[tuple[NodeProto, list[str]]]] = {}

    @property
    def softcap(self) -> float | None:
        """What attention scores are capped at, where the graph caps them."""
        value = self._values.get("attention_softcap")
        return None if value is None else float(value)

    def is_local(self, layer: int) -> bool:
        """Whether a layer sees a window only."""
        return f"layers.{layer}" in self._local

    def has(self, name: str) -> bool:
        """Whether the graph has a weight of this name."""
        return name in self._values

    def weight(self, name: str) -> Tensor:
        """A weight of the graph by its name there."""
        value: Tensor = self._values[name]
        return value

    @property
    def head(self) -> Tensor:
        """The rows that give logits [vocab, d], the graph's scale of logits not in them."""
        return self.weight("head" if self.has("head") else "embed")

    @property
    def eps(self) -> float:
        """What the norms add to the mean square."""
        nodes = (node for node in self._nodes if node.op_type == "RMSNormalization")
        return float(_attributes(next(nodes))["epsilon"])

    @property
    def logit_scale(self) -> float:
        """What the final hidden state is multiplied by before the head, a cap's divisor included."""
        return float(self._values.get("logit_scale", 1.0))

    @property
    def slope(self) -> float:
        """How many times as large as the product of states and head logits are, where no cap bends them."""
        return self.logit_scale * float(self._values.get("final_softcap", 1.0))

    def logits(self, states: Tensor, head: Tensor | None = None) -> Tensor:
        """Logits [rows, vocab] of states after the last norm [rows, d], by some rows of the head if given."""
        found = _product(self, states * self.logit_scale, self.head if head is None else head, True)
        cap = self._values.get("final_softcap")
        return found if cap is None else torch.tanh(found) * cap

    def run(self, inputs: dict[str, Tensor], outputs: Sequence[str], attend: Attend) -> list[Tensor]:
        """Values of the graph by name, [1, rows, ...]. `inputs`: input_ids and the RoPE tables of the rows.

        `attend` takes a layer and its queries, keys and values [rows, heads * head_dim] after RoPE, and
        returns the mix [rows, heads * head_dim].
        """
        values = dict(inputs)
        for node, dead in self._plan(tuple(outputs)):
            if node.name.endswith(".mix"):
                prefix = node.name.removesuffix(".mix")
                rows = [values[f"{prefix}.{part}.rows"][0] for part in "qkv"]
                values[node.name] = attend(int(prefix.split(".")[1]), rows[0], rows[1], rows[2])[None]
            else:
                given = [values[name] if name in values else self._values[name] for name in node.input]
                found = _OPERATORS[node.op_type](self, given, _attributes(node))
                values.update(zip(node.output, found, strict=True))
            # A prefill's intermediate values are gigabytes when kept until the end.
            for name in dead:
                values.pop(name, None)
        return [values[name] for name in outputs]

    def _plan(self, outputs: tuple[str, ...]) -> list[tuple[NodeProto, list[str]]]:
        """The nodes that `outputs` need, in order, each with the values nobody needs after it; a layer's
        attention is its `mix` node alone."""
        if outputs not in self._plans:
            wanted = set(outputs)
            plan: list[tuple[NodeProto, list[str]]] = []
            for node in reversed(self._nodes):
                if not wanted.intersection(node.output):
                    continue
                is_mix = node.name.startswith("layers.") and node.name.endswith(".mix")
                prefix = node.name.removesuffix(".mix")
                needed = {f"{prefix}.{part}.rows" for part in "qkv"} if is_mix else set(node.input)
                plan.append((node, sorted((needed | set(node.output)) - wanted)))
                wanted |= needed
                unknown = node.op_type not in _OPERATORS
                if unknown and not is_mix:
                    raise BundleError(f"training does not know the operator {node.op_type} of {node.name}")
            self._plans[outputs] = plan[::-1]
        return self._plans[outputs]

    def _constant(self, tensor: onnx.TensorProto, bundle: Bundle, folder: Any) -> Any:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            array = numpy_helper.to_array(tensor)
            return float(array) if array.ndim == 0 else array.tolist()
        entry = {item.key: item.value for item in tensor.external_data}
        array = np.memmap(
            folder / entry["location"], np.float32, "r", int(entry["offset"]), tuple(tensor.dims)
        )
        weight = torch.from_numpy(np.array(array))
        return weight.to(self.device, self.dtype if weight.ndim == 2 else torch.float32)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _product(graph: TorchGraph, x: Tensor, matrix: Tensor, transposed: bool) -> Tensor:
    low = x.to(graph.dtype)
    return (functional.linear(low, matrix) if transposed else low @ matrix).float()


def _sum_and_norm(x: Tensor, y: Tensor, weight: Tensor, epsilon: float) -> list[Any]:
    """The outputs of `export.cpu.norms`: the normed sum, two that nobody reads, the sum."""
    total = x + y
    return [functional.rms_norm(total, weight.shape, weight, epsilon), None, None, total]


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """Rotate-half RoPE of [1, rows, heads * dim] by tables [1, rows, dim / 2]."""
    first, second = x.view(x.shape[1], heads, 2, -1).unbind(2)
    c, s = cos[0][:, None], sin[0][:, None]
    return torch.stack((first * c - second * s, second * c + first * s), 2).view(x.shape)


_OPERATORS: dict[str, Callable[[TorchGraph, list[Any], dict[str, Any]], list[Any]]] = {
    "Add": lambda g, v, a: [v[0] + v[1]],
    "Concat": lambda g, v, a: [torch.cat(v, a["axis"])],
    "Gather": lambda g, v, a: [functional.embedding(v[1], v[0]).float()],
    "Gelu": lambda g, v, a: [functional.gelu(v[0], approximate=a["approximate"].decode())],
    "Gemm": lambda g, v, a: [_product(g, v[0], v[1], bool(a.get("transB", 0)))],
    "Identity": lambda g, v, a: [v[0]],
    "MatMul": lambda g, v, a: [_product(g, v[0], v[1], False)],
    "Mul": lambda g, v, a: [v[0] * v[1]],
    "RMSNormalization": lambda g, v, a: [functional.rms_norm(v[0], v[1].shape, v[1], a["epsilon"])],
    "SkipSimplifiedLayerNormalization": lambda g, v, a: _sum_and_norm(v[0], v[1], v[2], a["epsilon"]),
    "Reshape": lambda g, v, a: [v[0].reshape(v[1])],
    "RotaryEmbedding": lambda g, v, a: [_rotate(v[0], v[1], v[2], a["num_heads"])],
    "Sigmoid": lambda g, v, a: [torch.sigmoid(v[0])],
    "Split": lambda g, v, a: list(torch.split(v[0], v[1], a["axis"])),
    "Squeeze": lambda g, v, a: [v[0].squeeze(v[1][0])],
    "Tanh": lambda g, v, a: [torch.tanh(v[0])],
}
