"""The config.json of published models, in the keys their authors wrote them with, give the right switches."""

from __future__ import annotations

from math import log, sqrt
from typing import Any

import pytest

from hexgraft.models.config import ModelConfig
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.rope_scaling import linear_rope, plain_rope


def sizes(**values: Any) -> dict[str, Any]:
    short = {
        "layers": "num_hidden_layers",
        "hidden": "hidden_size",
        "ffn": "intermediate_size",
        "heads": "num_attention_heads",
        "kv": "num_key_value_heads",
        "vocab": "vocab_size",
        "context": "max_position_embeddings",
    }
    return {short.get(key, key): value for key, value in values.items()}


def read(family: str, **values: Any) -> ModelConfig:
    return config_from_hf({"model_type": family, **sizes(**values)})


def test_llama_2() -> None:
    config = read(
        "llama", layers=32, hidden=4096, ffn=11008, heads=32, vocab=32000, context=4096, rope_scaling=None
    )
    assert config.rope == plain_rope(128, 10000.0)
    assert config.kv_heads == 32
    assert not config.tied


def test_llama_3_2_1b() -> None:
    scaling = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    config = read(
        "llama",
        layers=16,
        hidden=2048,
        ffn=8192,
        heads=32,
        kv=8,
        vocab=128256,
        context=131072,
        head_dim=64,
        attention_bias=False,
        rope_theta=500000.0,
        rope_scaling={**scaling, "original_max_position_embeddings": 8192},
        tie_word_embeddings=True,
        pretraining_tp=1,
    )
    plain = plain_rope(64, 500000.0).frequencies
    assert config.rope.frequencies[0] == 1.0
    assert config.rope.frequencies[-1] == pytest.approx(plain[-1] / 32)
    assert config.context == 131072
    assert config.tied


@pytest.mark.parametrize("theta", [1e6, 10000.0])
def test_qwen_2_5_and_r1_distill_use_no_window(theta: float) -> None:
    config = read(
        "qwen2",
        layers=28,
        hidden=1536,
        ffn=8960,
        heads=12,
        kv=2,
        vocab=151936,
        context=131072,
        rope_theta=theta,
        sliding_window=131072,
        use_sliding_window=False,
        max_window_layers=21,
        use_mrope=False,
        tie_word_embeddings=True,
    )
    assert config.qkv_bias
    assert not config.o_bias
    assert config.window is None
    assert not config.local_layers


@pytest.mark.parametrize("context", [32768, 131072])
@pytest.mark.parametrize("original", [32768, None])
def test_qwen_2_5_stretched_by_the_recipe_of_its_authors(context: int, original: int | None) -> None:
    """Who adds rope_scaling for long texts leaves max_position_embeddings as it was, or raises it, too."""
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": original}
    config = read(
        "qwen2",
        layers=28,
        hidden=3584,
        ffn=18944,
        heads=28,
        kv=4,
        vocab=152064,
        context=context,
        rope_theta=1e6,
        rope_scaling={key: value for key, value in scaling.items() if value is not None},
    )
    assert config.context == (131072 if original else context)
    assert config.rope.scale == pytest.approx(0.1 * log(4) + 1)


def test_qwen3_0_6b() -> None:
    config = read(
        "qwen3",
        layers=28,
        hidden=1024,
        ffn=3072,
        heads=16,
        kv=8,
        vocab=151936,
        context=40960,
        head_dim=128,
        attention_bias=False,
        sliding_window=None,
        use_sliding_window=False,
        max_window_layers=28,
        rope_theta=1000000,
        rope_scaling=None,
        tie_word_embeddings=True,
    )
    assert config.qk_norm
    assert not config.qkv_bias
    assert (config.heads * config.head_dim, config.hidden) == (2048, 1024)


@pytest.mark.parametrize(("window", "local"), [(4096, 32), (None, 0)])
def test_mistral_7b(window: int | None, local: int) -> None:
    config = read(
        "mistral",
        layers=32,
        hidden=4096,
        ffn=14336,
        heads=32,
        kv=8,
        vocab=32000,
        context=32768,
        sliding_window=window,
        rms_norm_eps=1e-05,
    )
    assert config.window == window
    assert len(config.local_layers) == local


PHI3 = {"layers": 32, "hidden": 3072, "ffn": 8192, "heads": 32, "kv": 32, "vocab": 32064}


def test_phi_3_mini_4k() -> None:
    config = read("phi3", **PHI3, context=4096, sliding_window=2047, rope_scaling=None, attention_bias=False)
    assert config.window == 2047
    assert config.rope == plain_rope(96, 10000.0)


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_phi_3_5_mini_128k(name: str) -> None:
    short, long = [1.0 + i / 100 for i in range(48)], [2.0] * 48
    config = read(
        "phi3",
        **PHI3,
        context=131072,
        original_max_position_embeddings=4096,
        sliding_window=262144,
        rope_scaling={"type": name, "short_factor": short, "long_factor": long},
    )
    assert config.context == 4096
    assert "longrope" in str(config.context_limit)
    assert config.rope.scale == pytest.approx(sqrt(1 + log(32) / log(4096)))
    assert config.rope.frequencies[9] == pytest.approx(plain_rope(96, 10000.0).frequencies[9] / 1.09)
    assert config.within(4096).window is None


def test_phi_4_mini() -> None:
    config = read(
        "phi3",
        layers=32,
        hidden=3072,
        ffn=8192,
        heads=24,
        kv=8,
        vocab=200064,
        context=131072,
        original_max_position_embeddings=4096,
        partial_rotary_factor=0.75,
        sliding_window=262144,
        tie_word_embeddings=True,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    )
    assert config.rotated == 96
    assert config.rope.dim == config.head_dim == 128
    assert config.rope.frequencies[48:] == (0.0,) * 16


@pytest.mark.parametrize("activation", [{"hidden_act": "gelu"}, {"hidden_activation": None}])
def test_gemma_2b(activation: dict[str, Any]) -> None:
    config = read(
        "gemma",
        layers=18,
        hidden=2048,
        ffn=16384,
        heads=8,
        kv=1,
        vocab=256000,
        context=8192,
        head_dim=256,
        **activation,
    )
    assert config.activation == "gelu_tanh"
    assert config.embedding_scale == pytest.approx(sqrt(2048))
    assert config.tied
    assert not config.sandwich


def test_gemma_2_2b() -> None:
    config = read(
        "gemma2",
        layers=26,
        hidden=2304,
        ffn=9216,
        heads=8,
        kv=4,
        vocab=256000,
        context=8192,
        head_dim=256,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        query_pre_attn_scalar=256,
        sliding_window=4096,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        rope_theta=10000.0,
    )
    assert (config.attention_softcap, config.final_softcap) == (50.0, 30.0)
    assert config.local_layers == tuple(range(0, 26, 2))
    assert config.query_scale == 1 / 16
    assert config.sandwich
    assert config.tied


def test_gemma_3_1b() -> None:
    config = read(
        "gemma3_text",
        layers=26,
        hidden=1152,
        ffn=6912,
        heads=4,
        kv=1,
        vocab=262144,
        context=32768,
        head_dim=256,
        query_pre_attn_scalar=256,
        rope_theta=1000000,
        rope_local_base_freq=10000,
        rope_scaling=None,
        sliding_window=512,
        sliding_window_pattern=6,
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
    )
    assert config.rope == plain_rope(256, 1e6)
    assert config.local_rope == plain_rope(256, 1e4)
    assert set(range(26)) - set(config.local_layers) == {5, 11, 17, 23}
    assert (config.window, config.final_softcap) == (512, None)
    assert config.qk_norm


def test_gemma_3_4b_gives_few_of_its_numbers() -> None:
    text = {"model_type": "gemma3_text", **sizes(hidden=2560, ffn=10240, layers=34), "sliding_window": 1024}
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    config = config_from_hf({"model_type": "gemma3", "text_config": text, "vision_config": {}})
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab) == (8, 4, 256, 262208)
    assert config.rope == linear_rope(256, 1e6, 8.0)
    assert config.local_rope == plain_rope(256, 1e4)
    assert config.context == 131072
    assert config.tied


def test_smollm3_3b() -> None:
    config = read(
        "smollm3",
        layers=36,
        hidden=2048,
        ffn=11008,
        heads=16,
        kv=4,
        vocab=128256,
        context=65536,
        rope_theta=5000000.0,
        rope_scaling=None,
        no_rope_layers=[1, 1, 1, 0] * 9,
        no_rope_layer_interval=4,
        layer_types=["full_attention"] * 36,
        use_sliding_window=False,
        sliding_window=None,
        attention_bias=False,
    )
    assert config.nope_layers == tuple(range(3, 36, 4))
    assert config.tied
    assert config.window is None


def test_granite_3_1_2b() -> None:
    config = read(
        "granite",
        layers=40,
        hidden=2048,
        ffn=8192,
        heads=32,
        kv=8,
        vocab=49155,
        context=131072,
        attention_multiplier=0.015625,
        embedding_multiplier=12.0,
        logits_scaling=8.0,
        residual_multiplier=0.22,
        rope_theta=5000000.0,
        tie_word_embeddings=True,
    )
    assert (config.query_scale, config.embedding_scale) == (0.015625, 12.0)
    assert (config.residual_scale, config.logit_scale) == (0.22, 0.125)


def test_internlm3_8b() -> None:
    config = read(
        "internlm3",
        layers=48,
        hidden=4096,
        ffn=10240,
        heads=32,
        kv=2,
        vocab=128512,
        context=32768,
        head_dim=128,
        bias=False,
        qkv_bias=False,
        rope_theta=50000000,
        rope_scaling={"factor": 6.0, "rope_type": "dynamic"},
    )
    assert config.rope == plain_rope(128, 5e7)
    assert (config.context, config.context_limit) == (32768, None)
    assert not config.mlp_bias
