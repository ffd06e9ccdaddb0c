"""The page of a trace: self-contained, and nothing a model says becomes markup or script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.traces.trace import Header, Recorder, Trace
from hexgraft.host.traces.tree_page import render_page

PROMPT = [5, 300, 17, 42, 9, 271, 33, 17, 42, 9]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--\u2028{{ 7*7 }}"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def trace(bundle: Bundle) -> Trace:
    drafter = make_drafter("lookup+levels", bundle, lambda: CpuSession(bundle, "draft"))
    decoder = Decoder(CpuSession(bundle), drafter, DecodeOptions(60, 16, logprobs=5))
    recorder = Recorder(lambda token: f" t{token}")
    trace = Trace(recorder.header(bundle, decoder, PROMPT, whole=False))
    decoder.begin(PROMPT)
    trace.rounds = [recorder.round(current) for current in decoder.rounds()]
    trace.end = recorder.end(decoder.stats, "max-tokens")
    return trace


class Page(HTMLParser):
    """Counts elements and keeps scripts, attributes and the text of chosen elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] += data
        else:
            self.words += " " + data

    def of(self, kind: str) -> list[dict[str, str | None]]:
        return [a for _, a in self.elements if kind in (a.get("class") or "").split()]


def data_of(page: Page) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(page.scripts[0])
    return data


def test_the_page_holds_every_round(trace: Trace) -> None:
    page = Page(render_page(trace))
    data = data_of(page)
    assert [r["tokens"] for r in data["rounds"]] == [r.tokens for r in trace.rounds]
    assert [r["accepted"] for r in data["rounds"]] == [r.accepted for r in trace.rounds]
    assert len(page.of("bar")) == 2 * len(trace.rounds)
    tokens = page.of("t")
    assert len(tokens) == len(trace.emitted) == 60
    assert [int(t["data-round"] or 0) for t in tokens] == [r.number for r in trace.rounds for _ in r.emitted]


def test_tokens_have_the_colour_of_where_they_came_from(trace: Trace) -> None:
    page = Page(render_page(trace))
    sources = data_of(page)["sources"]
    kinds = [str(t["class"]).split()[1] for t in page.of("t")]
    expected = []
    for current in trace.rounds:
        expected += [f"s{sources.index(current.sources[node])}" for node in current.accepted[1:]]
        tree = current.tree()
        last = tree.child(current.accepted[-1], current.emitted[-1])
        expected.append("target" if last is None else f"s{sources.index(current.sources[last])}")
    assert kinds == expected
    assert {"target", "s0"} <= set(kinds)


def test_the_page_needs_nothing_from_elsewhere(trace: Trace) -> None:
    text = render_page(trace)
    page = Page(text)
    assert not {"link", "img", "iframe", "object", "embed", "base"} & {tag for tag, _ in page.elements}
    assert all("src" not in attributes and "href" not in attributes for _, attributes in page.elements)
    for word in ("url(", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert word not in text
    assert re.findall(r"https?://[^\s\"'<]+", text) == ["http://www.w3.org/2000/svg"]


def test_hostile_tokens_stay_text(trace: Trace) -> None:
    texts = dict.fromkeys(trace.texts(), HOSTILE)
    header: Header = msgspec.structs.replace(trace.header, texts=texts, target=HOSTILE, knobs=[HOSTILE])
    rounds = [
        msgspec.structs.replace(r, texts={}, sources=["root", *[HOSTILE] * (len(r.tokens) - 1)])
        for r in trace.rounds
    ]
    clean, page = Page(render_page(trace)), Page(render_page(Trace(header, rounds, trace.end)))
    count = {
        tag: sum(t == tag for t, _ in page.elements) - sum(t == tag for t, _ in clean.elements)
        for tag in ("script", "img", "span", "title")
    }
    assert count == {"script": 0, "img": 0, "span": 0, "title": 0}
    assert not any("onerror" in attributes for _, attributes in page.elements)
    assert page.scripts[1] == clean.scripts[1]
    assert set(data_of(page)["texts"].values()) == {HOSTILE}
    assert "<" not in page.scripts[0]
    assert "{{ 7*7 }}" in page.words.split(":root")[0]


def test_only_the_script_of_the_page_may_run(trace: Trace) -> None:
    page = Page(render_page(trace))
    policy = next(str(a["content"]) for tag, a in page.elements if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    digest = base64.b64encode(hashlib.sha256(page.scripts[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert len(page.scripts) == 2
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_figures_are_those_of_the_run(trace: Trace) -> None:
    words = " ".join(Page(render_page(trace)).words.split())
    stats = trace.stats()
    assert f"{stats.tokens_per_round:.2f} tokens a round" in words
    assert f"60 tokens in {len(trace.rounds)} rounds" in words
    taken = sum(tally.accepted for tally in stats.by_depth)
    assert taken == sum("target" not in str(t["class"]) for t in Page(render_page(trace)).of("t"))
    assert f"{taken} of {stats.nodes - stats.rounds} nodes" in words
    rank = stats.by_rank[0]
    assert f"rank 0 {100 * rank.rate:.0f} % {rank.accepted} of {rank.tried}" in words


def test_figures_an_edited_end_has_no_sense_in_are_left_out(trace: Trace) -> None:
    assert trace.end is not None
    end = msgspec.structs.replace(trace.end, stats={"draft_passes": [1.5]})
    page = Page(render_page(Trace(trace.header, trace.rounds, end)))
    assert "draft passes a round" in Page(render_page(trace)).words
    assert "draft passes a round" not in page.words


def test_cut_and_empty_traces_have_a_page(trace: Trace) -> None:
    assert "This trace was cut off" in Page(render_page(Trace(trace.header, trace.rounds[:2]))).words
    assert "The trace holds no round" in Page(render_page(Trace(trace.header))).words
    assert "cut off" not in Page(render_page(trace)).words


# --------------------------------------------------------------- in a browser

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_the_tree_of_the_round_asked_for(trace: Trace, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    header = msgspec.structs.replace(trace.header, texts=dict.fromkeys(trace.texts(), HOSTILE))
    rounds = [msgspec.structs.replace(current, texts={}) for current in trace.rounds]
    page.write_text(render_page(Trace(header, rounds, trace.end)), encoding="utf-8")
    chosen = max(rounds, key=lambda current: len(set(current.parents)))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", f"{page.as_uri()}#{chosen.number}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    drawn = Page(done.stdout)
    kinds = [str(attributes["class"]).split()[1] for attributes in drawn.of("node")]
    tree = chosen.tree()
    final = tree.child(chosen.accepted[-1], chosen.emitted[-1]) is not None
    assert len(kinds) == len(tree) + (not final)
    assert kinds.count("root") == 1
    assert kinds.count("target") == (not final)
    assert kinds.count("rejected") == len(tree) - len(chosen.accepted) - final
    assert f"Round {chosen.number} of {len(rounds)}" in drawn.words
    assert not any("onerror" in attributes for _, attributes in drawn.elements)
    assert sum(tag == "script" for tag, _ in drawn.elements) == 2
