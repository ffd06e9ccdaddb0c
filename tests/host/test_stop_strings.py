"""Stop strings: found wherever token and round borders fall, and everything ends with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pair import make_pair
from tokenizers import Tokenizer, decoders, models

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.base import Drafter, NoDraft
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.stop_strings import AnswerText, StopStrings
from hexgraft.host.text import TextCodec, TextStream
from hexgraft.models.errors import UsageError

LETTERS = st.text("abé", max_size=14)


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By the definition: the first place where a stop string ends, the longest of those that end there."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(st.lists(LETTERS, max_size=6), st.lists(st.text("abé", min_size=1, max_size=4), max_size=3))
def test_the_text_ends_before_the_first_stop_string_however_it_was_cut(
    pieces: list[str], stops: list[str]
) -> None:
    text, found = expected("".join(pieces), stops)
    watcher = StopStrings(stops)
    shown = ""
    for piece in pieces:
        shown += watcher.push(piece)
        assert text.startswith(shown)
    assert watcher.found == found
    assert shown + watcher.flush() == text


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    watcher = StopStrings(stops)
    shown = watcher.push(text)
    held = watcher.flush()
    if watcher.found is None:
        assert shown + held == text
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(
            stop.startswith(text[start:]) for stop in stops for start in range(len(text) - len(held))
        )


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UsageError, match="a stop string is empty"):
        StopStrings(["END", ""])


# ------------------------------------------------------------------ tokens


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def codec(bundle: Bundle) -> TextCodec:
    return TextCodec(bundle)


FIRST_BYTE = 3
"""After the tiny vocabulary's special tokens come the 256 bytes in order."""


def byte_tokens(data: bytes) -> list[int]:
    """One token a byte."""
    return [FIRST_BYTE + byte for byte in data]


@given(tokens=st.lists(st.integers(0, 319), max_size=60))
def test_streamed_text_is_the_text_of_all_tokens_at_once(codec: TextCodec, tokens: list[int]) -> None:
    stream = codec.stream()
    shown = ""
    text = codec.decode(tokens)
    for token in tokens:
        shown += stream.push([token])
        assert text.startswith(shown)
    assert shown + stream.flush() == text


@given(text=st.text(max_size=20))
def test_characters_split_over_tokens_come_whole(codec: TextCodec, text: str) -> None:
    stream = codec.stream()
    tokens = byte_tokens(text.encode())
    pieces = [stream.push([token]) for token in tokens]
    assert "".join(pieces) + stream.flush() == text
    assert all("\ufffd" not in piece or "\ufffd" in text for piece in pieces)


def test_a_stop_string_split_over_tokens_inside_a_character(codec: TextCodec) -> None:
    answer = AnswerText(codec, ["né"])
    ended = [answer.ends(token) for token in byte_tokens("un né".encode())]
    assert ended == [False] * 5 + [True]
    assert answer.finish() == "un "


class CodecOf:
    """Decodes tokens by a table."""

    def __init__(self, table: dict[int, str]) -> None:
        self._table = table

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return "".join(self._table[token] for token in tokens)


def test_a_stop_string_is_found_although_the_next_character_has_begun(codec: TextCodec) -> None:
    """A token may end one character and begin the next; the stop string before it counts at once."""
    answer = AnswerText(codec, ["."])
    both = CodecOf({1: "a", 2: ".\ufffd"})
    answer._stream = TextStream(both)  # type: ignore[arg-type]
    assert [answer.ends(token) for token in (1, 2)] == [False, True]
    assert answer.finish() == "a"


def test_a_given_beginning_counts_towards_stop_strings(codec: TextCodec) -> None:
    answer = AnswerText(codec, ["abc"])
    answer.begin("xab")
    assert answer.take() == "x"
    assert answer.ends(byte_tokens(b"c")[0])
    assert answer.finish() == ""
    assert answer.text == "x"
    with pytest.raises(UsageError, match="holds the stop string 'abc'"):
        answer.begin("an abc")


@pytest.fixture
def spaced(codec: TextCodec, monkeypatch: pytest.MonkeyPatch) -> TextCodec:
    """A codec as of Llama 2: tokens begin with a space, which the first token of a decoded text loses."""
    words = ["<unk>", "\u2581", "\u2581List", ":", "\u2581is", "is", *(f"<0x{n:02X}>" for n in range(256))]
    model = models.BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    monkeypatch.setattr(codec, "_tokenizer", tokenizer)
    monkeypatch.setattr(codec, "encode_plain", lambda text: [2, 3])
    return codec


def test_what_follows_a_given_beginning_keeps_its_space(spaced: TextCodec) -> None:
    answer = AnswerText(spaced, [": is is"])
    answer.begin("List:")
    assert not answer.ends(4)
    assert answer.finish() == "List: is"
    answer.begin("List:")
    assert [answer.ends(token) for token in (4, 4)] == [False, True]
    assert answer.finish() == "List"


def test_a_token_by_itself_keeps_its_space(spaced: TextCodec) -> None:
    assert [spaced.token(token) for token in range(1, 6)] == [" ", " List", ":", " is", "is"]
    assert spaced.token(6 + 0xC3) == "<0xC3>"


def test_stop_tokens_are_no_part_of_the_text(codec: TextCodec) -> None:
    letters = byte_tokens(b"ab")
    answer = AnswerText(codec, silent=[letters[1]])
    for token in letters:
        answer.ends(token)
    assert answer.take() == "a"


# ------------------------------------------------------------------ decoding


@pytest.fixture(scope="module")
def session(bundle: Bundle) -> CpuSession:
    return CpuSession(bundle, widths=[16], whole=True)


@pytest.fixture(scope="module")
def drafters(bundle: Bundle) -> Callable[[str], Drafter]:
    draft = CpuSession(bundle, "draft")
    return lambda name: make_drafter(name, bundle, lambda: draft)


PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]


def decode(
    session: CpuSession, codec: TextCodec, drafter: Drafter, stops: list[str]
) -> tuple[AnswerText, Decoder, int, str | None]:
    answer = AnswerText(codec, stops)
    size = 1 if isinstance(drafter, NoDraft) else 16
    decoder = Decoder(session, drafter, DecodeOptions(60, size, logprobs=1), ends=answer.ends)
    decoder.begin(PROMPT)
    rounds = list(decoder.rounds())
    answer.take()
    answer.finish()
    assert [token for each in rounds for token in each.tokens] == decoder.tokens[len(PROMPT) :]
    return answer, decoder, sum(len(each.logprobs) for each in rounds), rounds[-1].finish


@pytest.mark.parametrize("name", ["levels", "best-first"])
def test_everything_ends_with_the_token_that_completes_a_stop_string(
    session: CpuSession, codec: TextCodec, drafters: Callable[[str], Drafter], name: str
) -> None:
    """Every place of the free text as a stop string of one to five characters: plain and trees end alike,
    inside accepted paths and across rounds."""
    free, whole, _, _ = decode(session, codec, NoDraft(), [])
    emitted = whole.tokens[len(PROMPT) :]
    lengths = [len(codec.decode(emitted[:n]).rstrip("\ufffd")) for n in range(len(emitted) + 1)]
    ends = borders(session, drafters(name))
    inside = across = 0
    places = [(start, start + length) for start in range(len(free.text)) for length in (1 + start % 3, 5)]
    for stop in dict.fromkeys(free.text[start:end] for start, end in places):
        if "\ufffd" in stop:
            continue
        text, _ = expected(free.text, [stop])
        count = next(n for n, length in enumerate(lengths) if length >= len(text) + len(stop))
        for drafter in (NoDraft(), drafters(name)):
            answer, decoder, logprobs, finish = decode(session, codec, drafter, [stop])
            assert finish == "stop-string"
            assert answer.text == text
            assert decoder.tokens == PROMPT + emitted[:count]
            assert decoder.stats.tokens == logprobs == count
            assert decoder.committed == len(decoder.tokens) - 1
        inside += count not in ends
        across += any(len(text) < lengths[end] < len(text) + len(stop) for end in ends)
    assert inside > 3
    assert across > 1


def borders(session: CpuSession, drafter: Drafter) -> list[int]:
    """How many tokens have been emitted after each round of a free run."""
    decoder = Decoder(session, drafter, DecodeOptions(60, 16))
    decoder.begin(PROMPT)
    return [decoder.stats.tokens for _ in decoder.rounds()]
