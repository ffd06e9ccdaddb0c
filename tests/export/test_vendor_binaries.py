"""Context binaries as sources: read through the vendor's own library, run on its emulator."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from htp_build import needs_qnn
from vendor_export import SIDECARS, VendorExport, import_folder, write_vendor_export

from hexgraft.export.foreign.binary import read_binary
from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.soc import find_soc
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.session import causal, prefill
from hexgraft.models.errors import BundleError, ExportError

pytestmark = needs_qnn

TEXT = [40, 51, 7, 260, 33, 12] * 4


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> VendorExport:
    """Two parts at 1 and 8 rows over 64 columns, everything at the border quantised."""
    folder = tmp_path_factory.mktemp("vendor")
    return write_vendor_export(folder, widths=(1, 8), columns=64, cuts=("layers.0.out",), border=True)


@pytest.fixture(scope="module")
def binaries(export: VendorExport) -> Path:
    """A binary for each graph, as the emulator can load them."""
    folder = export.folder.parent / "binaries"
    folder.mkdir()
    for file in sorted(export.folder.glob("*.onnx")):
        compile_binary({file.stem: file}, folder, file.stem, find_soc("SM8650"))
        (folder / file.name).unlink()
    for name in SIDECARS:
        shutil.copy(export.folder / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def bundle(binaries: Path) -> Bundle:
    return import_folder(binaries, binaries.parent / "bundle")


def test_a_binary_tells_its_tensors(export: VendorExport, binaries: Path) -> None:
    found = read_binary(binaries / "prompt_ar8_cl64_1_of_2.bin")
    assert found.soc_model == 57
    assert found.qairt.count(".") == 2
    (graph,) = found.graphs
    assert (graph.width, graph.columns) == (8, 64)
    key = graph.inputs["past_key_0_in"]
    assert (key.dtype, key.shape) == ("uint8", (2, 1, 16, 56))
    assert key.encoding is not None
    assert key.encoding.zero == export.codes["past_key_0"].zero
    assert key.encoding.scale == pytest.approx(export.codes["past_key_0"].scale, rel=1e-6)
    assert graph.outputs["past_key_0_out"].encoding == key.encoding
    assert graph.inputs["attention_mask"].dtype == "uint16"
    assert graph.inputs["input_ids"].encoding is None


def test_the_emulator_gives_the_cpus_numbers_and_tokens(
    export: VendorExport, bundle: Bundle, tmp_path: Path
) -> None:
    """It computes in fp16 and stores the same integers, but for some that are one step off."""
    cpu = import_folder(export.folder, tmp_path / "cpu")
    rows, saved, texts = [], [], []
    for place, backend in ((bundle, "htp-sim"), (cpu, "cpu")):
        session = open_session(place, "target", backend)
        assert (session.spec.provider, session.spec.capacity) == (backend, 56)
        for _ in prefill(session, TEXT, 0, 20):
            pass
        rows.append(session.forward([9], [20], causal(20, 1)).logits(0))
        saved.append(session.save(20))
        options = DecodeOptions(max_tokens=10, tree_size=8, margins=True)
        decoder = Decoder(session, make_drafter("lookup", place, lambda: None), options)  # type: ignore
        decoder.begin(TEXT)
        rounds = list(decoder.rounds())
        session.close()
        assert any(len(current.tree) > 1 for current in rounds)
        texts.append([token for current in rounds for token in current.tokens])
        margins = [margin for current in rounds for margin in current.margins]
    scale = max(entry.key.scale for entry in bundle.target.kv_encodings)
    assert np.abs(saved[0].keys - saved[1].keys).max() < 1.5 * scale
    assert np.abs(saved[0].values - saved[1].values).mean() < 0.2 * scale
    assert np.abs(rows[0] - rows[1]).max() < 0.05 * np.abs(rows[1]).max()
    agree = next((i for i, (a, b) in enumerate(zip(*texts, strict=True)) if a != b), len(texts[0]))
    assert agree == len(texts[0]) or margins[agree] < 0.1


def test_shared_binaries_are_for_phones(export: VendorExport, tmp_path: Path) -> None:
    """Weights shared by the graphs of both widths, one binary a part: what AI Hub publishes."""
    folder = tmp_path / "shared"
    folder.mkdir()
    for part in (1, 2):
        files = {file.stem: file for file in sorted(export.folder.glob(f"*_{part}_of_2.onnx"))}
        compile_binary(files, folder, f"model_part_{part}_of_2", find_soc("SM8650"))
    for wrapper in folder.glob("*.onnx"):
        wrapper.unlink()
    for name in SIDECARS:
        shutil.copy(export.folder / name, folder / name)
    bundle = import_folder(folder, tmp_path / "bundle")
    assert {graph.provider for graph in bundle.target.graphs} == {"htp"}
    assert {graph.htp.binary for graph in bundle.target.graphs if graph.htp and graph.htp.shared} == {
        f"target/htp/sm8650/model_part_{part}_of_2.bin" for part in (1, 2)
    }
    with pytest.raises(BundleError, match="no target graphs for htp-sim, only for htp"):
        open_session(bundle, "target", "htp-sim")


def test_what_is_no_binary(binaries: Path, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(binaries, folder)
    (folder / "prompt_ar1_cl64_1_of_2.bin").write_bytes(b"\0" * 5000)
    with pytest.raises(ExportError, match="is not a context binary that QAIRT here reads"):
        import_folder(folder, tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
