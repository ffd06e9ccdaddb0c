"""`hexgraft genie`: folders for Qualcomm's Genie, held against our schema and, where it is, its library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from htp_build import needs_qnn
from onnx import TensorProto, helper
from pair import write_pair
from vendor_export import SIDECARS, write_vendor_export

from hexgraft.export.foreign import genie
from hexgraft.export.foreign.genie import GenieOptions, write_genie
from hexgraft.export.foreign.genie_config import CONFIG, EXTENSIONS, Extensions, GenieConfig, positions_of
from hexgraft.export.foreign.genie_library import check_config, find_genie
from hexgraft.export.foreign.importer import ImportOptions, import_bundle
from hexgraft.export.htp.compile import compile_binary
from hexgraft.export.htp.soc import find_soc
from hexgraft.export.htp.wrapper import Wrapper, write_wrapper
from hexgraft.export.writer import ExportOptions, hash_files, write_manifest
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.main import cli
from hexgraft.host.manifest import GraphEntry, HtpEntry, RopeEntry
from hexgraft.host.session import causal, prefill
from hexgraft.models.errors import ExportError, UsageError
from hexgraft.models.rope_scaling import linear_rope, llama3_rope, plain_rope, yarn_rope

needs_genie = pytest.mark.skipif(find_genie() is None, reason="there is no libGenie.so here")


def compiled(
    folder: Path,
    *,
    parts: int = 1,
    embedding_alone: bool = False,
    shared: bool = True,
    inside: str = "{part}",
) -> Bundle:
    """A tiny bundle with wrappers around binaries that hold no graph: all else is as exported."""
    path = write_pair(folder, noise=None, options=ExportOptions((1, 16), 128))
    manifest = open_bundle(path).manifest
    place = path / "target" / "htp"
    place.mkdir()
    for width in (1, 16):
        for part in range(parts):
            name = f"target_ar{width}_part{part}"
            binary = f"part{part}.bin" if shared else f"{name}.bin"
            (place / binary).write_bytes(b"binary of part %d" % part)
            graph = f"inside_{width}_{inside.format(part=part, back=9 - part)}"
            alone = embedding_alone and part == 0
            taken = ["input_ids"] if alone else ["attention_mask", f"past_key_{part}_in"]
            values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in taken]
            write_wrapper(place / f"{name}.onnx", Wrapper(graph, binary, "2.51.0"), values, values[:1])
            htp = HtpEntry("SM8650", 57, 75, "2.51.0", f"target/htp/{binary}", shared, None, part, parts)
            manifest.target.graphs.append(
                GraphEntry(f"target/htp/{name}.onnx", "htp", "w8a16", width, 128, htp)
            )
    files = [file for file in place.iterdir() if file.is_file()]
    manifest.files |= hash_files(path, files, lambda step: None)
    write_manifest(manifest, path)
    return open_bundle(path)


def read(folder: Path) -> GenieConfig:
    return msgspec.json.decode((folder / CONFIG).read_bytes(), type=GenieConfig)


def test_a_folder_of_one_width(tmp_path: Path) -> None:
    """One width of hexgraft's layout, named inside a binary that holds more, part by part."""
    bundle = compiled(tmp_path, parts=2)
    written = write_genie(bundle, tmp_path / "genie", GenieOptions())
    assert (written.widths, written.columns) == ((1,), 129)
    dialog = read(tmp_path / "genie").dialog
    assert (dialog.type, dialog.context.size, dialog.context.n_vocab) == ("basic", 129, 320)
    assert dialog.context.eos_token == bundle.manifest.tokenizer.stop_tokens
    htp = dialog.engine.backend.qnn_htp
    assert (htp.kv_dim, htp.pos_id_dim, htp.rope_theta) == (16, 8, 10000)
    assert htp.execute_select_graphs == ["inside_1_0", "inside_1_1"]
    binaries = dialog.engine.model.binary.ctx_bins
    assert binaries == ["target_checkpoint_part_1_of_2.bin", "target_checkpoint_part_2_of_2.bin"]
    for number, name in enumerate(binaries):
        assert (tmp_path / "genie" / name).read_bytes() == b"binary of part %d" % number
    extensions = msgspec.json.decode((tmp_path / "genie" / EXTENSIONS).read_bytes(), type=Extensions)
    assert (extensions.devices[0].soc_model, extensions.devices[0].dsp_arch) == (57, "v75")
    assert extensions.context.weight_sharing_enabled
    tokenizer = (tmp_path / "genie" / dialog.tokenizer.path).read_bytes()
    assert tokenizer == bundle.file("tokenizer.json").read_bytes()


def test_nothing_a_killed_one_left_is_among_the_files(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    leftover = tmp_path / f".genie.partial-{os.getpid()}"
    leftover.mkdir()
    (leftover / "old.bin").write_bytes(b"of another model")
    write_genie(bundle, tmp_path / "genie", GenieOptions())
    assert not (tmp_path / "genie" / "old.bin").exists()


def test_another_width_and_binaries_of_their_own(tmp_path: Path) -> None:
    bundle = compiled(tmp_path, shared=False)
    written = write_genie(bundle, tmp_path / "genie", GenieOptions(soc="SM8650", width=16))
    assert (written.widths, written.columns) == ((16,), 144)
    dialog = read(tmp_path / "genie").dialog
    assert dialog.engine.backend.qnn_htp.execute_select_graphs is msgspec.UNSET
    assert len(dialog.engine.model.binary.ctx_bins) == 1
    with pytest.raises(UsageError, match="no graph of 8 rows"):
        write_genie(bundle, tmp_path / "other", GenieOptions(width=8))
    with pytest.raises(UsageError, match="not built for that chip and precision"):
        write_genie(bundle, tmp_path / "other", GenieOptions(precision="fp16"))
    with pytest.raises(ExportError, match="exists already"):
        write_genie(bundle, tmp_path / "genie", GenieOptions())


def test_what_genie_cannot_take(tmp_path: Path) -> None:
    bundle = open_bundle(write_pair(tmp_path / "cpu", noise=None, options=ExportOptions((1, 16), 128)))
    with pytest.raises(ExportError, match="no graphs compiled for an NPU"):
        write_genie(bundle, tmp_path / "genie", GenieOptions())
    bundle = compiled(tmp_path / "npu", parts=2, embedding_alone=True)
    with pytest.raises(ExportError, match="part 1 is the embedding alone"):
        write_genie(bundle, tmp_path / "genie", GenieOptions())
    bundle = compiled(tmp_path / "order", parts=3, inside="{back}")
    with pytest.raises(ExportError, match="run the 3 parts of the graph of 1 rows in another order"):
        write_genie(bundle, tmp_path / "genie", GenieOptions())
    bundle = compiled(tmp_path / "window")
    bundle.manifest.target.window = 64
    with pytest.raises(ExportError, match="layers with a window"):
        write_genie(bundle, tmp_path / "genie", GenieOptions())
    bundle.manifest.target.window = None
    bundle.manifest.target.rope.scale = 1.2
    with pytest.raises(ExportError, match="RoPE is neither plain"):
        write_genie(bundle, tmp_path / "genie", GenieOptions())
    assert not (tmp_path / "genie").exists()


def entry(rope: Any) -> RopeEntry:
    return RopeEntry(rope.dim, list(rope.frequencies), rope.scale)


def test_rope_in_genies_words() -> None:
    plain = positions_of(entry(plain_rope(64, 500000.0)))
    assert (plain.rope_dim, plain.rope_theta, plain.rope_scaling) == (32, 500000, msgspec.UNSET)
    linear = positions_of(entry(linear_rope(64, 10000.0, 4.0))).rope_scaling
    assert isinstance(linear, msgspec.Struct)
    assert (linear.rope_type, linear.factor) == ("linear", 4)
    llama = positions_of(entry(llama3_rope(128, 500000.0, 8.0, 1.0, 4.0, 8192)))
    assert llama.rope_theta == 500000
    assert msgspec.to_builtins(llama.rope_scaling) == {
        "rope-type": "llama3",
        "factor": 8,
        "low-freq-factor": 1.0,
        "high-freq-factor": 4.0,
        "original-max-position-embeddings": 8192,
    }
    for other in (yarn_rope(64, 10000.0, 4.0, 2048), llama3_rope(128, 5e5, 8.0, 1.0, 4.0, 4096)):
        with pytest.raises(ExportError, match="neither plain, nor linear"):
            positions_of(entry(other))


def test_sampling_as_the_authors_say(tmp_path: Path) -> None:
    bundle = compiled(tmp_path)
    bundle.manifest.tokenizer.generation = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    write_genie(bundle, tmp_path / "genie", GenieOptions())
    sampler = read(tmp_path / "genie").dialog.sampler
    assert (sampler.temp, sampler.top_k, sampler.top_p, sampler.greedy) == (0.6, 20, 0.95, msgspec.UNSET)


def test_our_schema_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    write_genie(compiled(tmp_path), tmp_path / "genie", GenieOptions())
    config = json.loads((tmp_path / "genie" / CONFIG).read_text())
    config["dialog"]["tree"] = {}
    with pytest.raises(msgspec.ValidationError, match="unknown field `tree`"):
        msgspec.convert(config, GenieConfig)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiled(tmp_path).path
    monkeypatch.setattr(genie, "find_genie", lambda: None)
    done = CliRunner().invoke(cli, ["genie", str(path), "-o", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "a")
    assert "there is no libGenie.so here to check the config: set HEXGRAFT_GENIE" in done.stderr
    assert "--width chooses another" in done.stderr
    done = CliRunner().invoke(cli, ["genie", str(path), "-o", str(tmp_path / "b"), "--width", "16", "--json"])
    assert json.loads(done.stdout) == {
        "folder": str(tmp_path / "b"),
        "widths": [16],
        "context_length": 144,
        "checked_by": None,
    }
    monkeypatch.undo()
    monkeypatch.setenv("HEXGRAFT_GENIE", str(tmp_path / "nowhere"))
    with pytest.raises(ExportError, match="HEXGRAFT_GENIE names"):
        write_genie(open_bundle(path), tmp_path / "c", GenieOptions())


def test_a_chip_goes_by_any_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = compiled(tmp_path).path
    monkeypatch.setattr(genie, "find_genie", lambda: None)
    for number, name in enumerate(("sm8650", "Snapdragon 8 Gen 3")):
        place = ["-o", str(tmp_path / f"g{number}")]
        done = CliRunner().invoke(cli, ["genie", str(path), *place, "--soc", name])
        assert done.exit_code == 0, done.output


def test_a_library_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses no config: it cannot be asked."""
    bundle = compiled(tmp_path)
    (tmp_path / "libGenie.so").write_bytes(b"\x7fELF of a phone")
    monkeypatch.setenv("HEXGRAFT_GENIE", str(tmp_path / "libGenie.so"))
    with pytest.raises(ExportError) as caught:
        write_genie(bundle, tmp_path / "genie", GenieOptions())
    assert caught.value.message.startswith(f"{tmp_path / 'libGenie.so'} cannot be loaded on this machine: ")
    assert "Traceback" not in caught.value.message
    assert caught.value.hint is not None
    assert "HEXGRAFT_GENIE" in caught.value.hint
    monkeypatch.delenv("HEXGRAFT_GENIE")
    sdk = tmp_path / "sdk" / "lib" / "x86_64-linux-clang"
    sdk.mkdir(parents=True)
    (sdk / "libGenie.so").write_bytes(b"\x7fELF of x86-64")
    monkeypatch.setenv("QAIRT_SDK_ROOT", str(tmp_path / "sdk"))
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert find_genie() != sdk / "libGenie.so"


@needs_genie
def test_libgenie_accepts_what_is_written_and_refuses_other_things(tmp_path: Path) -> None:
    library = find_genie()
    assert library is not None
    written = write_genie(compiled(tmp_path, parts=2), tmp_path / "genie", GenieOptions())
    assert written.library == library
    config = json.loads((tmp_path / "genie" / CONFIG).read_text())
    config["dialog"]["engine"]["backend"]["QnnHtp"].pop("poll")
    (tmp_path / "genie" / CONFIG).write_text(json.dumps(config))
    with pytest.raises(ExportError, match="required property 'poll' not found"):
        check_config(library, tmp_path / "genie")


DIALOG = """
import ctypes, json, sys
genie = ctypes.CDLL(sys.argv[1])
config, dialog, tokens = ctypes.c_void_p(), ctypes.c_void_p(), []
Ids = ctypes.POINTER(ctypes.c_uint32)
Answer = ctypes.CFUNCTYPE(None, Ids, ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p)
take = Answer(lambda ids, count, code, data: tokens.extend(ids[i] for i in range(count)))
prompt = json.loads(sys.argv[2])
text = open("genie_config.json", "rb").read()
assert genie.GenieDialogConfig_createFromJson(text, ctypes.byref(config)) == 0
assert genie.GenieDialog_create(config, ctypes.byref(dialog)) == 0
genie.GenieDialog_setMaxNumTokens(dialog, 8)
asked = (ctypes.c_uint32 * len(prompt))(*prompt)
query, pointer = genie.GenieDialog_tokenQuery, ctypes.c_void_p
query.argtypes = [pointer, Ids, ctypes.c_uint32, ctypes.c_int, Answer, pointer]
assert query(dialog, asked, len(prompt), 0, take, None) == 0
print(json.dumps(tokens[:8]))
"""


def compile_in_order(files: list[Path], folder: Path) -> None:
    """Compile two parts of one width into `folder`, so that their graphs' names sort in their order.

    Genie takes a model's parts in the order of their graphs' names. ONNX Runtime makes those of a hash of the
    file's path: each part is compiled under new file names until the lowest name of the first sorts before
    the highest name of the second. That all of 16 hashes are above all of 16 others is one chance in 6e8."""
    kept: list[str | None] = [None, None]
    for attempt in range(16):
        for part, file in enumerate(files):
            salted = file.with_name(f"{attempt}_{file.name}")
            shutil.copy(file, salted)
            place = folder / f"attempt_{attempt}"
            place.mkdir(exist_ok=True)
            made = compile_binary({file.stem: salted}, place, file.stem, find_soc("SM8650"))
            (place / file.name).unlink()
            name, best = made.graphs[0].graph, kept[part]
            if best is None or (name < best if part == 0 else name > best):
                kept[part] = name
                shutil.copy(made.binary, folder)
            shutil.rmtree(place)
        if str(kept[0]) < str(kept[1]):
            return
    raise AssertionError(f"no two names in order: {kept}")


@pytest.mark.slow
@needs_genie
@needs_qnn
def test_a_dialog_on_the_emulator_gives_our_tokens(tmp_path: Path) -> None:
    """A vendor-layout bundle in two parts and two widths, everything at the border quantised, round the whole
    way: imported, written for Genie, decoded by it on the emulator."""
    made = write_vendor_export(tmp_path, widths=(1, 8), columns=64, cuts=("layers.0.out",), border=True)
    binaries = tmp_path / "binaries"
    binaries.mkdir()
    for width in (1, 8):
        parts = [made.folder / f"prompt_ar{width}_cl64_{part}_of_2.onnx" for part in (1, 2)]
        compile_in_order(parts, binaries)
    for name in SIDECARS:
        (binaries / name).write_bytes((made.folder / name).read_bytes())
    import_bundle(
        binaries,
        tmp_path / "bundle",
        options=ImportOptions(),
        report=lambda step: None,
        say=lambda words: None,
    )
    bundle = open_bundle(tmp_path / "bundle")
    written = write_genie(bundle, tmp_path / "genie", GenieOptions())
    assert (written.widths, written.columns) == ((1, 8), 64)
    prompt = list(range(71, 91))  # more than the wider graph's rows: both widths take part
    library = str(find_genie())
    done = subprocess.run(
        [sys.executable, "-c", DIALOG, library, json.dumps(prompt)],
        cwd=tmp_path / "genie",
        capture_output=True,
        text=True,
        env={"LD_LIBRARY_PATH": str(Path(library).parent), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The library's own lines stand around ours.
    theirs = json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith("[") and "," in line)
    )
    session = open_session(bundle, "target", "htp-sim")
    for _ in prefill(session, prompt, 0, len(prompt) - 1):
        pass
    token, ours = prompt[-1], []
    for place in range(len(prompt) - 1, len(prompt) + 7):
        rows = session.forward([token], [place], causal(place, 1))
        session.store([0], [place])
        token = int(rows.topk(1).ids[0, 0])
        ours.append(token)
    session.close()
    assert theirs == ours
