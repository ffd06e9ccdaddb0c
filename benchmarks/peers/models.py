"""The same weights in every peer's format, made once from a GGUF file with our own readers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.numpy import save_file

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.models.checkpoint import Checkpoint, open_checkpoint
from hexgraft.models.config import ModelConfig, tensor_shapes
from hexgraft.models.head_checkpoint import open_draft
from hexgraft.models.shipped_heads import SMOLLM2_HEAD, SMOLLM2_HEAD_PRECISION

_NAMES = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "attn_norm": "input_layernorm.weight",
    "ffn_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}


def once(path: Path, make: Callable[[Path], None]) -> Path:
    """`path`, made by `make` at a name of its own and then renamed, if it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name("new-" + path.name)
        if fresh.is_dir():
            shutil.rmtree(fresh)
        make(fresh)
        fresh.rename(path)
    return path


def bundle(checkpoint: Path, precision: str, attention: str, path: Path) -> Path:
    """A bundle of ours with SmolLM2's head at `path`, made anew: one that was kept may have the graphs of an
    earlier revision."""
    if path.exists():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = SMOLLM2_HEAD_PRECISION if precision == "fp32" else None
    options = ExportOptions((1, 8, 16), 1024, precision=precision, draft_precision=draft, attention=attention)
    target = open_checkpoint(checkpoint)
    head = open_draft(Path(SMOLLM2_HEAD), target)
    export_bundle(target, path, draft=head, options=options, report=lambda step: None)
    return path


def gguf_of(checkpoint: Path, kind: str, path: Path) -> None:
    """The file with every matrix dequantised and stored as `kind` (F16, Q8_0)."""
    reader = gguf.GGUFReader(checkpoint)
    field = reader.fields["general.architecture"]
    writer = gguf.GGUFWriter(path, field.contents())
    for name, found in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        inner = found.types[1] if found.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, found.contents(), found.types[0], sub_type=inner)
    wanted = gguf.GGMLQuantizationType[kind]
    writer.add_file_type(gguf.LlamaFileType["MOSTLY_" + kind])
    for tensor in reader.tensors:
        array = dequantize(tensor.data, tensor.tensor_type)
        if array.ndim == 1:
            writer.add_tensor(tensor.name, array)
        elif kind == "F16":
            writer.add_tensor(tensor.name, array.astype(np.float16))
        else:
            writer.add_tensor(tensor.name, quantize(array, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def hf_folder(checkpoint: Path, path: Path) -> None:
    """A Hugging Face folder of a Llama model in float32."""
    opened = open_checkpoint(checkpoint)
    path.mkdir()
    save_file(_tensors(opened), path / "model.safetensors", metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(_config(opened.config, opened.tokenizer.stop_tokens)))
    (path / "tokenizer.json").write_text(opened.tokenizer.tokenizer_json)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))


def genai_folder(site: Path, folder: Path, precision: str, path: Path) -> None:
    """What ONNX Runtime GenAI's model builder (in `site`) makes of a Hugging Face folder; the builder's own
    needs, torch and transformers, are this environment's."""
    run = f"import sys, runpy; sys.path.append({str(site)!r}); " + (
        "runpy.run_module('onnxruntime_genai.models.builder', run_name='__main__', alter_sys=True)"
    )
    options = ["int4_accuracy_level=4", "int4_block_size=32"] if precision == "int4" else []
    command = [sys.executable, "-c", run, "-i", str(folder), "-o", str(path), "-p", precision, "-e", "cpu"]
    command += ["-c", str(path) + ".cache", *(["--extra_options", *options] if options else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not (path / "genai_config.json").exists():
        raise RuntimeError(f"the model builder failed: {done.stderr.strip().splitlines()[-1:]}")


def _tensors(checkpoint: Checkpoint) -> dict[str, NDArray[np.float32]]:
    tensors = {}
    for name in tensor_shapes(checkpoint.config):
        _, *rest = name.split(".")
        place = _NAMES[name] if not rest else f"model.layers.{rest[0]}.{_NAMES[rest[1]]}"
        tensors[place] = np.concatenate(list(checkpoint.blocks(name)))
    return tensors


def _config(config: ModelConfig, stops: tuple[int, ...]) -> dict[str, object]:
    if config.family != "llama":
        raise ValueError(f"the peers are compared on a Llama model, not on {config.family}")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "intermediate_size": config.ffn,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.frequencies[1] ** -(config.head_dim / 2),
        "tie_word_embeddings": config.tied,
        "bos_token_id": 1,
        "eos_token_id": list(stops),
        "torch_dtype": "float32",
    }
