"""Draft heads as people have them on disk: layouts that are read, and what is refused in one sentence."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from heads import read_head, write_head
from safetensors.numpy import save_file
from tensors import whole
from tiny import read_tiny_weights, write_tiny_hf

from hexgraft.models.checkpoint import Checkpoint, open_checkpoint
from hexgraft.models.errors import CheckpointError
from hexgraft.models.head_checkpoint import HeadCheckpoint, is_head, open_draft
from hexgraft.models.torch_file import TorchTensors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_hf(tmp_path_factory.mktemp("target") / "tiny", layers=4)


@pytest.fixture(scope="module")
def target(folder: Path) -> Checkpoint:
    return open_checkpoint(folder)


@pytest.mark.parametrize("binary", [False, True])
def test_an_eagle3_head_of_a_reduced_vocabulary(
    binary: bool, folder: Path, target: Checkpoint, tmp_path: Path
) -> None:
    path = write_head(tmp_path / "head", folder, rows=80, binary=binary)
    plain = write_head(tmp_path / "plain", folder, rows=80)
    assert is_head(path)
    head = open_draft(path, target)
    assert isinstance(head, HeadCheckpoint)
    assert (head.config.kind, head.config.rows, head.config.features) == ("eagle3", 80, (1, 2, 2))
    assert head.config.feature_size == 192
    assert head.source_format == "eagle3 head float32"
    assert head.lent == {"embed"}
    tensors = read_head(plain)
    assert head.tokens is not None
    assert (head.tokens == tensors["d2t"] + np.arange(80)).all()
    assert (whole(head, "head") == tensors["lm_head.weight"]).all()
    assert (whole(head, "layers.0.q") == tensors["midlayer.self_attn.q_proj.weight"]).all()
    assert (whole(head, "layers.0.hidden_norm") == tensors["midlayer.hidden_norm.weight"]).all()


def test_without_lm_head_the_target_s_rows_are_taken(
    folder: Path, target: Checkpoint, tmp_path: Path
) -> None:
    head = HeadCheckpoint(write_head(tmp_path / "h", folder, rows=80, own_head=False), target)
    embed = read_tiny_weights(folder)["model.embed_tokens.weight"]
    assert head.tokens is not None
    assert (whole(head, "head") == embed[head.tokens]).all()


def test_rows_are_put_in_the_order_of_their_tokens(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    path = write_head(tmp_path / "h", folder, rows=80)
    tensors = read_head(path)
    shuffled = np.random.default_rng(0).permutation(80)
    ids = (tensors["d2t"] + np.arange(80))[shuffled]
    tensors |= {"d2t": ids - np.arange(80), "lm_head.weight": tensors["lm_head.weight"][shuffled]}
    save_file(tensors, path / "model.safetensors")
    head, plain = (
        HeadCheckpoint(path, target),
        HeadCheckpoint(write_head(tmp_path / "p", folder, rows=80), target),
    )
    assert head.tokens is not None
    assert plain.tokens is not None
    assert (head.tokens == plain.tokens).all()
    assert (whole(head, "head") == whole(plain, "head")).all()


def test_an_eagle_head_borrows_both_matrices(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    path = write_head(tmp_path / "head", folder, "eagle", bias=True, layers=2)
    head = open_draft(path, target)
    assert isinstance(head, HeadCheckpoint)
    assert (head.config.kind, head.config.features, head.config.feature_size) == ("eagle", (4,), 0)
    assert head.lent == {"embed", "head"}
    assert head.config.fc_bias


def test_an_embedding_that_is_the_target_s_is_borrowed(
    folder: Path, target: Checkpoint, tmp_path: Path
) -> None:
    theirs = read_tiny_weights(folder)["model.embed_tokens.weight"]
    same = HeadCheckpoint(write_head(tmp_path / "a", folder, more={"embed_tokens.weight": theirs}), target)
    assert same.lent == {"embed"}
    assert "not stored again" in same.notes[0]
    other = np.nextafter(theirs, np.float32(1))
    differs = HeadCheckpoint(write_head(tmp_path / "b", folder, more={"embed_tokens.weight": other}), target)
    assert differs.lent == frozenset()
    assert (whole(differs, "embed") == other).all()


def test_a_model_is_no_head(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    assert not is_head(folder)
    assert not is_head(tmp_path)
    assert not isinstance(open_draft(folder, target), HeadCheckpoint)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"drop": ("fc.weight",)}, "no tensor for fc"),
    ({"drop": ("midlayer.mlp.up_proj.weight",)}, "no tensor for layers.0.up"),
    ({"more": {"fc.weight": np.zeros((64, 191), np.float32)}}, r"has shape \[64, 191\]"),
    ({"more": {"fc.weight": np.zeros((64, 192), np.int32)}}, "of type I32"),
    ({"more": {"midlayer.evil.weight": np.zeros(3, np.float32)}}, "is not part of a draft head"),
    ({"more": {"fc.bias": np.zeros(64, np.float32)}}, "is in no eagle3 head"),
    ({"hidden": 32, "drop": ("embed_tokens.weight",)}, "is 32 numbers wide, the target 64"),
    ({"rows": 80, "more": {"d2t": np.full(80, 300)}}, "leads outside the target's 320 tokens"),
    ({"rows": 80, "more": {"d2t": np.full(80, -1)}}, "leads outside the target's 320 tokens"),
    ({"rows": 80, "more": {"d2t": np.full(80, np.iinfo(np.int64).max)}}, "leads outside"),
    ({"rows": 80, "more": {"d2t": -np.arange(80)}}, "leads to a token twice"),
    ({"rows": 80, "more": {"d2t": np.zeros(400, np.int64)}}, r"d2t of .* is I64 \[400\]"),
    ({"rows": 80, "more": {"d2t": np.zeros(80, np.float32)}}, r"d2t of .* is F32 \[80\]"),
    ({"rows": 80, "more": {"t2d": np.zeros(320, np.bool_)}}, "name different tokens"),
    ({"rows": 80, "more": {"t2d": np.zeros(10, np.bool_)}}, "t2d of .* has"),
    ({"rows": 80, "drop": ("d2t",)}, "has no d2t that says which"),
    ({"config": {"vocab_size": 400}}, "made for a target of 400 tokens, this one has 320"),
    ({"config": {"num_hidden_layers": 2}}, "an EAGLE-3 head has one layer"),
    ({"config": {"norm_before_residual": True}}, "sets norm_before_residual"),
    ({"config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 3]}}, "reads the target's layers"),
    ({"config": {"hidden_act": "relu"}}, "activation relu"),
    ({"config": {"num_attention_heads": 5}}, "does not divide"),
]


@pytest.mark.parametrize(("change", "message"), CHANGES)
def test_heads_that_do_not_fit_are_refused(
    change: dict[str, Any], message: str, folder: Path, target: Checkpoint, tmp_path: Path
) -> None:
    path = write_head(tmp_path / "head", folder, **change)
    with pytest.raises(CheckpointError, match=message):
        HeadCheckpoint(path, target)


def test_named_layers_count_from_nought_or_one(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    for number, layers in enumerate(([1, 2, 2], [0, 1, 1])):
        config = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": layers}}
        HeadCheckpoint(write_head(tmp_path / str(number), folder, config=config), target)


def test_weights_that_are_not_numbers_are_refused(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    nan = np.full((64, 192), np.nan, np.float32)
    head = HeadCheckpoint(write_head(tmp_path / "h", folder, more={"fc.weight": nan}), target)
    with pytest.raises(CheckpointError, match="holds NaN"):
        whole(head, "fc")


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch hexgraft-was-here",)


def archive(path: Path, content: bytes, **entries: bytes) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    with zipfile.ZipFile(path / "pytorch_model.bin", "w", zipfile.ZIP_STORED) as file:
        file.writestr("archive/data.pkl", content)
        for name, data in entries.items():
            file.writestr(f"archive/data/{name}", data)
    return path


def test_a_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, value in enumerate((Evil(), {"fc.weight": Evil()}, pickle.loads, [print])):
        path = archive(tmp_path / str(number), pickle.dumps(value))
        with pytest.raises(CheckpointError, match="which is not a tensor"):
            is_head(path)
    assert not Path("hexgraft-was-here").exists()


class Storage:
    """Pickles as torch writes a tensor of one storage, with whatever numbers it is given."""

    def __init__(self, start: Any, shape: Any, strides: Any, kind: str = "FloatStorage") -> None:
        self.arguments, self.kind = (start, shape, strides, False, None), kind


def torch_pickle(tensor: Storage) -> bytes:
    """Opcodes by hand: torch's own pickler would not lie."""
    head = b"\x80\x02}U\tfc.weightctorch._utils\n_rebuild_tensor_v2\n("
    pid = b"(U\x07storagectorch\n" + tensor.kind.encode() + b"\nU\x010U\x03cpuK\x04tQ"
    rest = b"".join(pickle.dumps(value, 2)[2:-1] for value in tensor.arguments)
    return head + pid + rest + b"tRs."


@pytest.mark.parametrize(
    ("tensor", "data", "message"),
    [
        (Storage(0, (2, 2), (2, 1)), b"\0" * 16, ""),
        (Storage(0, (2, 3), (3, 1)), b"\0" * 16, "is damaged or missing"),
        (Storage(1, (2, 2), (2, 1)), b"\0" * 16, "is damaged or missing"),
        (Storage(0, (2, 2), (1, 2)), b"\0" * 16, "do not lie one after the other"),
        (Storage(-4, (2, 2), (2, 1)), b"\0" * 16, "cannot be"),
        (Storage(0, (1 << 40, 1 << 40), (1 << 40, 1)), b"\0" * 16, "is damaged or missing"),
        (Storage(0, ("a", 2), (2, 1)), b"\0" * 16, "cannot be"),
        (Storage(0, (2, 2), (2, 1), "ComplexFloatStorage"), b"\0" * 16, "ComplexFloatStorage"),
    ],
)
def test_archives_whose_tensors_cannot_be(tensor: Storage, data: bytes, message: str, tmp_path: Path) -> None:
    path = archive(tmp_path / "head", torch_pickle(tensor), **{"0": data})
    if not message:
        assert TorchTensors(path).read("fc.weight", slice(0, 2)).tolist() == [[0, 0], [0, 0]]
        return
    with pytest.raises(CheckpointError, match=message):
        is_head(path)


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"not a zip", pickle.dumps([{}] * 3), b"\x80\x02}U\tfc.weight" + b"(" * 50]
)
def test_files_that_are_no_archives(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a PyTorch archive"):
        is_head(tmp_path)
    broken = archive(tmp_path / "head", content)
    with pytest.raises(CheckpointError):
        TorchTensors(broken)


def test_a_compressed_storage_is_no_bomb(tmp_path: Path) -> None:
    path = archive(tmp_path / "head", torch_pickle(Storage(0, (2, 2), (2, 1))))
    with zipfile.ZipFile(path / "pytorch_model.bin", "a", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/0", b"\0" * (1 << 24))
    with pytest.raises(CheckpointError, match="is damaged or missing"):
        TorchTensors(path)


def test_an_archive_cut_short(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    path = write_head(tmp_path / "head", folder, binary=True)
    file = path / "pytorch_model.bin"
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        HeadCheckpoint(path, target)


def test_sixteen_bit_heads(folder: Path, target: Checkpoint, tmp_path: Path) -> None:
    import torch

    path = write_head(tmp_path / "h", folder)
    tensors = {name: torch.from_numpy(array).bfloat16() for name, array in read_head(path).items()}
    torch.save(tensors, path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    head = HeadCheckpoint(path, target)
    assert head.source_format == "eagle3 head bfloat16"
    assert (whole(head, "fc") == tensors["fc.weight"].float().numpy()).all()
    config = json.loads((path / "config.json").read_text())
    assert config["draft_vocab_size"] == 320
