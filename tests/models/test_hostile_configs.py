"""Configurations with any value put wrong: a model or a CheckpointError in words, never another exception."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from families import FAMILIES, save_family
from families_gguf import write_family_gguf

from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.config import tensor_shapes
from hexgraft.models.errors import CheckpointError
from hexgraft.models.gguf_config import config_from_gguf
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.hf_config import config_from_hf
from hexgraft.models.hf_int4 import packing_from_hf

HOSTILE: list[Any] = [
    None,
    -1,
    0,
    1,
    2,
    7,
    2 * 10**9,
    1 << 31,
    10**40,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
]
HOSTILE += [
    "",
    "x",
    "sliding_attention",
    True,
    False,
    [],
    [None],
    [1] * 4,
    ["full_attention"] * 4,
    {},
    {"a": 1},
]
HOSTILE += [{"rope_type": "yarn"}, {"rope_type": "llama3", "factor": -1}, {"rope_type": 3}, {"factor": "x"}]
NAMES = ["llama3", "qwen2-yarn", "qwen3-window", "smollm3", "phi3-longrope", "gemma2", "gemma3", "granite"]


@pytest.fixture(scope="module", params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_family(tmp_path_factory.mktemp("family") / "m", request.param)


def test_any_value_of_a_config_json(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    rng = random.Random(1)
    known = [*values, "rope_scaling", "sliding_window", "layer_types", "attention_bias", "text_config"]
    known += ["use_sliding_window", "partial_rotary_factor", "quantization_config", "hidden_activation"]
    inner = values["rope_parameters"]
    refused = 0
    for key in known:
        for value in HOSTILE:
            refused += refuses({**values, key: value})
    for key in [*inner, "attention_factor", "beta_fast", "mscale", "mscale_all_dim", "original", "rope_type"]:
        for value in HOSTILE:
            refused += refuses({**values, "rope_parameters": {**inner, key: value}})
    for _ in range(300):
        changed = {key: rng.choice(HOSTILE) for key in rng.sample(known, 3)}
        refused += refuses({**values, **changed})
    assert refused > 400


def refuses(values: dict[str, Any]) -> bool:
    try:
        config = config_from_hf(values)
        packing_from_hf(values, "config.json")
    except CheckpointError:
        return True
    for rope in (config.rope, config.local_rope or config.rope):
        assert np.isfinite(rope.frequencies).all()
        assert np.isfinite(rope.scale)
    return False


def test_any_value_of_gguf_metadata(folder: Path, tmp_path: Path) -> None:
    file = GgufFile(write_family_gguf(folder, tmp_path / "m.gguf")[0])
    refused = 0
    whole = dict(file.fields)
    family = whole["general.architecture"]
    keys = [key for key in whole if key.startswith(f"{family}.")]
    keys += [f"{family}.rope.scaling.{part}" for part in ("type", "factor", "attn_factor", "yarn_beta_fast")]
    keys += [f"{family}.rope.scale_linear", f"{family}.attention.scale", f"{family}.attention.sliding_window"]
    for key in keys:
        for value in HOSTILE:
            file.fields = {**whole, key: value}
            try:
                assert np.isfinite(config_from_gguf(file).rope.frequencies).all()
            except CheckpointError:
                refused += 1
    assert refused > 200


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_any_value_of_what_is_said_of_tokens(file: str, tmp_path: Path) -> None:
    """The three files name the same things: each is read, whichever of them is taken."""
    folder = save_family(tmp_path / "m", "qwen2")
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    values = json.loads((folder / file).read_text())
    refused = 0
    for key in ("eos_token_id", "bos_token_id", "eos_token", "bos_token", "chat_template", "add_bos_token"):
        for value in [*HOSTILE, [{"name": "default", "template": 3}]]:
            (folder / file).write_text(json.dumps({**values, key: value}))
            try:
                open_checkpoint(folder)
            except CheckpointError:
                refused += 1
    assert refused >= 5


@pytest.mark.parametrize("name", ["phi3", "gemma3"])
def test_wrong_shapes_of_fused_and_extra_tensors(name: str, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    folder = save_family(tmp_path / "m", name)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    chosen = next(key for key in tensors if key.endswith(("qkv_proj.weight", "q_norm.weight")))
    for array in (tensors[chosen][:-1], np.full_like(tensors[chosen], np.nan)):
        save_file({**tensors, chosen: np.ascontiguousarray(array)}, path)
        with pytest.raises(CheckpointError, match=chosen):
            read_all(folder)


def read_all(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name in tensor_shapes(checkpoint.config):
        for _ in checkpoint.blocks(name):
            pass


def test_every_family_is_a_model_of_its_own_kind() -> None:
    """The families these tests draw from are those of the families' own test."""
    assert set(NAMES) < set(FAMILIES)
