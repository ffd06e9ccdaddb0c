"""The graph against Hugging Face transformers, and static graphs against the symbolic file they are cut
from."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from families import save_family
from numpy.typing import NDArray
from pair import make_pair
from tensors import whole
from tiny import write_tiny_hf

from hexgraft.export.static import cut_static, static_name
from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import causal, tree_visibility
from hexgraft.host.tree import TreeBuilder
from hexgraft.models import attention as attention_module
from hexgraft.models.attention import CHOSEN, FUSED, STACKED
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.decoder import build_decoder, dimensions
from hexgraft.models.fetch import fetch_smollm2

WIDTHS = (1, 8, 16, 32, 128)
FAMILIES: dict[str, dict[str, Any]] = {
    "llama-1:1-tied": {"family": "llama", "heads": 4, "kv_heads": 4},
    "llama-3:1-untied": {"family": "llama", "heads": 6, "kv_heads": 2, "hidden": 96, "tied": False},
    "llama-8:1-tied": {"family": "llama", "heads": 8, "kv_heads": 1, "hidden": 128},
    "llama-wide-heads": {"family": "llama", "heads": 4, "kv_heads": 2, "head_dim": 32},
    "qwen2-2:1-tied": {"family": "qwen2", "heads": 4, "kv_heads": 2, "theta": 1e6, "eps": 1e-6},
    "qwen2-8:1-untied": {"family": "qwen2", "heads": 8, "kv_heads": 1, "hidden": 128, "tied": False},
    "mistral-2:1-untied": {"family": "mistral", "heads": 4, "kv_heads": 2, "tied": False},
}


def reference_logits(checkpoint: Path, tokens: list[int]) -> NDArray[np.float32]:
    """Logits [T, vocab] of transformers' own model in fp32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits: NDArray[np.float32] = model(torch.tensor([tokens])).logits[0].numpy()
    return logits


def session_logits(session: CpuSession, tokens: list[int], width: int) -> NDArray[np.float32]:
    """Logits of every position, computed in passes of `width` rows over the cache."""
    session.reset()
    found = []
    for start in range(0, len(tokens), width):
        chunk = tokens[start : start + width]
        places = range(start, start + len(chunk))
        rows = session.forward(chunk, places, causal(start, len(chunk)))
        session.store(range(len(chunk)), places)
        found += [rows.logits(row) for row in range(len(chunk))]
    return np.stack(found)


@pytest.mark.parametrize("attention", [STACKED, CHOSEN, FUSED])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_of_every_width_equal_transformers(name: str, attention: str, tmp_path: Path) -> None:
    checkpoint = write_tiny_hf(tmp_path / "model", **FAMILIES[name])
    options = ExportOptions(WIDTHS, 256, attention=attention)
    export_bundle(open_checkpoint(checkpoint), tmp_path / "b", options=options, report=lambda step: None)
    bundle = open_bundle(tmp_path / "b")
    tokens = np.random.default_rng(1).integers(0, 320, 140).tolist()
    expected = reference_logits(checkpoint, tokens)
    free = CpuSession(bundle)
    for width in WIDTHS:
        padded = CpuSession(bundle, widths=[width], whole=True, share=free)
        for session in (free, padded):
            logits = session_logits(session, tokens, width)
            np.testing.assert_allclose(logits, expected, atol=2e-3, rtol=0)
            assert (logits.argmax(1) == expected.argmax(1)).all()


def stacks_of(bundle: Bundle, width: int, capacity: int) -> int:
    """The stacks that a pass puts the queries of a key/value head in."""
    file = bundle.file(bundle.graph("target", "cpu").file)
    proto = onnx.load(file)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("q_stacks", onnx.TensorProto.INT64, [4]))
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    sizes = dimensions(width, capacity)
    types = {"tensor(float)": np.float32, "tensor(int32)": np.int32}
    inputs = {
        value.name: np.zeros([sizes.get(size, size) for size in value.shape], types[value.type])
        for value in session.get_inputs()
    }
    shape = session.run(["q_stacks"], inputs)[0].tolist()
    model = bundle.target
    assert [shape[0], *shape[2:]] == [model.kv_heads, -1, model.head_dim]
    return int(shape[1])


@pytest.mark.parametrize("name", ["gemma2", "qwen3"])
def test_stacks_are_chosen_by_rows_and_capacity_and_change_hardly_a_digit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Side by side for one row and in a cache of 64 slots, stacked for more rows in one of 128 or 192."""
    checkpoint = open_checkpoint(save_family(tmp_path / "model", name))
    group = checkpoint.config.group
    assert group > 1
    monkeypatch.setattr(attention_module, "SHORT", 64 * group)
    tokens, found = np.random.default_rng(3).integers(0, 300, 150).tolist(), []
    for attention in (STACKED, CHOSEN):
        options = ExportOptions((1, 8), 192, attention=attention)
        export_bundle(checkpoint, tmp_path / attention, options=options, report=lambda step: None)
        bundle = open_bundle(tmp_path / attention)
        session = CpuSession(bundle, threads=1)
        found.append([session_logits(session, tokens, width) for width in (1, 8)])
    for stacks, chosen in zip(*found, strict=True):
        np.testing.assert_allclose(chosen, stacks, atol=3e-5 * float(np.abs(stacks).max()), rtol=0)
    assert [stacks_of(bundle, *sizes) for sizes in ((1, 192), (8, 64), (8, 65))] == [group, group, 1]


@pytest.mark.parametrize("attention", [STACKED, CHOSEN, FUSED])
def test_a_tree_pass_equals_transformers_on_each_path(attention: str, tmp_path: Path) -> None:
    checkpoint = write_tiny_hf(tmp_path / "model", family="qwen2", heads=8, kv_heads=2, hidden=128)
    export_bundle(
        open_checkpoint(checkpoint),
        tmp_path / "b",
        options=ExportOptions(WIDTHS, 64, attention=attention),
        report=lambda step: None,
    )
    session = CpuSession(open_bundle(tmp_path / "b"))
    prefix = [3, 1, 4, 1, 5]
    session_logits(session, prefix, 8)
    builder = TreeBuilder(9)
    for parent, token in ((0, 2), (0, 6), (1, 5), (2, 3), (2, 5), (4, 8), (3, 9)):
        builder.add(parent, token, 0.5, "test")
    tree = builder.build()
    visible = tree_visibility(5, tree.ancestors())
    rows = session.forward(tree.tokens.tolist(), (5 + tree.depths).tolist(), visible)
    for node in range(len(tree)):
        path = tree.tokens[tree.path(node)].tolist()
        expected = reference_logits(checkpoint, prefix + path)[-1]
        np.testing.assert_allclose(rows.logits(node), expected, atol=2e-3, rtol=0)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"), noise=None)


@pytest.mark.parametrize("width", [1, 8, 16, 32])
def test_static_graphs_are_the_symbolic_file_with_two_numbers_fixed(
    pair: Bundle, width: int, tmp_path: Path
) -> None:
    """Node for node the same, and bit for bit the same results at equal width and capacity."""
    file = cut_static(pair, "target", width, tmp_path)
    static, symbolic = onnx.load(file, load_external_data=False), load_symbolic(pair)
    assert (
        file.name == f"{static_name('target', width, 256)}.onnx" == f"target_ar{width}_cl{256 + width}.onnx"
    )
    assert [n.SerializeToString() for n in static.graph.node] == [
        n.SerializeToString() for n in symbolic.graph.node
    ]
    onnx.checker.check_model(str(file), full_check=True)
    feeds = random_feeds(static)
    a = run_model(file, feeds)
    b = run_model(pair.file(pair.graph("target", "cpu").file), feeds)
    for x, y in zip(a, b, strict=True):
        assert (x == y).all()


def load_symbolic(bundle: Bundle) -> onnx.ModelProto:
    return onnx.load(bundle.file(bundle.graph("target", "cpu").file), load_external_data=False)


def random_feeds(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(7)
    feeds: dict[str, NDArray[Any]] = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        assert all(shape), f"{value.name} is not static"
        if value.name == "input_ids":
            feeds[value.name] = rng.integers(0, 320, shape).astype(np.int32)
        else:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    return feeds


def run_model(file: Path, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    runtime = ort.InferenceSession(file, providers=["CPUExecutionProvider"])
    outputs: list[NDArray[Any]] = runtime.run(None, feeds)
    return outputs


def test_the_graph_follows_the_contract(pair: Bundle) -> None:
    """Names and shapes of section 3, which vendor tools rely on."""
    graph = load_symbolic(pair).graph
    t, c = "width", "capacity"
    expected: dict[str, list[int | str]] = {
        "input_ids": [1, t],
        "attention_mask": [1, 1, t, "capacity_plus_width"],
        "position_ids_cos": [1, 1, t, 8],
        "position_ids_sin": [1, 1, t, 8],
        "logits": [1, t, 320],
    }
    for i in range(3):
        expected |= {
            f"past_key_{i}_in": [2, 1, 16, c],
            f"past_value_{i}_in": [2, 1, c, 16],
            f"past_key_{i}_out": [2, 1, 16, t],
            f"past_value_{i}_out": [2, 1, t, 16],
        }
    found = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert found == expected
    assert dimensions(16, 256) == {"width": 16, "capacity": 256, "capacity_plus_width": 272}
    assert sum(node.op_type == "RMSNormalization" for node in graph.node) == 7


def test_every_value_has_one_writer(tmp_path: Path) -> None:
    config = open_checkpoint(write_tiny_hf(tmp_path / "m", family="qwen2", tied=False)).config
    graph = build_decoder(config, "w", name="x", features=(0, 2, 3))
    names = [name for node in graph.proto.graph.node for name in node.output]
    names += [i.name for i in graph.proto.graph.initializer] + [i.name for i in graph.proto.graph.input]
    assert len(names) == len(set(names))
    (hidden,) = (o for o in graph.proto.graph.output if o.name == "hidden")
    assert hidden.type.tensor_type.shape.dim[2].dim_value == 3 * config.hidden


@pytest.mark.slow
def test_smollm2_equals_transformers_over_a_chat(tmp_path: Path) -> None:
    """200 tokens of a chat through every width, against transformers' Llama holding the same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from hexgraft.host.text import TextCodec
    from hexgraft.models.config import tensor_shapes

    checkpoint = open_checkpoint(fetch_smollm2())
    export_bundle(checkpoint, tmp_path / "b", options=ExportOptions(), report=lambda step: None)
    bundle = open_bundle(tmp_path / "b")
    text = " ".join(f"Item {n}: tell me why the sea is salty, and how we know." for n in range(30))
    tokens = TextCodec(bundle).encode_chat([{"role": "user", "content": text}])[:200]
    assert len(tokens) == 200
    c = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=c.vocab,
            hidden_size=c.hidden,
            intermediate_size=c.ffn,
            num_hidden_layers=c.layers,
            num_attention_heads=c.heads,
            num_key_value_heads=c.kv_heads,
            head_dim=c.head_dim,
            rms_norm_eps=c.rms_eps,
            max_position_embeddings=c.context,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            tie_word_embeddings=True,
        )
    )
    names = {"embed": "model.embed_tokens", "norm": "model.norm"}
    inner = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        **{p: f"self_attn.{p}_proj" for p in "qkvo"},
        **{p: f"mlp.{p}_proj" for p in ("gate", "up", "down")},
    }
    state = {}
    for name in tensor_shapes(c):
        _, _, rest = name.partition(".")
        layer, _, part = rest.partition(".")
        theirs = names[name] if name in names else f"model.layers.{layer}.{inner[part]}"
        state[theirs + ".weight"] = torch.from_numpy(whole(checkpoint, name))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    with torch.no_grad():
        expected = model.eval()(torch.tensor([tokens])).logits[0].numpy()
    del model
    gc.collect()
    free = CpuSession(bundle)
    for width in WIDTHS:
        logits = session_logits(free, tokens, width)
        assert np.abs(logits - expected).max() <= 2e-3
        assert (logits.argmax(1) == expected.argmax(1)).all()
