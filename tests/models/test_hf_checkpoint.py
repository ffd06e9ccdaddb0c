"""Hugging Face folders: what is read, and that damage and foreign architectures are named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensors import whole
from tiny import read_tiny_weights, save_weights, write_tiny_hf

from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import CheckpointError
from hexgraft.models.hf_checkpoint import HfCheckpoint
from hexgraft.models.rope_scaling import plain_rope

LAYER_1 = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
WHOLE = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}


def edit(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text())
    values.update(changes)
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "DROP"}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_hf(tmp_path / "model")


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.0), ("float16", 1e-3), ("bfloat16", 1e-2)])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_reads_every_tensor(tmp_path: Path, family: str, dtype: str, tolerance: float) -> None:
    exact = read_tiny_weights(write_tiny_hf(tmp_path / "exact", family=family, tied=False))
    checkpoint = HfCheckpoint(write_tiny_hf(tmp_path / "model", family=family, tied=False, dtype=dtype))
    names = (
        WHOLE
        | {"head": "lm_head.weight"}
        | {f"layers.1.{k}": f"model.layers.1.{v}" for k, v in LAYER_1.items()}
    )
    if family == "qwen2":
        names |= {f"layers.1.{x}_bias": f"model.layers.1.self_attn.{x}_proj.bias" for x in "qkv"}
    for name, source in names.items():
        read = whole(checkpoint, name)
        assert read.dtype == np.float32
        np.testing.assert_allclose(read, exact[source], rtol=tolerance, atol=tolerance * 1e-3)
    assert checkpoint.source_format == f"safetensors {dtype}"
    assert checkpoint.config.qkv_bias == (family == "qwen2")
    assert not checkpoint.config.tied


def test_config_of_the_folder(folder: Path) -> None:
    (folder / "README.md").write_text("---\ntags: [x]\nlicense: apache-2.0\n---\n# Tiny\n")
    checkpoint = HfCheckpoint(folder)
    config = checkpoint.config
    sizes = (
        config.layers,
        config.hidden,
        config.heads,
        config.kv_heads,
        config.head_dim,
        config.ffn,
        config.vocab,
    )
    assert sizes == (3, 64, 4, 2, 16, 96, 320)
    assert (config.rope, config.rms_eps, config.context) == (plain_rope(16, 10000.0), 1e-5, 512)
    assert config.tied
    assert (checkpoint.name, checkpoint.license) == ("model", "apache-2.0")


def test_blocks_are_consecutive_rows_of_bounded_size(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = HfCheckpoint(folder)
    expected = whole(checkpoint, "embed")
    monkeypatch.setattr("hexgraft.models.blocks.BLOCK_BYTES", 7 * 64 * 4 + 3)
    blocks = list(checkpoint.blocks("embed"))
    assert [len(block) for block in blocks] == [7] * 45 + [5]
    np.testing.assert_array_equal(np.concatenate(blocks), expected)


def test_transformers_5_writes_rope_parameters(folder: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 500000.0}
    edit(folder / "config.json", rope_theta="DROP", head_dim=None, rope_parameters=parameters)
    config = HfCheckpoint(folder).config
    assert config.rope == plain_rope(16, 500000.0)
    assert config.head_dim == 16


def test_a_window_of_mistral_is_every_layers(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "m", family="mistral")
    for window, expected in ((None, None), (256, 256), ("DROP", 4096)):
        edit(folder / "config.json", sliding_window=window, max_position_embeddings=8192)
        config = HfCheckpoint(folder).config
        assert config.window == expected
        assert config.local_layers == ((0, 1, 2) if expected else ())
        assert config.within(256).window is None
        assert not config.within(256).local_layers
        assert config.within(257).window == (256 if window == 256 else None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model type mamba is not supported"),
        ({"model_type": "DROP"}, "has no model_type"),
        ({"attention_bias": True}, "self_attn.[qkvo]_proj.bias is missing"),
        ({"mlp_bias": True}, "mlp.gate_proj.bias is missing"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "RoPE settings has no low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor is 0, not a positive number"),
        ({"rope_scaling": {"type": "longrope"}}, "short_factor is not a list"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1] * 7}}, "not 8 positive numbers"),
        ({"rope_parameters": {"rope_type": "proportional"}}, "RoPE scaling of type proportional"),
        ({"rope_scaling": 8}, "rope_scaling is not an object"),
        ({"partial_rotary_factor": 0.1}, "RoPE over 1 of 16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised by fp8"),
        (
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layers of type sliding_attention are not supported in llama",
        ),
        ({"num_hidden_layers": 10**9}, "layers are more than"),
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": 10**40}, "not a positive whole number"),
        ({"rms_norm_eps": True}, "rms_norm_eps is True"),
        ({"num_hidden_layers": 2}, "tensor model.layers.2"),
        ({"num_hidden_layers": 4}, "tensor model.layers.3.input_layernorm.weight is missing"),
        ({"tie_word_embeddings": False}, "tensor lm_head.weight is missing"),
        ({"vocab_size": 321}, r"embed_tokens.weight .* has shape \[320, 64\]"),
        ({"vocab_size": 1 << 30}, "config.json asks for"),
        ({"num_key_value_heads": 3}, "cannot be shared"),
    ],
)
def test_refuses_what_it_does_not_know(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        HfCheckpoint(folder)


def test_refusal_lists_the_supported_families(folder: Path) -> None:
    edit(folder / "config.json", model_type="phi4")
    with pytest.raises(CheckpointError) as caught:
        HfCheckpoint(folder)
    assert caught.value.hint == (
        "supported: gemma, gemma2, gemma3, gemma3_text, granite, internlm3, llama, mistral, phi3, qwen2, "
        "qwen3, smollm3"
    )


@settings(max_examples=60)
@given(st.floats(0, 1))
def test_truncation_anywhere_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    folder = write_tiny_hf(tmp_path_factory.mktemp("cut"), layers=1)
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: int(share * (len(data) - 1))])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        HfCheckpoint(folder)


def test_absurd_header_length_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes((1 << 60).to_bytes(8, "little") + file.read_bytes()[8:])
    with pytest.raises(CheckpointError, match="truncated or damaged"):
        HfCheckpoint(folder)


def test_wrong_type_and_foreign_tensors(folder: Path) -> None:
    weights = read_tiny_weights(folder)
    save_weights(
        folder / "model.safetensors", weights | {"model.layers.0.self_attn.q_norm.weight": np.ones(16)}
    )
    with pytest.raises(CheckpointError, match=r"q_norm.weight that a llama model lacks"):
        HfCheckpoint(folder)
    save_weights(folder / "model.safetensors", weights)
    raw = (folder / "model.safetensors").read_bytes()
    # int32 where float32 was: same size, so that only the type is wrong.
    (folder / "model.safetensors").write_bytes(raw.replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(CheckpointError, match="of type I32, which is not supported"):
        HfCheckpoint(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(folder: Path, value: float) -> None:
    weights = read_tiny_weights(folder)
    weights["model.layers.2.mlp.up_proj.weight"][5, 7] = value
    save_weights(folder / "model.safetensors", weights)
    checkpoint = HfCheckpoint(folder)
    with pytest.raises(CheckpointError, match=r"model.layers.2.mlp.up_proj.weight .* NaN or infinite"):
        list(checkpoint.blocks("layers.2.up"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not valid JSON"), ("[1]", "list where a JSON object"), ("[" * 200000, "not valid JSON")],
)
def test_malformed_config(folder: Path, text: str, message: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        HfCheckpoint(folder)


def test_missing_files(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"no model.safetensors") as caught:
        HfCheckpoint(folder)
    assert caught.value.hint is not None
    assert "pickles" in caught.value.hint
    with pytest.raises(CheckpointError, match=r"config.json is missing"):
        HfCheckpoint(tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        open_checkpoint(tmp_path / "nothing")


def test_folders_that_are_no_model_are_told_by_what_they_hold(tmp_path: Path) -> None:
    adapter, files = tmp_path / "lora", tmp_path / "files"
    for folder in (adapter, files):
        folder.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"is an adapter \(LoRA\), not a model of its own") as caught:
        open_checkpoint(adapter)
    assert "merge_and_unload" in str(caught.value.hint)
    (files / "m-Q8_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="a model of GGUF is a file") as caught:
        open_checkpoint(files)
    assert caught.value.hint == f"give the file: {files / 'm-Q8_0.gguf'}"
    (files / "m-F16.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="a model of GGUF is a file") as caught:
        open_checkpoint(files)
    assert caught.value.hint == f"give the file: {files / 'm-F16.gguf'}, or another of the 2 there"


def test_reading_a_big_tensor_takes_the_memory_of_blocks(tmp_path: Path) -> None:
    folder = write_tiny_hf(tmp_path / "model", layers=1)
    rows = 2_000_000
    values = {"model.embed_tokens.weight": np.zeros((1, 64), np.float32), **read_tiny_weights(folder)}
    values.pop("model.embed_tokens.weight")
    save_weights(folder / "model.safetensors", values)
    _append_sparse(folder / "model.safetensors", "model.embed_tokens.weight", (rows, 64))
    edit(folder / "config.json", vocab_size=rows)
    code = (
        "import re, sys; from pathlib import Path\n"
        "from hexgraft.models.hf_checkpoint import HfCheckpoint\n"
        # Not getrusage: that counts what the parent had at the fork.
        "status = Path('/proc/self/status').read_text\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', status())[1])\n"
        "c = HfCheckpoint(Path(sys.argv[1])); before = peak()\n"
        "rows = sum(len(b) for b in c.blocks('embed'))\n"
        "print(rows, (peak() - before) >> 10)"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    read, growth = map(int, done.stdout.split())
    assert read == rows
    assert growth < 120  # MB, of a tensor of 488 MB


def _append_sparse(path: Path, name: str, shape: tuple[int, int]) -> None:
    """Add a float32 tensor of zeros to a safetensors file without writing its data."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + size]), raw[8 + size :]
    header[name] = {
        "dtype": "F32",
        "shape": shape,
        "data_offsets": [len(data), len(data) + 4 * shape[0] * shape[1]],
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + data)
        file.truncate(8 + len(text) + header[name]["data_offsets"][1])


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_of_a_vision_model(tmp_path: Path, prefix: str) -> None:
    """Gemma 3 with a vision tower: the text model's names stand behind a prefix, its sizes in text_config."""
    plain = write_tiny_hf(tmp_path / "plain")
    folder = write_tiny_hf(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    names = {"post_attention_layernorm": "pre_feedforward_layernorm"}
    weights: dict[str, np.ndarray] = {"vision_tower.encoder.weight": np.ones((4, 4), np.float32)}
    for name, array in read_tiny_weights(plain).items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[name.replace("model.", prefix, 1)] = array
    for i in range(3):
        layer = f"{prefix}layers.{i}."
        for part, width in (("post_attention_layernorm", 64), ("post_feedforward_layernorm", 64)):
            weights[f"{layer}{part}.weight"] = np.zeros(width, np.float32)
        for part in ("q_norm", "k_norm"):
            weights[f"{layer}self_attn.{part}.weight"] = np.full(16, 0.5, np.float32)
    save_weights(folder / "model.safetensors", weights)
    text = {key: config[key] for key in config if key not in ("model_type", "hidden_act")}
    whole_config = {"model_type": "gemma3", "text_config": text | {"rope_theta": 1e6, "sliding_window": 64}}
    (folder / "config.json").write_text(json.dumps(whole_config))
    checkpoint = HfCheckpoint(folder)
    assert checkpoint.config.family == "gemma3"
    assert checkpoint.config.window == 64
    assert checkpoint.config.local_rope == plain_rope(16, 10000.0)
    for name, source in (("embed", "embed_tokens"), ("layers.1.down", "layers.1.mlp.down_proj")):
        np.testing.assert_array_equal(
            whole(checkpoint, name), read_tiny_weights(plain)[f"model.{source}.weight"]
        )
    assert (whole(checkpoint, "layers.2.attn_post_norm") == 1).all()
    assert (whole(checkpoint, "layers.0.q_norm") == 1.5).all()
