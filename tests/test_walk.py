"""The walk of one token tree told in docs/architecture.md is what the code does, call for call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.levels import Levels
from hexgraft.host.drafters.model import DraftModel
from hexgraft.host.logits import topk
from hexgraft.host.session import CacheRows, Floats, SessionSpec, TopK, Visibility
from hexgraft.host.tree import TokenTree

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
WORDS = ["the", "sky", "is", "blue", ".", "grass", "was", "green", "wet", "not", "dry"]
TEXT = ["the", "sky", "is", "blue", ".", "the", "grass"]
DRAFT = {
    "grass": {"is": 0.5, "was": 0.4},
    "is": {"green": 0.8, "not": 0.1},
    "was": {"wet": 0.7, "dry": 0.2},
}
TARGET = {"grass": {"was": 1.0}, "was": {"wet": 1.0}, "wet": {".": 1.0}}


def number(word: str) -> int:
    return WORDS.index(word)


class ScriptedRows:
    """Logits of each row as a table says, by the row's own token."""

    seconds = 0.0

    def __init__(self, logits: Floats) -> None:
        self._logits = logits
        self.count = self.width = len(logits)

    def topk(self, k: int, rows: Sequence[int] | None = None, *, log_sum: bool = True) -> TopK:
        return topk(self._logits if rows is None else self._logits[list(rows)], k, log_sum=log_sum)

    def logits(self, row: int) -> Floats:
        logits: Floats = self._logits[row].copy()
        return logits

    def hidden(self, row: int) -> Floats:
        raise NotImplementedError

    def hiddens(self, rows: Sequence[int] | None = None) -> Floats:
        raise NotImplementedError


class ScriptedSession:
    """Answers from a table and writes down what it was asked, in the words of the page."""

    def __init__(self, role: str, table: dict[str, dict[str, float]]) -> None:
        self.spec = SessionSpec(
            role=role,
            vocab=len(WORDS),
            layers=1,
            kv_heads=1,
            head_dim=2,
            hidden=2,
            capacity=32,
            widths=None,
            max_width=8,
            provider="script",
            features=0,
            logits=len(WORDS),
        )
        self._table = table
        self.calls: list[str] = []

    def forward(self, tokens: Sequence[int], positions: Sequence[int], visible: Visibility) -> ScriptedRows:
        words = " ".join(WORDS[token] for token in tokens)
        self.calls.append(f"forward  {words} at positions {_list(positions)}")
        logits = np.full((len(tokens), len(WORDS)), -20.0, np.float32)
        for row, token in enumerate(tokens):
            for word, probability in self._table.get(WORDS[token], {}).items():
                logits[row, number(word)] = np.log(probability)
        return ScriptedRows(logits)

    def store(self, rows: Sequence[int], slots: Sequence[int]) -> None:
        self.calls.append(f"store    rows {_list(rows)} in slots {_list(slots)}")

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        self.calls.append(f"move     slots {_list(source)} to {_list(target)}")

    def reset(self) -> None: ...

    def save(self, count: int) -> CacheRows:
        raise NotImplementedError

    def restore(self, rows: CacheRows) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


def _list(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def draw_mask(tree: TokenTree, committed: int, width: int) -> str:
    """The rows of the tree mask as the page draws them: committed and unwritten slots, then rows."""
    seen = np.eye(width, dtype=np.bool_)
    seen[: len(tree), : len(tree)] = tree.ancestors()
    lines = []
    for row in range(width):
        word = WORDS[tree.tokens[row]] if row < len(tree) else "pad"
        cache = ("x" if row < len(tree) else ".") * committed
        lines.append(
            f"{row} {word:<6} {' '.join(cache)} | . . . | {' '.join('.x'[int(bit)] for bit in seen[row])}"
        )
    return "\n".join(lines)


def test_the_walk_on_the_page_is_what_the_code_does() -> None:
    page = PAGE.read_text(encoding="utf-8")
    target, draft = ScriptedSession("target", TARGET), ScriptedSession("draft", DRAFT)
    drafter = Levels(DraftModel(draft), top_k=2, depth=2)
    decoder = Decoder(target, drafter, DecodeOptions(tree_size=5, max_tokens=20))
    decoder.begin([number(word) for word in TEXT])
    target.calls.clear()
    draft.calls.clear()

    done = decoder.step()

    assert [WORDS[token] for token in done.tree.tokens] == ["grass", "is", "was", "green", "wet"]
    assert done.tree.parents.tolist() == [-1, 0, 0, 1, 2]
    assert done.accepted == (0, 2, 4)
    assert [WORDS[token] for token in done.tokens] == ["was", "wet", "."]
    drafter.draft(decoder.tokens, decoder._limits())
    for role, calls in (("draft", draft.calls), ("target", target.calls)):
        told = re.findall(rf"^{role:<7} (\w+ .*?)(?:  #.*)?$", page, re.M)
        assert told == calls[: len(told)], role
        assert len(told) >= 2
    assert len(re.findall(r"^(?:draft|target) +\w+ ", page, re.M)) == 9
    assert draw_mask(done.tree, done.context, 8) in page
