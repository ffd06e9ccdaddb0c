"""Writes a trained head as a folder in the layout EAGLE-3's authors publish, without embedding and output
rows: both are the target's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from hexgraft.export.train.head_net import HeadNet
from hexgraft.host.atomic_file import write_whole

RECIPE = "recipe.json"


def head_tensors(
    net: HeadNet, tokens: NDArray[np.int64], vocab: int, slope: float = 1.0
) -> dict[str, NDArray[Any]]:
    """The tensors of a head [float16] and its token tables; the scale of the features goes into `fc`, and
    what the target's logits are multiplied by (`TorchGraph.slope`) into the last norm."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, parameter in net.named_parameters():
        value = parameter.detach().float().cpu()
        if name == "fc.weight":
            value = value / net.feature_scale.cpu()
        if name == "norm.weight":
            value = value * slope
        tensors[name] = value.numpy().astype(np.float16)
    marks = np.zeros(vocab, np.bool_)
    marks[tokens] = True
    tensors["d2t"] = tokens - np.arange(len(tokens))
    tensors["t2d"] = marks
    return tensors


def head_config(net: HeadNet, rows: int, vocab: int, context: int) -> dict[str, Any]:
    """The config.json of a head."""
    s = net.sizes
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "max_position_embeddings": context,
        "vocab_size": vocab,
        "draft_vocab_size": rows,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "eagle_aux_hidden_state_layer_ids": list(s.features),
        "torch_dtype": "float16",
    }


def write_head(
    folder: Path,
    net: HeadNet,
    tokens: NDArray[np.int64],
    vocab: int,
    context: int,
    extra: dict[str, dict[str, Any]],
    slope: float = 1.0,
) -> None:
    """Write a head as `head_tensors` has it, and `extra` JSON files beside it; a head that lies there already
    is replaced whole.

    Raises HexgraftError when the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: _json(value) for name, value in extra.items()}
    files["config.json"] = _json(head_config(net, len(tokens), vocab, context))
    files["model.safetensors"] = save(head_tensors(net, tokens, vocab, slope), {"format": "pt"})
    for name, data in files.items():
        write_whole(folder / name, data, replace=True)


def free_bytes(folder: Path) -> int:
    """Bytes free on the disk of a folder that exists, or whose parents do."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
