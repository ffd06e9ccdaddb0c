"""A family's folder rewritten as GGUF, as llama.cpp's converter would: names, permutation, fusion, keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from tiny import gguf_name, permute
from tiny_tokenizer import CHATML, SPECIALS, tiny_vocab

_ARCHITECTURES = {"mistral": "llama", "internlm3": "llama", "gemma3_text": "gemma3"}
_NAMES = {
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}


def write_family_gguf(folder: Path, path: Path, parts: int = 1) -> list[Path]:
    """Write a folder of `save_family` as `path`, or as `parts` files beside it; the paths in order."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    tensors = _tensors(folder, config, architecture)
    names = list(tensors)
    paths = [path]
    if parts > 1:
        paths = [path.with_name(f"{path.stem}-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
    for index, file in enumerate(paths):
        writer = gguf.GGUFWriter(file, architecture)
        if index == 0:
            _keys(writer, config, architecture)
        if parts > 1:
            writer.add_uint16("split.no", index)
            writer.add_uint16("split.count", parts)
            writer.add_int32("split.tensors.count", len(names))
        for name in names[index::parts]:
            writer.add_tensor(name, tensors[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def _tensors(folder: Path, config: dict[str, Any], architecture: str) -> dict[str, NDArray[np.float32]]:
    tensors: dict[str, NDArray[np.float32]] = {}
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118
            array = file.get_tensor(name)
            if config["model_type"].startswith("gemma") and name.endswith("norm.weight"):
                array = array + 1
            if architecture in ("llama", "granite", "smollm3") and (".q_proj" in name or ".k_proj" in name):
                heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
                array = permute(array, heads)
            tensors[_name(name, architecture)] = array.astype(np.float32)
    parameters = config.get("rope_parameters") or {}
    if parameters.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = _llama3_factors(parameters, config["head_dim"])
    for kind in ("short", "long"):
        if f"{kind}_factor" in parameters:
            tensors[f"rope_factors_{kind}.weight"] = np.array(parameters[f"{kind}_factor"], np.float32)
    return tensors


def _name(name: str, architecture: str) -> str:
    if architecture in ("gemma2", "gemma3"):
        name = name.replace("post_attention_layernorm", "post_attention_norm")
    for long, short in _NAMES.items():
        name = name.replace(long, short)
    return gguf_name(name)


def _llama3_factors(parameters: dict[str, Any], dim: int) -> NDArray[np.float32]:
    """Divisors of frequencies, by the rule of Llama 3.1's own code."""
    factors = []
    original, low, high = (
        parameters[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    for i in range(0, dim, 2):
        wave = 2 * np.pi * parameters["rope_theta"] ** (i / dim)
        if wave < original / high:
            factors.append(1.0)
        elif wave > original / low:
            factors.append(parameters["factor"])
        else:
            smooth = (original / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return np.array(factors, np.float32)


def _keys(writer: Any, config: dict[str, Any], architecture: str) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rotated = int(dim * config["rope_parameters"].get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(rotated)
    for add in (writer.add_key_length, writer.add_value_length):
        add(dim)
    _rope_keys(writer, config, dim)
    if config.get("sliding_window") is not None and config.get("use_sliding_window", True):
        writer.add_sliding_window(config["sliding_window"])
    if config["model_type"] == "granite":
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if config.get("attn_logit_softcapping") is not None and architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping") is not None:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    tokens, merges = tiny_vocab(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges([f"{left} {right}" for left, right in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def _rope_keys(writer: Any, config: dict[str, Any], dim: int) -> None:
    import gguf

    parameters = config["rope_parameters"]
    parameters = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(parameters["rope_theta"])
    kind = parameters.get("rope_type", "default")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(parameters["factor"])
    if kind == "longrope":
        factor = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        root = 1 + np.log(factor) / np.log(config["original_max_position_embeddings"])
        writer.add_rope_scaling_attn_factors(float(root**0.5))
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    elif "original_max_position_embeddings" in parameters:
        writer.add_rope_scaling_orig_ctx_len(parameters["original_max_position_embeddings"])
