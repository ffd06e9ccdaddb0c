"""Baked prefixes: loaded instead of prefilled, equal in every token, and refused in words where they do not
fit."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pair import make_pair
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tiny_tokenizer import CHATML

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import NoDraft
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.manifest import GraphEntry, HtpEntry
from hexgraft.host.prefix import Place, bake, builds_for, read_prefix, restore, system_tokens, write_prefix
from hexgraft.host.sampling import Sampling
from hexgraft.host.session import CacheRows
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import DecodeError, HexgraftError

SYSTEM = "The fox answers in the evening, and in the garden."


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def codec(bundle: Bundle) -> TextCodec:
    return TextCodec(bundle)


@pytest.fixture(scope="module")
def place(bundle: Bundle) -> Place:
    return Place.of(bundle, "cpu", None)


@pytest.fixture
def file(bundle: Bundle, codec: TextCodec, place: Place, tmp_path: Path) -> Path:
    path = tmp_path / "prefix.safetensors"
    write_prefix(path, bake(CpuSession(bundle), system_tokens(codec, SYSTEM), SYSTEM, place))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    return path


def messages(text: str, system: str = SYSTEM) -> list[dict[str, str]]:
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["none", "lookup", "levels"])
def test_a_baked_run_equals_one_without(
    bundle: Bundle, codec: TextCodec, place: Place, file: Path, name: str, temperature: float
) -> None:
    prompt = codec.encode_chat(messages("Where is the dog?"))
    prefix = read_prefix(file, bundle, place)
    assert prefix.system == SYSTEM
    options = DecodeOptions(
        60, 1 if name == "none" else 16, sampling=Sampling(temperature=temperature, seed=4)
    )
    texts = []
    for baked in (False, True):
        drafter = make_drafter(name, bundle, lambda: CpuSession(bundle, "draft"))
        decoder = Decoder(CpuSession(bundle), drafter, options)
        if baked:
            restore(decoder, prefix, prompt)
        done: list[int] = []
        decoder.begin(prompt, done.append, reuse=True)
        skipped = len(prefix.tokens) if baked else 0
        assert decoder.stats.reused_tokens == skipped
        assert sum(done) == len(prompt) - 1 - skipped
        for _ in decoder.rounds():
            pass
        texts.append(decoder.tokens)
    assert texts[0] == texts[1]


def test_the_rows_are_those_of_a_prefill(bundle: Bundle, codec: TextCodec, place: Place, file: Path) -> None:
    prefix = read_prefix(file, bundle, place)
    decoder = Decoder(CpuSession(bundle), NoDraft(), DecodeOptions(1, 1))
    decoder.begin([*prefix.tokens, 5])
    rows = decoder.session.save(len(prefix.tokens))
    np.testing.assert_allclose(prefix.rows.keys, rows.keys, atol=1e-5)
    np.testing.assert_allclose(prefix.rows.values, rows.values, atol=1e-5)


@pytest.mark.parametrize(
    "template",
    [
        CHATML,
        CHATML.replace("+ '\n' +", "+ '\n\n' +"),
        "{{ messages[0]['content'] }} {{ messages[1]['content'] }}",
        "{{ messages[0]['content'] }}{{ messages[1]['content'] }}",
    ],
)
@pytest.mark.parametrize("text", ["hi", "\nhi", "", " the fox", "\n", "3", "ing", "é", "日本"])
def test_every_prompt_begins_with_the_tokens_of_its_system_message(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, template: str, text: str
) -> None:
    """Also where the tokenizer would join the message's first letters with what stands before them."""
    codec = TextCodec(bundle)
    monkeypatch.setattr(codec, "_template", template)
    tokens = system_tokens(codec, SYSTEM)
    assert len(tokens) > 10
    assert codec.encode_chat(messages(text))[: len(tokens)] == tokens


def test_a_prompt_that_begins_otherwise_is_refused(
    bundle: Bundle, codec: TextCodec, place: Place, file: Path
) -> None:
    prefix = read_prefix(file, bundle, place)
    decoder = Decoder(CpuSession(bundle), NoDraft(), DecodeOptions(1, 1))
    with pytest.raises(
        DecodeError, match=r"does not begin with the baked prefix: they part at its token \d+"
    ):
        restore(decoder, prefix, codec.encode_chat(messages("hi", "Another one.")))


def test_a_system_message_that_leaves_no_room_is_refused(
    bundle: Bundle, codec: TextCodec, place: Place
) -> None:
    with pytest.raises(DecodeError, match="no room is left"):
        bake(CpuSession(bundle), system_tokens(codec, "fox " * 300), "", place)


def test_an_existing_file_is_kept(bundle: Bundle, place: Place, file: Path) -> None:
    before = file.read_bytes()
    with pytest.raises(HexgraftError, match="exists already"):
        write_prefix(file, read_prefix(file, bundle, place))
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bundle": "0" * 64}, "was baked with another bundle: 0000000000000000, not"),
        ({"provider": "phone"}, "was baked with another backend: phone, not cpu"),
        ({"precision": "fp16"}, "was baked with another precision: fp16, not fp32"),
        ({"widths": "1,8"}, "was baked with other pass widths: 1,8, not any"),
        ({"soc": "SM8650"}, "was baked with another chip's build: SM8650, not "),
    ],
)
def test_a_prefix_of_another_place_is_refused(
    bundle: Bundle, place: Place, file: Path, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.safetensors"
    write_prefix(other, replace(read_prefix(file, bundle, place), place=replace(place, **change)))
    with pytest.raises(HexgraftError, match=message) as caught:
        read_prefix(other, bundle, place)
    assert "hexgraft bake" in str(caught.value.hint)


def test_chips_and_precisions_have_places_of_their_own(bundle: Bundle) -> None:
    """The first build that fits what was asked for, as sessions choose; the CPU's place has no chip."""
    manifest = copy.deepcopy(bundle.manifest)
    for soc, provider, precision in (
        ("SM8650", "htp", "fp16"),
        ("SM8650", "htp", "w8a16"),
        ("SM8750", "htp", "w8a16"),
        ("SM8750", "htp-sim", "w8a16"),
        ("SM8650", "htp-sim", "fp16"),
    ):
        entry = HtpEntry(soc, 57, 75, "2.51.0", "x.bin")
        manifest.target.graphs.append(GraphEntry("x.onnx", provider, precision, 8, 64, entry))
    several = Bundle(bundle.path, manifest, bundle.digest)

    def place(backend: str, soc: str | None = None, precision: str | None = None) -> tuple[str, str]:
        found = Place.of(several, backend, None, "cpu" if backend == "cpu" else "htp", precision, 0, soc)
        return found.soc, found.precision

    assert place("cpu") == ("", "fp32")
    assert place("htp-sim") == place("runner") == ("SM8750", "w8a16")
    assert place("htp-sim", "SM8650") == ("SM8650", "fp16")
    assert place("runner", precision="fp16") == ("SM8650", "fp16")
    assert place("device") == ("SM8650", "fp16")
    assert place("device", "SM8750") == ("SM8750", "w8a16")
    assert place("device", "SM8650", "w8a16") == ("SM8650", "w8a16")
    assert builds_for(several, "device", "htp", None, "w8a16") == [("SM8650", "w8a16"), ("SM8750", "w8a16")]


def test_prefixes_of_old_name_no_chip(bundle: Bundle, place: Place, file: Path) -> None:
    """They stand where there is none, and count as of another where there is one."""
    metadata = {name: value for name, value in metadata_of(file).items() if name != "soc"}
    save_file(load_file(file), file, metadata)
    assert read_prefix(file, bundle, place).place == place
    with pytest.raises(HexgraftError, match="another chip's build: unknown, not SM8650") as caught:
        read_prefix(file, bundle, replace(place, soc="SM8650"))
    assert str(caught.value.hint).startswith("bake it again")


def metadata_of(file: Path) -> dict[str, str]:
    with safe_open(file, framework="numpy") as opened:
        found: dict[str, str] = opened.metadata()
        return found


def rewrite(file: Path, **changes: Any) -> None:
    tensors = load_file(file)
    metadata = metadata_of(file)
    for name, value in changes.items():
        if isinstance(value, str):
            metadata[name] = value
        elif value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, file, metadata)


def test_another_format_is_refused(bundle: Bundle, place: Place, file: Path) -> None:
    rewrite(file, format="1")
    with pytest.raises(HexgraftError, match="has prefix format 1, this hexgraft reads 2"):
        read_prefix(file, bundle, place)


def resized(tensors: dict[str, Any], count: int) -> dict[str, Any]:
    """As many tokens with rows as asked for, consistent in themselves."""
    return {
        "tokens": np.resize(tensors["tokens"], count),
        "keys": np.resize(tensors["keys"], (*tensors["keys"].shape[:3], count)),
        "values": np.resize(
            tensors["values"], (*tensors["values"].shape[:2], count, tensors["values"].shape[3])
        ),
    }


def test_damaged_tensors_are_refused(bundle: Bundle, place: Place, file: Path) -> None:
    tensors, whole = load_file(file), file.read_bytes()
    nan = tensors["keys"].copy()
    nan[0, 0, 0, 0] = np.nan
    infinite = tensors["values"].copy()
    infinite[-1, -1, -1, -1] = np.inf
    count = tensors["tokens"].size
    for message, changes in (
        ("not finite", {"keys": nan}),
        ("not finite", {"values": infinite}),
        ("holds .*, not tokens, keys and values", {"keys": None}),
        ("holds .*, not tokens, keys and values", {"more": tensors["tokens"]}),
        ("keys are float32", {"keys": tensors["keys"][:1]}),
        ("keys are float64", {"keys": tensors["keys"].astype(np.float64)}),
        ("values are float32", {"values": tensors["values"][:, :, :-1]}),
        ("tokens are int32", {"tokens": tensors["tokens"].reshape(1, count)}),
        ("tokens that this bundle cannot have", {"tokens": np.full(count, 320, np.int32)}),
        ("tokens that this bundle cannot have", {"tokens": np.full(count, -1, np.int32)}),
        ("tokens that this bundle cannot have", resized(tensors, 0)),
        ("tokens that this bundle cannot have", resized(tensors, bundle.target.context)),
    ):
        file.write_bytes(whole)
        rewrite(file, **changes)
        with pytest.raises(HexgraftError, match=message) as caught:
            read_prefix(file, bundle, place)
        assert caught.value.hint


@pytest.mark.parametrize("size", [0, 1, 7, 8, 100, -1])
def test_a_truncated_file_is_refused(bundle: Bundle, place: Place, file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(HexgraftError, match="is not a baked prefix, or is damaged"):
        read_prefix(file, bundle, place)


def test_a_file_of_another_kind_is_refused(bundle: Bundle, place: Place, tmp_path: Path) -> None:
    with pytest.raises(HexgraftError, match="no baked prefix at") as missing:
        read_prefix(tmp_path, bundle, place)
    assert missing.value.hint == "bake one: hexgraft bake BUNDLE --system TEXT -o PREFIX"
    text = tmp_path / "text"
    text.write_text("a" * 1000)
    with pytest.raises(HexgraftError, match="is not a baked prefix"):
        read_prefix(text, bundle, place)


def test_a_session_refuses_rows_of_another_shape(bundle: Bundle) -> None:
    rows = CacheRows(np.zeros((1, 1, 4, 3), np.float32), np.zeros((1, 1, 3, 4), np.float32))
    with pytest.raises(DecodeError):
        CpuSession(bundle).restore(rows)
