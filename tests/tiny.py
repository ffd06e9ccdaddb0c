"""Tiny random checkpoints on disk for tests: Hugging Face folders, GGUF files of the same weights, drafts.

Greedy text of these models is varied (not one token repeated) and peaked enough that a draft made of the same
weights with noise of 0.05 to 0.3 agrees with its target on a useful share of tokens. Needs no torch.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from tiny_tokenizer import CHATML, SPECIALS, tiny_vocab, write_tiny_tokenizer


@dataclass(frozen=True)
class Sizes:
    """The numbers of a tiny model; `layers`, `hidden` and so on as in ModelConfig."""

    family: str = "llama"
    layers: int = 3
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 320
    tied: bool = True
    context: int = 512
    theta: float = 10000.0
    eps: float = 1e-5
    bias: bool = False
    """q, k and v biases in a family other than qwen2, which always has them."""


def write_tiny_hf(
    path: Path,
    *,
    family: str = "llama",
    layers: int = 3,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    ffn: int = 96,
    vocab: int = 320,
    tied: bool = True,
    seed: int = 0,
    dtype: str = "float32",
    noise_of: Path | None = None,
    noise: float = 0.0,
    attention_bias: bool | None = None,
    context: int = 512,
    theta: float = 10000.0,
    eps: float = 1e-5,
) -> Path:
    """Write a Hugging Face folder at `path` and return it.

    `family` is "llama", "qwen2" (with q, k and v biases) or "mistral"; `dtype` float32, float16 or bfloat16.
    `vocab` is at least 259. With `noise_of`, config, tokenizer and weights are those of that folder,
    each tensor plus gaussian noise of `noise` times its standard deviation (by `seed`); sizes are ignored.
    `attention_bias=True` with llama writes the unsupported q, k, v and o biases into the config.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if noise_of is not None:
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(noise_of / name, path / name)
        weights = _noisy(read_tiny_weights(noise_of), noise, seed + 1)
    else:
        sizes = Sizes(
            family, layers, hidden, heads, kv_heads, head_dim, ffn, vocab, tied, context, theta, eps
        )
        config = hf_config(sizes, dtype)
        if attention_bias is not None:
            config["attention_bias"] = attention_bias
        _write_json(path / "config.json", config)
        write_tiny_tokenizer(path, vocab)
        weights = tiny_weights(sizes, seed)
    save_weights(path / "model.safetensors", weights, dtype)
    return path


def write_tiny_gguf(
    path: Path, *, quant: str = "F16", pre: str = "smollm", seed: int = 0, **sizes: Any
) -> Path:
    """Write the model of `write_tiny_hf(family=..., seed=seed, ...)` as one GGUF file, and return `path`.

    Matrices are stored as `quant` (any name of gguf.GGMLQuantizationType that gguf can quantise: F32, F16,
    BF16, Q8_0, Q4_1, ...), vectors as F32; q and k rows are permuted for llama as llama.cpp's converter does.
    """
    import gguf

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    size = Sizes(**sizes)
    writer = gguf.GGUFWriter(path, size.family)
    add_gguf_fields(writer, size, pre)
    kind = gguf.GGMLQuantizationType[quant]
    for name, array in tiny_weights(size, seed).items():
        if size.family == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = permute(array, size.heads if ".q_proj." in name else size.kv_heads)
        if array.ndim == 1 or quant == "F32":
            writer.add_tensor(gguf_name(name), array)
        elif quant == "F16":
            writer.add_tensor(gguf_name(name), array.astype(np.float16))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_weights(size: Sizes, seed: int) -> dict[str, NDArray[np.float32]]:
    """Random float32 weights by Hugging Face tensor name.

    The final norm scales the logits up with random signs, so that a tied head does not echo the last token.
    Special tokens have small rows: random text does not stop by accident. Gains are tuned for greedy text of
    5 to 60 distinct tokens in 100, and drafts that agree on about 80, 75, 50 and 30 % of tokens at noise
    0.05, 0.1, 0.2 and 0.3.
    """
    rng = np.random.default_rng([seed, 7])
    d, q, kv = size.hidden, size.heads * size.head_dim, size.kv_heads * size.head_dim
    out: dict[str, NDArray[np.float32]] = {}

    def matrix(name: str, rows: int, columns: int, gain: float) -> None:
        out[name] = (rng.standard_normal((rows, columns)) * gain / columns**0.5).astype(np.float32)

    def vector(name: str, width: int, mean: float, std: float) -> None:
        out[name] = (mean + std * rng.standard_normal(width)).astype(np.float32)

    matrix("model.embed_tokens.weight", size.vocab, d, 8.0)
    for i in range(size.layers):
        layer = f"model.layers.{i}."
        vector(layer + "input_layernorm.weight", d, 1.0, 0.1)
        for name, rows, gain in (("q", q, 1.0), ("k", kv, 1.0), ("v", kv, 1.0)):
            matrix(f"{layer}self_attn.{name}_proj.weight", rows, d, gain)
            if size.family == "qwen2" or size.bias:
                vector(f"{layer}self_attn.{name}_proj.bias", rows, 0.0, 0.3)
        matrix(layer + "self_attn.o_proj.weight", d, q, 1.0)
        vector(layer + "post_attention_layernorm.weight", d, 1.0, 0.1)
        matrix(layer + "mlp.gate_proj.weight", size.ffn, d, 1.0)
        matrix(layer + "mlp.up_proj.weight", size.ffn, d, 1.0)
        matrix(layer + "mlp.down_proj.weight", d, size.ffn, 1.0)
    vector("model.norm.weight", d, 0.5, 0.05)
    out["model.norm.weight"] *= rng.choice(np.float32([-1, 1]), d)
    if not size.tied:
        matrix("lm_head.weight", size.vocab, d, 8.0)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in out:
            out[name][: len(SPECIALS)] *= 0.1
    return out


def hf_config(size: Sizes, dtype: str = "float32") -> dict[str, Any]:
    """The config.json of a tiny model."""
    return {
        "architectures": [{"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}.get(size.family, "")],
        "model_type": size.family,
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "intermediate_size": size.ffn,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.context,
        "rms_norm_eps": size.eps,
        "rope_theta": size.theta,
        "hidden_act": "silu",
        "tie_word_embeddings": size.tied,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "torch_dtype": dtype,
    }


def permute(array: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rotate-half rows (i, i + dim/2) to the interleaved pairs (2i, 2i + 1) that GGUF's llama stores."""
    dim = array.shape[0] // heads
    order = np.arange(dim).reshape(2, dim // 2).T.reshape(-1)
    return array.reshape(heads, dim, -1)[:, order].reshape(array.shape)


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    parts = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers": "blk",
    }
    for long, short in parts.items():
        name = name.replace(long, short)
    return name


def save_weights(path: Path, weights: dict[str, NDArray[np.float32]], dtype: str = "float32") -> None:
    """Write one safetensors file; bfloat16 rounds to nearest even."""
    short = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    chunks: list[bytes] = []
    offset = 0
    for name, array in weights.items():
        if dtype == "bfloat16":
            bits = array.view(np.uint32)
            chunks.append(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes())
        else:
            chunks.append(array.astype(dtype).tobytes())
        end = offset + len(chunks[-1])
        header[name] = {"dtype": short, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(chunks))


def read_tiny_weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    """Every tensor of a folder written by `write_tiny_hf` in float32 or float16."""
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        return {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118


def _noisy(
    weights: dict[str, NDArray[np.float32]], noise: float, seed: int
) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng([seed, 11])
    out = {}
    for name in sorted(weights):
        array = weights[name]
        step = rng.standard_normal(array.shape) * noise * float(array.std())
        out[name] = (array + step).astype(np.float32)
    return out


def add_gguf_fields(writer: Any, size: Sizes, pre: str) -> None:
    """Put the metadata of a tiny model into a gguf.GGUFWriter."""
    tokens, merges = tiny_vocab(size.vocab)
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(size.layers)
    writer.add_context_length(size.context)
    writer.add_embedding_length(size.hidden)
    writer.add_feed_forward_length(size.ffn)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_rope_freq_base(size.theta)
    writer.add_layer_norm_rms_eps(size.eps)
    writer.add_vocab_size(size.vocab)
    writer.add_rope_dimension_count(size.head_dim)
    if size.head_dim * size.heads != size.hidden:
        writer.add_key_length(size.head_dim)
        writer.add_value_length(size.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")
