"""Small random models of every family, saved by transformers itself, and what transformers makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny_tokenizer import write_tiny_tokenizer

VOCAB = 320
CONTEXT = 256
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
_SCALED = {"rope_theta": 10000.0, "original_max_position_embeddings": 64}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
_GRANITE = {
    "embedding_multiplier": 6.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.0,
}
_FACTORS = {"short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5, 3.0, 4.0], "long_factor": [4.0] * 8}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama2": ("llama", {}),
    "llama3": ("llama", {"rope_parameters": {**_LLAMA3, **_SCALED}}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 1e4}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, "head_dim": None}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 2}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **_SCALED}}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-window": ("qwen3", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}),
    "phi3": ("phi3", {"sliding_window": 30}),
    "phi4-mini": (
        "phi3",
        {
            "head_dim": None,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 200,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.2, 1.5, 2.0, 2.5, 3.0],
                "long_factor": [4.0] * 6,
            },
        },
    ),
    "phi3-longrope": (
        "phi3",
        {
            "original_max_position_embeddings": 200,
            "rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, **_FACTORS},
        },
    ),
    "internlm3": (
        "internlm3",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 6.0, "rope_theta": 1e4}, "head_dim": 32},
    ),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"sliding_window": 24, "query_pre_attn_scalar": 20}),
    "gemma3": ("gemma3_text", {"sliding_window": 24, "rope_parameters": _GEMMA3_ROPE}),
    "gemma3-capped": (
        "gemma3_text",
        {"sliding_window": 24, "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0},
    ),
    "granite": ("granite", {**_GRANITE, "attention_bias": True, "tie_word_embeddings": True}),
}
"""Name to model type and the settings that differ from the common sizes."""


def save_family(folder: Path, name: str, **changes: Any) -> Path:
    """Write a random float32 model of a family and a tiny tokenizer into `folder`, and return it.

    Norms and biases are random too, and matrices large enough that every switch shows in the logits.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, settings = FAMILIES[name]
    values = {key: value for key, value in (_SIZES | settings | changes).items() if value is not None}
    if "sliding_window" in settings:
        values["sliding_window"] = (settings | changes)["sliding_window"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **values)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            spread = 0.3 if parameter.ndim == 1 else 1.5 / parameter.shape[1] ** 0.5
            parameter.add_(torch.randn(parameter.shape) * spread * (0.3 if "embed" in key else 1.0))
    model.save_pretrained(folder)
    write_tiny_tokenizer(folder, VOCAB)
    return folder


class Oracle:
    """transformers' own model of a folder, in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """Logits [T, vocab] of every position."""
        with self._torch.no_grad():
            logits: NDArray[np.float32] = self._model(self._torch.tensor([tokens])).logits[0].numpy()
        return logits
