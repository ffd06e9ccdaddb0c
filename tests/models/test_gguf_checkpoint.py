"""GGUF files: the same tensors as a Hugging Face folder of the same weights; damaged headers are refused."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tensors import whole
from tiny import Sizes, add_gguf_fields, gguf_name, permute, tiny_weights, write_tiny_gguf, write_tiny_hf

from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.config import tensor_shapes
from hexgraft.models.errors import CheckpointError
from hexgraft.models.fetch import fetch_smollm2
from hexgraft.models.gguf_checkpoint import GgufCheckpoint, supported_kinds
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.hf_checkpoint import HfCheckpoint
from hexgraft.models.rope_scaling import plain_rope

SIZES = [
    {"family": "llama"},
    {"family": "llama", "tied": False, "heads": 8, "kv_heads": 1, "head_dim": 8},
    {"family": "llama", "heads": 3, "kv_heads": 3, "head_dim": 32, "hidden": 64},
    {"family": "qwen2", "tied": False},
]
TOLERANCE = {"F32": 0.0, "F16": 1e-3, "BF16": 5e-3, "Q8_0": 5e-3, "Q5_1": 4e-2, "Q4_1": 8e-2, "Q4_0": 0.15}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("quant", ["F32", "F16", "Q8_0"])
def test_equals_the_hugging_face_folder(tmp_path: Path, sizes: dict[str, Any], quant: str) -> None:
    folder = HfCheckpoint(write_tiny_hf(tmp_path / "hf", **sizes))
    file = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", quant=quant, **sizes))
    ours, theirs = file.config, folder.config
    assert ours.rms_eps == pytest.approx(theirs.rms_eps)
    fields = (
        "family",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "context",
        "rope",
    )
    for field in (*fields, "tied", "qkv_bias"):
        assert getattr(ours, field) == getattr(theirs, field)
    for name, shape in tensor_shapes(theirs).items():
        read, expected = whole(file, name), whole(folder, name)
        assert read.shape == shape
        np.testing.assert_allclose(read, expected, atol=TOLERANCE[quant] * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("quant", TOLERANCE)
def test_small_blocks_equal_the_whole(tmp_path: Path, quant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant)
    checkpoint = GgufCheckpoint(path)
    assert checkpoint.source_format == f"GGUF {quant}"
    expected = {name: whole(checkpoint, name) for name in tensor_shapes(checkpoint.config)}
    exact = tiny_weights(Sizes(), 0)["model.layers.1.self_attn.q_proj.weight"]
    np.testing.assert_allclose(expected["layers.1.q"], exact, atol=TOLERANCE[quant] * np.abs(exact).max())
    monkeypatch.setattr("hexgraft.models.blocks.BLOCK_BYTES", 5000)
    for name, array in expected.items():
        blocks = list(checkpoint.blocks(name))
        assert all(block.nbytes <= 5000 for block in blocks if block.ndim == 2)
        np.testing.assert_array_equal(np.concatenate(blocks), array)


def test_llama_biases_are_unpermuted_too(tmp_path: Path) -> None:
    checkpoint = GgufCheckpoint(write_tiny_gguf(tmp_path / "m.gguf", quant="F32", bias=True))
    exact = tiny_weights(Sizes(bias=True), 0)
    assert checkpoint.config.qkv_bias
    for part in "qkv":
        read = whole(checkpoint, f"layers.2.{part}_bias")
        np.testing.assert_array_equal(read, exact[f"model.layers.2.self_attn.{part}_proj.bias"])


def test_every_kind_the_package_dequantises_is_supported() -> None:
    names = {kind.name for kind in supported_kinds()}
    assert names >= {
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q2_K",
        "Q4_K",
        "Q6_K",
        "IQ4_XS",
    }
    assert not names & {"F64", "I8", "I32", "Q8_K"}


class Edited:
    """A tiny GGUF written with changed metadata, tensors or storage types."""

    def __init__(self, path: Path, family: str = "llama") -> None:
        self.path, self.family = path, family
        self.fields: dict[str, tuple[Any, gguf.GGUFValueType]] = {}
        self.tensors = {gguf_name(name): array for name, array in tiny_weights(Sizes(), 0).items()}
        self.dropped: set[str] = set()

    def write(self) -> Path:
        writer = gguf.GGUFWriter(self.path, self.family)
        add_gguf_fields(writer, Sizes(), "smollm")
        values = writer.kv_data[0]
        for key, (value, kind) in self.fields.items():
            values[key] = gguf.gguf_writer.GGUFValue(value, kind)
        for key in self.dropped:
            del values[key]
        for name, array in self.tensors.items():
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return self.path


STRING, UINT, FLOAT = gguf.GGUFValueType.STRING, gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"general.architecture": ("mamba", STRING)}, "architecture mamba is not supported"),
        ({"split.count": (3, UINT)}, "one of 3 parts of a split GGUF, but not named"),
        ({"llama.expert_count": (8, UINT)}, "mixture of 8 experts"),
        ({"llama.rope.scaling.type": ("spiral", STRING)}, "RoPE scaling of type spiral"),
        ({"llama.rope.scale_linear": (-4.0, FLOAT)}, "not a positive number"),
        ({"llama.attention.sliding_window": ("x", STRING)}, "sliding_window is 'x'"),
        ({"llama.attention.value_length": (32, UINT)}, "value heads of 32 dimensions"),
        ({"llama.block_count": (4, UINT)}, "blk.3.attn_norm.weight is missing"),
        ({"llama.block_count": (2, UINT)}, "blk.2.* that a llama model lacks"),
        ({"llama.block_count": (4000000000, UINT)}, "not a positive whole number"),
        ({"llama.block_count": (40000000, UINT)}, "layers are more than"),
        ({"llama.feed_forward_length": (128, UINT)}, "has shape"),
        ({"llama.attention.head_count": ("x", STRING)}, "head_count is 'x'"),
        (
            {"llama.rope.dimension_count": (8, UINT)},
            "RoPE over 8 of 16 head dimensions is not supported in llama",
        ),
        ({"general.alignment": (48, UINT)}, "not a power of two"),
        ({"tokenizer.ggml.model": ("t5", STRING)}, "tokenizer model t5 is not supported"),
        ({"tokenizer.ggml.pre": ("falcon", STRING)}, "pre-tokenizer falcon is not supported"),
        ({"tokenizer.ggml.eos_token_id": (320, UINT)}, "token id 320"),
    ],
)
def test_refuses_what_it_does_not_know(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    edited = Edited(tmp_path / "m.gguf")
    edited.fields = fields
    path = edited.write()
    with pytest.raises(CheckpointError, match=message):
        GgufCheckpoint(path)


def test_refusals_list_what_is_supported(tmp_path: Path) -> None:
    edited = Edited(tmp_path / "m.gguf", family="phi4")
    with pytest.raises(CheckpointError) as caught:
        GgufCheckpoint(edited.write())
    assert caught.value.hint == (
        "supported: gemma, gemma2, gemma3, granite, llama, phi3, qwen2, qwen3, smollm3"
    )
    edited = Edited(tmp_path / "i.gguf")
    edited.tensors["blk.1.ffn_up.weight"] = edited.tensors["blk.1.ffn_up.weight"].astype(np.int8)
    with pytest.raises(CheckpointError, match=r"blk.1.ffn_up.weight .* has type I8") as caught:
        GgufCheckpoint(edited.write())
    assert caught.value.hint is not None
    assert "Q4_1" in caught.value.hint


def test_tensors_of_another_architecture(tmp_path: Path) -> None:
    for name, message in (
        ("rope_freqs.weight", "not 8 factors"),
        ("blk.0.attn_q_norm.weight", "lacks"),
    ):
        edited = Edited(tmp_path / f"{name}.gguf")
        edited.tensors[name] = np.ones(7, np.float32)
        with pytest.raises(CheckpointError, match=message):
            GgufCheckpoint(edited.write())


def test_missing_key_is_named(tmp_path: Path) -> None:
    for key in ("llama.block_count", "llama.attention.layer_norm_rms_epsilon"):
        edited = Edited(tmp_path / "m.gguf")
        edited.dropped = {key}
        with pytest.raises(CheckpointError, match=f"has no {key}"):
            GgufCheckpoint(edited.write())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(tmp_path: Path, value: float) -> None:
    edited = Edited(tmp_path / "m.gguf")
    edited.tensors["blk.1.attn_v.weight"][3, 4] = value
    checkpoint = GgufCheckpoint(edited.write())
    with pytest.raises(CheckpointError, match=r"blk.1.attn_v.weight .* NaN or infinite"):
        list(checkpoint.blocks("layers.1.v"))


def header(tensors: int, fields: int, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + rest


def key(name: str, kind: int) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF", "not a GGUF file"),
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (header(0, 0, version=1), "GGUF version 1"),
        (header(0, 0, version=0x03000000), "big-endian"),
        (header(1 << 60, 0), "it claims 1152921504606846976 tensors"),
        (header(0, 1 << 62), "metadata keys"),
        (header(9, 0), "header claims 8 more bytes"),
        (header(0, 1, struct.pack("<Q", 1 << 50)), "claims 1125899906842624 more bytes"),
        (header(0, 1, key("a", 77) + bytes(8)), "unknown value type 77"),
        (header(0, 1, key("a", 9) + struct.pack("<IQ", 8, 1 << 40)), "array items"),
        (header(0, 1, key("a", 9) + struct.pack("<IQ", 8, 1 << 21)), "claims 16777216 more bytes"),
        (header(0, 1, key("a", 9) + struct.pack("<IQ", 5, 1 << 21)), "claims 8388608 more bytes"),
        (header(0, 1, key("a", 9) + struct.pack("<IQ", 9, 1) + bytes(20)), "array of value type 9"),
        (header(0, 1, key("a", 8) + struct.pack("<Q", 2) + b"\xff\xfe"), "not UTF-8"),
        (header(0, 2, (key("a", 4) + bytes(4)) * 2), "key twice"),
        (header(1, 0, struct.pack("<QI", 0, 99)), "has 99 dimensions"),
        (header(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 0, 0)), "is truncated: tensor"),
        (header(1, 0, struct.pack("<QIQQIQ", 0, 2, 1 << 40, 1 << 40, 0, 0)), "is truncated: tensor"),
        (header(1, 0, struct.pack("<QIQIQ", 0, 1, 33, 8, 0) + bytes(200)), "not whole Q8_0 blocks"),
        (header(1, 0, struct.pack("<QIQIQ", 0, 1, 32, 4, 0)), "unknown type 4"),
        (header(2, 0, struct.pack("<QIQIQ", 0, 1, 4, 0, 0) * 2 + bytes(200)), "tensor name twice"),
        (header(0, 0), "has no general.architecture"),
    ],
)
def test_hostile_headers(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(CheckpointError, match=message):
        GgufCheckpoint(path)
    assert tracemalloc.get_traced_memory()[1] < 4e6  # whatever it claims
    tracemalloc.stop()


def test_truncation_anywhere_is_refused(tmp_path: Path) -> None:
    data = write_tiny_gguf(tmp_path / "m.gguf", layers=1).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [*range(0, len(data) - 40, 701), len(data) - 40]:
        cut.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            GgufCheckpoint(cut)


def test_flipped_bytes_are_refused_in_words_or_harmless(tmp_path: Path) -> None:
    """Any single damaged byte gives a checkpoint or a CheckpointError, never another exception."""
    data = bytearray(write_tiny_gguf(tmp_path / "m.gguf", layers=1).read_bytes())
    end = GgufFile(tmp_path / "m.gguf").tensors["token_embd.weight"].offset
    flipped, rng, refused = tmp_path / "flipped.gguf", random.Random(3), 0
    for _ in range(400):
        damaged = bytearray(data)
        damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
        flipped.write_bytes(damaged)
        try:
            list(GgufCheckpoint(flipped).blocks("layers.0.q"))
        except CheckpointError:
            refused += 1
    assert refused > 50


def test_reading_a_big_tensor_takes_the_memory_of_blocks(tmp_path: Path) -> None:
    rows = 2_000_000
    tensors = {name: array for name, array in tiny_weights(Sizes(layers=1), 0).items() if "embed" not in name}
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    add_gguf_fields(writer, Sizes(layers=1), "smollm")
    writer.kv_data[0]["llama.vocab_size"] = gguf.gguf_writer.GGUFValue(rows, UINT)
    for name, array in tensors.items():
        writer.add_tensor(gguf_name(name), array)
    writer.add_tensor_info("token_embd.weight", (rows, 64), np.dtype(np.float32), rows * 64 * 4)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    table = (tmp_path / "m.gguf").stat().st_size
    with (tmp_path / "m.gguf").open("r+b") as file:
        file.truncate(table + sum(array.nbytes for array in tensors.values()) + rows * 64 * 4 + 4096)
    code = (
        "import re, sys; from pathlib import Path\n"
        "from hexgraft.models.gguf_checkpoint import GgufCheckpoint\n"
        # Not getrusage: that counts what the parent had at the fork.
        "status = Path('/proc/self/status').read_text\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+)', status())[1])\n"
        "c = GgufCheckpoint(Path(sys.argv[1])); before = peak()\n"
        "rows = sum(len(b) for b in c.blocks('embed'))\n"
        "print(rows, (peak() - before) >> 10)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "m.gguf")]
    read, growth = map(
        int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    )
    assert read == rows
    assert growth < 120  # MB, of a tensor of 488 MB


def test_permutation_is_the_one_llama_cpp_applies() -> None:
    """The test helper's own permutation: the halves 0,1 | 2,3 of a head of four become pairs 0,2 | 1,3."""
    rows = np.arange(8, dtype=np.float32)[:, None]
    assert permute(rows, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.slow
def test_real_smollm2() -> None:
    checkpoint = open_checkpoint(fetch_smollm2())
    config = checkpoint.config
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (
        30,
        576,
        9,
        3,
        64,
    )
    assert (config.ffn, config.vocab, config.context, config.rope) == (
        1536,
        49152,
        8192,
        plain_rope(64, 100000.0),
    )
    assert config.tied
    assert not config.qkv_bias
    assert checkpoint.source_format == "GGUF Q4_1"
    assert checkpoint.license == "apache-2.0"
    assert checkpoint.tokenizer.stop_tokens == (0, 2)
    assert checkpoint.tokenizer.bos is None
    reader = {tensor.name: tensor for tensor in gguf.GGUFReader(checkpoint.path).tensors}
    for name, shape in tensor_shapes(config).items():
        assert whole(checkpoint, name).shape == shape
    raw = reader["blk.7.ffn_down.weight"]
    np.testing.assert_array_equal(
        whole(checkpoint, "layers.7.down"), gguf.quants.dequantize(raw.data, raw.tensor_type)
    )
