"""Writes a small draft model as a Hugging Face folder, which `export --draft` takes as any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from hexgraft.export.train.small_net import SmallNet
from hexgraft.export.train.torch_graph import TorchGraph
from hexgraft.host.atomic_file import write_whole
from hexgraft.host.bundle import Bundle


def write_small(
    folder: Path, net: SmallNet, graph: TorchGraph, bundle: Bundle, extra: dict[str, dict[str, Any]]
) -> None:
    """Write the model in float16, the target's tokenizer, and `extra` JSON files.

    Raises HexgraftError when the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors: dict[str, NDArray[Any]] = {
        f"model.{name}": parameter.detach().float().cpu().numpy().astype(np.float16)
        for name, parameter in net.named_parameters()
    }
    for name, theirs in {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}.items():
        if graph.has(name):
            tensors[theirs] = graph.weight(name).float().cpu().numpy().astype(np.float16)
    tokenizer = bundle.manifest.tokenizer
    files = {
        **extra,
        "config.json": _config(net, graph, bundle),
        "tokenizer_config.json": dict(tokenizer.special),
    }
    for name, value in files.items():
        write_whole(folder / name, json.dumps(value, indent=1).encode() + b"\n", replace=True)
    write_whole(folder / "tokenizer.json", bundle.file(tokenizer.file).read_bytes(), replace=True)
    write_whole(folder / "model.safetensors", save(tensors, {"format": "pt"}), replace=True)


def _config(net: SmallNet, graph: TorchGraph, bundle: Bundle) -> dict[str, Any]:
    s, tokenizer = net.sizes, bundle.manifest.tokenizer
    return {
        "architectures": ["Qwen2ForCausalLM" if net.bias else "LlamaForCausalLM"],
        "model_type": "qwen2" if net.bias else "llama",
        "hidden_size": s.hidden,
        "intermediate_size": s.ffn,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "num_hidden_layers": len(net.layers),
        "hidden_act": "silu",
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "max_position_embeddings": bundle.target.context,
        "vocab_size": bundle.target.vocab,
        "tie_word_embeddings": not graph.has("head"),
        "bos_token_id": tokenizer.bos,
        "eos_token_id": list(tokenizer.stop_tokens),
        "torch_dtype": "float16",
    }
