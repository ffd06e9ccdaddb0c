"""A ModelConfig out of GGUF metadata; what it asks for beyond hexgraft is refused by name."""

from __future__ import annotations

from hexgraft.models.config import ModelConfig
from hexgraft.models.errors import CheckpointError
from hexgraft.models.gguf_file import GgufFile
from hexgraft.models.hf_config import MAX_LAYERS
from hexgraft.models.json_file import Fields
from hexgraft.models.rope_scaling import plain_rope

GGUF_FAMILIES = ("llama", "qwen2")


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """Read sizes from the metadata, and the switches `tied` and `qkv_bias` from the tensors that are there.

    Raises CheckpointError.
    """
    fields = Fields(file.fields, str(file.path))
    family = fields.text("general.architecture")
    if family not in GGUF_FAMILIES:
        raise CheckpointError(
            f"{file.path}: architecture {family} is not supported", f"supported: {', '.join(GGUF_FAMILIES)}"
        )
    _refuse_unsupported(file, fields, family)
    hidden, heads = (
        fields.integer(f"{family}.embedding_length"),
        fields.integer(f"{family}.attention.head_count"),
    )
    layers = fields.integer(f"{family}.block_count")
    if layers > MAX_LAYERS:
        raise CheckpointError(f"{file.path}: {layers} layers are more than the {MAX_LAYERS} hexgraft takes")
    key_length = f"{family}.attention.key_length"
    if key_length not in file.fields and hidden % heads:
        raise CheckpointError(f"{file.path}: embedding_length {hidden} does not divide into {heads} heads")
    head_dim = fields.integer(key_length, hidden // heads)
    tokens = file.fields.get("tokenizer.ggml.tokens")
    return ModelConfig(
        family=family,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=fields.integer(f"{family}.attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn=fields.integer(f"{family}.feed_forward_length"),
        vocab=fields.integer(f"{family}.vocab_size", len(tokens) if isinstance(tokens, list) else None),
        context=fields.integer(f"{family}.context_length"),
        rms_eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope=plain_rope(
            fields.integer(f"{family}.rope.dimension_count", head_dim),
            fields.number(f"{family}.rope.freq_base", 10000.0),
        ),
        tied="output.weight" not in file.tensors,
        qkv_bias=family == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
    )


def _refuse_unsupported(file: GgufFile, fields: Fields, family: str) -> None:
    path, values = file.path, file.fields
    if values.get("split.count", 1) not in (0, 1):
        raise CheckpointError(
            f"{path} is one of {values['split.count']} parts of a split GGUF, which is not supported",
            "merge the parts first: llama-gguf-split --merge FIRST_PART OUTPUT",
        )
    if values.get(f"{family}.expert_count", 0):
        raise CheckpointError(
            f"{path}: a mixture of {values[f'{family}.expert_count']} experts is not supported"
        )
    scaling = values.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none" or values.get(f"{family}.rope.scale_linear", 1.0) != 1.0:
        kind = "linear" if scaling == "none" else scaling
        raise CheckpointError(f"{path}: RoPE scaling of type {kind} is not supported", "supported: none")
    if "rope_freqs.weight" in file.tensors:
        raise CheckpointError(
            f"{path}: RoPE scaling of type llama3 (tensor rope_freqs.weight) is not supported",
            "supported: none",
        )
    window = values.get(f"{family}.attention.sliding_window")
    context = fields.integer(f"{family}.context_length")
    if window and not (isinstance(window, int) and window >= context):
        raise CheckpointError(
            f"{path}: sliding-window attention ({window} of {context} positions) is not supported"
        )
    value_length, key_length = (values.get(f"{family}.attention.{part}_length") for part in ("value", "key"))
    if value_length != key_length:
        raise CheckpointError(
            f"{path}: key heads of {key_length or 'default'} and value heads of {value_length or 'default'} "
            f"dimensions are not supported together"
        )
