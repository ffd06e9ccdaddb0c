"""What a phone needs of a bundle, and bundles and libraries that are not for it, refused before they move."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from htp_build import needs_qnn
from pair import write_pair
from phones import Connect

from hexgraft.export.htp.pipeline import export_htp
from hexgraft.export.htp.plan import HtpOptions
from hexgraft.export.htp.precision import make_precision
from hexgraft.export.htp.soc import find_socs
from hexgraft.export.writer import ExportOptions
from hexgraft.host.adb.errors import Unfit
from hexgraft.host.adb.facts import PhoneFacts, parse
from hexgraft.host.adb.fit import (
    Asked,
    Build,
    bundle_folder,
    check_release,
    choose_build,
    graphs_for,
    qairt_release,
)
from hexgraft.host.adb.phone import ROOT
from hexgraft.host.adb.release import Release
from hexgraft.host.adb.session import DeviceOptions, open_device_session
from hexgraft.host.adb.store import Folder
from hexgraft.host.bundle import Bundle, open_bundle
from hexgraft.host.cli.place import place_of
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.htp.session import HtpSession
from hexgraft.host.loopback.device import LoopbackDevice
from hexgraft.host.loopback.phone import PHONES
from hexgraft.host.manifest import FileEntry, GraphEntry, HtpEntry
from hexgraft.host.session import Session
from hexgraft.models.checkpoint import open_checkpoint
from hexgraft.models.errors import UsageError

ANDROID = "android-arm64"
ANY = Asked()
CHIPS = ("SM8650", 57), ("SM8750", 69)
QAIRT = "v2.51.0.260929181845"


def compiled(bundle: Bundle, *chips: tuple[str, int]) -> Bundle:
    """The bundle as if it had graphs for the NPU of these chips, and for the emulator."""
    manifest = copy.deepcopy(bundle.manifest)
    for name, number in chips:
        for provider in ("htp", "htp-sim"):
            entry = HtpEntry(name, number, 75, QAIRT, f"npu/{name}/{provider}.bin")
            graph = GraphEntry(f"npu/{name}/{provider}.onnx", provider, "fp16", 8, 600, entry)
            manifest.target.graphs.append(graph)
            for file in (graph.file, entry.binary):
                manifest.files[file] = FileEntry(1, "0" * 64)
    return Bundle(bundle.path, manifest, bundle.digest)


def test_only_the_graphs_that_run_there_are_pushed(bundle: Bundle) -> None:
    both = compiled(bundle, ("SM8650", 57), ("SM8750", 69))
    cpu = set(bundle_folder(both, "cpu").pieces)
    assert cpu == set(bundle_folder(bundle, "cpu").pieces)
    assert {"bundle.json", "target/model.onnx", "target/model.weights", "draft/model.weights"} <= cpu
    npu = set(bundle_folder(both, "htp").pieces)
    assert {name for name in npu if name.startswith("npu/")} == {
        f"npu/{chip}/htp.{end}" for chip in ("SM8650", "SM8750") for end in ("onnx", "bin")
    }
    assert not any("model" in name for name in npu)
    assert npu & cpu == {"bundle.json", "tokenizer.json", "chat_template.jinja"} & cpu


def test_which_graphs_a_runner_loads(bundle: Bundle) -> None:
    both = compiled(bundle, ("SM8650", 57))
    assert graphs_for(both, ANDROID, "htp") == "htp"
    assert graphs_for(both, "linux-x86_64", "htp") == "htp-sim"
    assert graphs_for(both, ANDROID, "cpu") == "cpu"
    with pytest.raises(Unfit, match="has no htp graphs") as raised:
        graphs_for(bundle, ANDROID, "htp")
    assert "--target htp --soc CHIP" in str(raised.value.hint)


def test_only_the_phone_s_build_is_pushed(bundle: Bundle) -> None:
    both = compiled(bundle, ("SM8650", 57), ("SM8750", 69))
    folders = [bundle_folder(both, "htp", Build(*chip, 75, "fp16")) for chip in CHIPS]
    for folder, (chip, _) in zip(folders, CHIPS, strict=True):
        npu = {name for name in folder.pieces if name.startswith("npu/")}
        assert npu == {f"npu/{chip}/htp.onnx", f"npu/{chip}/htp.bin"}
        assert "bundle.json" in folder.pieces
    # One folder, two parts of it, each whole or not by itself.
    assert folders[0].name == folders[1].name
    assert [folder.part for folder in folders] == ["htp-SM8650-fp16", "htp-SM8750-fp16"]


def test_files_that_builds_share_are_pushed_with_each(bundle: Bundle) -> None:
    both = compiled(bundle, ("SM8650", 57), ("SM8750", 69))
    for graph in both.manifest.target.graphs:
        if graph.htp is not None and graph.provider == "htp":
            graph.htp.binary = "npu/SM8650/htp.bin"
    assert "npu/SM8650/htp.bin" in bundle_folder(both, "htp", Build("SM8750", 69, 75, "fp16")).pieces


def named(chip: str) -> PhoneFacts:
    return parse("X", f"=== properties\n[ro.soc.model]: [{chip}]\n")


def test_the_build_is_chosen_by_number_or_name(bundle: Bundle) -> None:
    both = compiled(bundle, *CHIPS)

    def soc(chip: str, number: int | None, asked: Asked = ANY) -> str:
        build = choose_build(both, "htp", asked, named(chip), number)
        assert build is not None
        return build.soc

    assert soc("QCS8750", 69) == "SM8750"
    assert soc("SM8650", None) == "SM8650"
    with pytest.raises(Unfit, match=r"is compiled for SM8650, SM8750, the phone X has QCS8750") as raised:
        soc("QCS8750", 43)
    assert raised.value.hint == "export again with --soc QCS8750"
    assert choose_build(both, "cpu", ANY, named("QCS8750"), 43) is None


def test_a_build_that_is_asked_for(bundle: Bundle) -> None:
    both = compiled(bundle, *CHIPS)
    for graph in both.manifest.target.graphs[:]:
        if graph.htp is not None:
            other = copy.deepcopy(graph)
            other.precision = "w8a16"
            both.manifest.target.graphs.append(other)

    def precision(asked: Asked, graphs: str = "htp", chip: str = "SM8750", number: int | None = 69) -> str:
        build = choose_build(both, graphs, asked, named(chip), number)
        assert build is not None
        return f"{build.soc} {build.precision}"

    assert precision(ANY) == "SM8750 fp16"
    assert precision(Asked(None, "w8a16")) == "SM8750 w8a16"
    assert precision(ANY, "htp-sim") == "SM8650 fp16"
    assert precision(Asked("SM8750", "w8a16"), "htp-sim") == "SM8750 w8a16"
    with pytest.raises(UsageError, match="is not built for SM8750 w4a16") as raised:
        precision(Asked("SM8750", "w4a16"))
    assert raised.value.hint == "it has: SM8650 fp16, SM8750 fp16, SM8650 w8a16, SM8750 w8a16"
    # A chip that is known to be another one is refused even so; one nobody knows is the user's to name.
    with pytest.raises(Unfit, match="is compiled for SM8650, the phone X has SM8750"):
        precision(Asked("SM8650"))
    assert precision(Asked("SM8650"), chip="engineering sample", number=None) == "SM8650 fp16"


def library(path: Path, version: str) -> Path:
    path.write_bytes(b"\x7fELF" + bytes(9_000_000) + f"v{version}.260929181845\0".encode() + bytes(100))
    return path


def test_releases_of_libraries(bundle: Bundle, tmp_path: Path) -> None:
    both = compiled(bundle, ("SM8650", 57))
    new = library(tmp_path / "libQnnHtp.so", "2.51.0")
    assert qairt_release(new) == (2, 51, 0)
    (tmp_path / "libQnnSystem.so").write_bytes(b"says nothing")
    assert qairt_release(tmp_path / "libQnnSystem.so") is None
    check_release(both, "htp", {"libQnnHtp.so": new, "libQnnSystem.so": tmp_path / "libQnnSystem.so"})
    other = library(tmp_path / "libQnnHtpV75Stub.so", "2.50.1")
    with pytest.raises(
        Unfit, match=r"different releases: libQnnHtp\.so 2\.51\.0, libQnnHtpV75Stub\.so 2\.50\.1"
    ):
        check_release(both, "htp", {"libQnnHtp.so": new, "libQnnHtpV75Stub.so": other})
    with pytest.raises(Unfit, match=rf"compiled with QAIRT {QAIRT}, the libraries are 2\.50\.1"):
        check_release(both, "htp", {"libQnnHtpV75Stub.so": other})
    for graph in both.manifest.target.graphs:  # as where AI Hub told two numbers of the release
        if graph.htp is not None:
            graph.htp.qairt = "2.51"
    check_release(both, "htp", {"libQnnHtp.so": new})
    with pytest.raises(Unfit, match=r"compiled with QAIRT 2\.51, the libraries are 2\.50\.1"):
        check_release(both, "htp", {"libQnnHtpV75Stub.so": other})
    check_release(both, "cpu", {"libQnnHtpV75Stub.so": other})


def be_android(device: LoopbackDevice) -> None:
    device.sandbox.path("/system/bin").mkdir(parents=True)
    device.sandbox.path("/system/bin/linker64").write_bytes(b"")
    device.sandbox.folder.joinpath("bin", "uname").write_text("#!/bin/sh\necho aarch64\n")
    device.sandbox.folder.joinpath("bin", "uname").chmod(0o755)


def test_a_bundle_for_another_chip_does_not_move(bundle: Bundle, connect: Connect) -> None:
    device = connect()
    be_android(device)
    before = device.link.received
    with pytest.raises(Unfit, match=r"is compiled for SM8750, the phone .* has SM8650"):
        open_device_session(compiled(bundle, ("SM8750", 69)), "target", DeviceOptions(provider="htp"))
    assert device.link.received - before < 10_000


def test_the_phone_says_which_build_a_prefix_is_for(
    bundle: Bundle, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a bundle has several and none was asked for; nothing is pushed for that."""
    release = Release(ANDROID, Folder("runners", "0" * 64, {}), qnn=True)
    monkeypatch.setattr("hexgraft.host.adb.session.find_release", lambda *args, **kwargs: release)
    device = connect()
    be_android(device)
    names = ("widths", "soc", "precision", "no_stay_awake")
    options = dict.fromkeys(names) | {"serial": device.serial, "root": ROOT, "threads": 0}
    options |= {"backend": "device", "provider": "htp"}
    both = compiled(bundle, ("SM8750", 69), ("SM8650", 57))
    before = device.link.received
    assert (place_of(both, options).soc, place_of(both, options | {"soc": "SM8650"}).soc) == ("SM8650",) * 2
    assert device.link.received - before < 20_000


def test_a_phone_without_an_npu(bundle: Bundle, connect: Connect) -> None:
    device = connect(PHONES["no-npu"])
    device.sandbox.path("/system/bin").mkdir(parents=True)
    device.sandbox.path("/system/bin/linker64").write_bytes(b"")
    with pytest.raises(Unfit, match=r"\(Tensor G3\) has no Hexagon NPU that adb may reach") as raised:
        open_device_session(compiled(bundle, ("SM8750", 69)), "target", DeviceOptions(provider="htp"))
    assert raised.value.hint == "use --provider cpu"


@needs_qnn
@pytest.mark.slow
@pytest.mark.usefixtures("built_runner")
def test_the_emulator_behind_the_phone_gives_its_tokens(connect: Connect, tmp_path: Path) -> None:
    options = ExportOptions((1, 8), 128)
    write_pair(tmp_path, noise=None, options=options)
    export_htp(
        open_checkpoint(tmp_path / "target-checkpoint"),
        tmp_path / "npu",
        draft=None,
        options=options,
        htp=HtpOptions(find_socs(("SM8650",)), make_precision("fp16"), parity_rows=0),
        report=lambda step: None,
        say=lambda words: None,
    )
    npu = open_bundle(tmp_path / "npu")
    connect()

    def tokens(session: Session) -> list[int]:
        decoder = Decoder(session, options=DecodeOptions(max_tokens=20, tree_size=1))
        decoder.begin([40, 51, 7, 260, 33, 12])
        return [token for current in decoder.rounds() for token in current.tokens]

    remote = open_device_session(npu, "target", DeviceOptions(provider="htp"))
    assert remote.spec.provider == "device-htp"
    assert tokens(remote) == tokens(HtpSession(npu))
