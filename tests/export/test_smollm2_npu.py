"""SmolLM2 on the emulator at every precision, against the fp32 graph: minutes, hence slow."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from families import save_family
from htp_build import needs_qnn

from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.htp.session import HtpSession
from hexgraft.host.text import TextCodec
from hexgraft.models.fetch import fetch_smollm2

pytestmark = [pytest.mark.slow, needs_qnn]

KEPT_W8 = "layers.11.down,layers.28.down,layers.29.gate_up,layers.29.down"
KEPT_W4 = "layers.11.down,layers.29.down,layers.29.gate_up," + ",".join(
    f"layers.{i}.qkv" for i in (1, 2, 3, 5, 7, 8, 12, 13, 14, 15, 16, 19)
)


def export(folder: Path, *arguments: str) -> tuple[Bundle, dict[str, float], str]:
    """The bundle for SM8650 with widths 1 and 16, the parity figures of 16 rows, and what was said."""
    words = ["export", str(fetch_smollm2()), "-o", str(folder / "b"), "--widths", "1,16", "--context", "256"]
    words += ["--target", "htp", "--soc", "SM8650", "--host-widths", "16", "--parity-rows", "112"]
    result = CliRunner().invoke(cli, [*words, *arguments])
    assert result.exit_code == 0, result.output
    bundle = open_bundle(folder / "b")
    (figures,) = bundle.manifest.parity.values()
    return bundle, figures, result.output


def sizes(bundle: Bundle) -> tuple[int, int]:
    """Bytes of the shared binary, and of the single graph of 16 rows."""
    shared, single = (
        next(graph.htp.binary for graph in bundle.target.graphs if graph.htp and graph.htp.shared == wanted)
        for wanted in (True, False)
    )
    return bundle.manifest.files[shared].size, bundle.manifest.files[single].size


@pytest.mark.parametrize("family", ["gemma3", "qwen3", "phi3", "qwen2-window"])
def test_other_families_pass_the_gate(family: str, tmp_path: Path) -> None:
    """Norms of heads, GELU, windows with a mask of their own: tiny random models of each."""
    checkpoint = save_family(tmp_path / "m", family)
    words = ["export", str(checkpoint), "-o", str(tmp_path / "b"), "--widths", "8", "--context", "96"]
    words += ["--target", "htp", "--soc", "SM8650", "--parity-rows", "48"]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    (figures,) = open_bundle(tmp_path / "b").manifest.parity.values()
    assert figures["kl"] < 1e-3


def test_fp16_agrees(tmp_path: Path) -> None:
    bundle, figures, _ = export(tmp_path)
    # 129 rows: one that differs is 0.8 %. Every one that does must be a tie of fp32's own two best tokens.
    assert figures["agreement"] + figures["ties"] / figures["rows"] == pytest.approx(1.0)
    assert figures["largest_margin"] < 0.05
    assert figures["kl"] <= 1e-3
    shared, single = sizes(bundle)
    assert shared <= 1.10 * single


def test_w8a16_agrees(tmp_path: Path) -> None:
    bundle, figures, _ = export(tmp_path, "--precision", "w8a16", "--head", "fp16", "--keep", KEPT_W8)
    assert figures["agreement"] >= 0.95
    assert figures["perplexity_other"] <= 1.03 * figures["perplexity_reference"]
    shared, single = sizes(bundle)
    assert shared <= 1.10 * single


def test_w4a16_agrees(tmp_path: Path) -> None:
    bundle, figures, _ = export(tmp_path, "--precision", "w4a16", "--keep", KEPT_W4 + ":w8")
    assert figures["perplexity_other"] <= 1.2 * figures["perplexity_reference"]
    shared, single = sizes(bundle)
    assert shared <= 1.10 * single


@pytest.mark.parametrize("precision", ["fp16", "w8a16"])
def test_the_shipped_head_is_accepted_as_often_as_on_the_cpu(precision: str, tmp_path: Path) -> None:
    """The target on the CPU, so that only the head is another one; its binary beside the target's."""
    words = ["export", str(fetch_smollm2()), "-o", str(tmp_path / "b"), "--draft", "smollm2-135m-instruct"]
    words += ["--widths", "16", "--context", "256", "--target", "htp", "--soc", "SM8650"]
    result = CliRunner().invoke(cli, [*words, "--precision", precision, "--parity-rows", "0"])
    assert result.exit_code == 0, result.output
    bundle = open_bundle(tmp_path / "b")
    question = {"role": "user", "content": "Explain how a bicycle stays upright."}
    prompt = TextCodec(bundle).encode_chat([question])
    target = CpuSession(bundle, widths=[16], whole=True)
    counts, texts = [], []
    for draft in (CpuSession(bundle, "draft", widths=[16], whole=True), HtpSession(bundle, "draft")):
        options = DecodeOptions(max_tokens=48, tree_size=16)
        decoder = Decoder(target, make_drafter("levels", bundle, lambda draft=draft: draft), options)
        decoder.begin(prompt)
        rounds = list(decoder.rounds())
        counts.append(len(rounds))
        texts.append([token for current in rounds for token in current.tokens])
        draft.close()
    target.close()
    assert texts[0] == texts[1]
    assert counts[0] < 32  # of 48 tokens
    assert counts[1] <= 1.1 * counts[0] + 1
