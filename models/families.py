"""What hexgraft can export, for people: families with the switches that tell them apart, and known pairs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """`hf` and `gguf` are its names in a config.json and a GGUF file, `switches` what sets it apart."""

    title: str
    hf: tuple[str, ...]
    gguf: tuple[str, ...]
    switches: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a draft of one tokenizer; `rows` says what becomes of a draft of another size."""

    target: str
    draft: str
    rows: str = "same rows"


FAMILIES = (
    Family(
        "Llama 2, 3, 3.1, 3.2, SmolLM2, R1-Distill-Llama",
        ("llama",),
        ("llama",),
        "RoPE scaling llama3, linear",
    ),
    Family("Mistral 7B, Nemo", ("mistral",), ("llama",), "sliding window"),
    Family(
        "Qwen2, Qwen2.5, SmallThinker, R1-Distill-Qwen",
        ("qwen2",),
        ("qwen2",),
        "q, k, v biases; RoPE scaling yarn; sliding window",
    ),
    Family("Qwen3 (dense)", ("qwen3",), ("qwen3",), "q/k norm; RoPE scaling yarn; sliding window"),
    Family("SmolLM3", ("smollm3",), ("smollm3",), "layers without RoPE"),
    Family(
        "Phi-3, Phi-3.5, Phi-4-mini",
        ("phi3",),
        ("phi3",),
        "fused matrices; sliding window; part of a head rotated; longrope up to its original context",
    ),
    Family("Gemma", ("gemma",), ("gemma",), "GELU; norms of 1 + weight; scaled embedding"),
    Family(
        "Gemma 2",
        ("gemma2",),
        ("gemma2",),
        "as Gemma; sandwich norms; soft-capped scores and logits; every other layer local",
    ),
    Family(
        "Gemma 3 (text)",
        ("gemma3", "gemma3_text"),
        ("gemma3",),
        "as Gemma; sandwich and q/k norms; five in six layers local with a RoPE of their own",
    ),
    Family(
        "Granite 3 (dense)", ("granite",), ("granite",), "scales on embedding, residual, scores and logits"
    ),
    Family("InternLM3", ("internlm3",), ("llama",), "RoPE scaling dynamic up to its original context"),
)

PAIRS = (
    Pair("Llama-3.1-8B-Instruct", "Llama-3.2-1B-Instruct"),
    Pair("DeepSeek-R1-Distill-Llama-8B", "Llama-3.2-1B-Instruct", "special tokens are named otherwise"),
    Pair("Qwen2.5-7B-Instruct", "Qwen2.5-0.5B-Instruct", "draft padded to 152064 rows"),
    Pair("Qwen2.5-3B-Instruct", "Qwen2.5-0.5B-Instruct"),
    Pair("Qwen3-8B", "Qwen3-0.6B"),
    Pair("SmallThinker-3B-Preview", "SmallThinker-0.5B"),
    Pair("SmolLM2-1.7B-Instruct", "SmolLM2-135M-Instruct"),
    Pair("gemma-2-9b-it", "gemma-2-2b-it"),
    Pair("gemma-3-4b-it", "gemma-3-1b-it", "draft padded to 262208 rows"),
)
"""Pairs people run elsewhere, whose vocabularies fit by their published sizes."""
