"""Trees on models with windows and a RoPE of their own for local layers: plain decoding's tokens, far beyond
the window."""

from __future__ import annotations

import numpy as np
import pytest
from families import save_family
from safetensors.numpy import load_file, save_file

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter
from hexgraft.host.drafters.best_first import BestFirst, BestFirstKnobs
from hexgraft.host.drafters.chain import Chain
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.model import DraftModel
from hexgraft.models.checkpoint import open_checkpoint

WIDTH, LENGTH = 16, 90
PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7] * 4


@pytest.fixture(scope="module", params=["gemma3", "mistral-window"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A target whose window is 24 positions, and its noisy copy as draft."""
    folder = tmp_path_factory.mktemp("windowed")
    target, draft = (
        save_family(folder / role, request.param, tie_word_embeddings=False) for role in ("target", "draft")
    )
    rng = np.random.default_rng(4)
    weights = load_file(draft / "model.safetensors")
    noisy = {
        name: (array + 0.05 * array.std() * rng.standard_normal(array.shape)).astype(np.float32)
        for name, array in weights.items()
    }
    save_file(noisy, draft / "model.safetensors", {"format": "pt"})
    export_bundle(
        open_checkpoint(target),
        folder / "bundle",
        draft=open_checkpoint(draft),
        options=ExportOptions((WIDTH,), 256),
        report=lambda step: None,
    )
    return open_bundle(folder / "bundle")


def decoded(bundle: Bundle, drafter: Drafter | None, nodes: int) -> tuple[list[int], int]:
    decoder = Decoder(CpuSession(bundle, widths=[WIDTH]), drafter, DecodeOptions(LENGTH, nodes))
    decoder.begin(PROMPT)
    rounds = len(list(decoder.rounds()))
    return decoder.tokens[len(PROMPT) :], rounds


@pytest.mark.parametrize("name", ["chain", "best-first", "levels"])
def test_trees_emit_the_tokens_of_plain_decoding(pair: Bundle, name: str) -> None:
    model = DraftModel(CpuSession(pair, "draft"))
    drafter = {
        "chain": lambda: Chain(model),
        "best-first": lambda: BestFirst(model, BestFirstKnobs()),
        "levels": lambda: Levels(model, top_k=4, depth=5),
    }[name]()
    plain, rounds = decoded(pair, None, 1)
    assert len(plain) == LENGTH == rounds
    assert len(set(plain)) > 20
    tokens, fewer = decoded(pair, drafter, 12)
    assert tokens == plain
    assert fewer < 0.8 * rounds, "the draft was hardly ever right: windows of the two models differ"
