"""Training text: the target's own graph in torch, waves that shards and resumed runs make alike."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pair import make_pair

from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.demo_prompts import PROMPTS
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.lab.prompts import LAB_PROMPTS
from hexgraft.host.session import causal
from hexgraft.host.text import TextCodec
from hexgraft.models.attention import CHOSEN, STACKED
from hexgraft.models.errors import UsageError

torch = pytest.importorskip("torch")

from hexgraft.export.train.dataset import Dataset, read_texts  # noqa: E402
from hexgraft.export.train.generate import Plan, generate_wave, wave_path, waves, write_wave  # noqa: E402
from hexgraft.export.train.seeds import Request, fixed_prompts, requests, sums  # noqa: E402
from hexgraft.export.train.texts import TextBatch  # noqa: E402
from hexgraft.export.train.torch_graph import TorchGraph  # noqa: E402
from hexgraft.export.train.whole_prompts import Prompts  # noqa: E402
from hexgraft.export.writer import ExportOptions  # noqa: E402

PROMPT_IDS = ([5, 9, 40, 41, 7], [11, 8, 30, 31, 32, 33, 34, 20])


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp(request.param)
    options = ExportOptions((1, 8, 16, 32), 256, attention=STACKED if request.param == "llama" else CHOSEN)
    return make_pair(folder, noise=None, options=options, family=request.param, layers=4)


def encode(text: str) -> list[int]:
    return [3 + byte for byte in text.encode()][:40]


def logits_of(session: CpuSession, ids: list[int]) -> NDArray[np.float32]:
    """Logits after every token."""
    session.reset()
    found = []
    for start in range(0, len(ids), 32):
        chunk = ids[start : start + 32]
        places = range(start, start + len(chunk))
        rows = session.forward(chunk, places, causal(start, len(chunk)))
        found += [rows.logits(row) for row in range(len(chunk))]
        session.store(range(len(chunk)), places)
    return np.stack(found)


def wave(bundle: Bundle, plan: Plan, number: int = 0) -> bytes:
    graph = TorchGraph(bundle, dtype=torch.float32)
    asked = next(islice(waves(plan, lambda message: True), number, None))
    return generate_wave(graph, plan, number, asked, encode, [0], lambda count: None)


def test_torch_gives_the_logits_of_the_cpu_session_for_texts_side_by_side(bundle: Bundle) -> None:
    session = CpuSession(bundle, threads=1)
    graph = TorchGraph(bundle, dtype=torch.float32)
    batch = TextBatch(graph, 2, ["logits", "norm.out"])
    texts = [list(ids) for ids in PROMPT_IDS]
    padded = torch.tensor([[*ids, *[0] * (8 - len(ids))] for ids in texts])
    with torch.inference_mode():
        logits = batch.prefill(padded, torch.tensor([len(ids) for ids in texts]), lambda rows, states: None)
        for _ in range(70):  # past the first growth of the cache
            for text, row in zip(texts, logits, strict=True):
                text.append(int(row.argmax()))
            logits = batch.step(logits.argmax(-1))[0]
    for text, row in zip(texts, logits, strict=True):
        assert np.abs(logits_of(session, text)[-1] - row.numpy()).max() < 1e-3


def test_a_wave_is_greedy_text_with_the_states_of_its_tokens(bundle: Bundle, tmp_path: Path) -> None:
    plan = Plan(3, (2, 3, 4), texts=5, new_tokens=12)
    graph = TorchGraph(bundle, dtype=torch.float32)
    asked = [Request("a question", 0.0), Request("and another one", 0.0)]
    tmp_path.joinpath("w").write_bytes(generate_wave(graph, plan, 0, asked, encode, [0], lambda count: None))
    session = CpuSession(bundle, threads=1)
    for text, request in zip(read_texts([tmp_path / "w"]), asked, strict=True):
        assert text.tokens[: text.prompt].tolist() == encode(request.message)
        assert text.states.shape == (len(text.tokens) - 1, 4, 64)
        ids = text.tokens.tolist()
        assert logits_of(session, ids).argmax(-1)[text.prompt - 1 : -1].tolist() == ids[text.prompt :]


def test_batches_are_where_the_target_is(bundle: Bundle, tmp_path: Path) -> None:
    """As on a GPU: whatever is not brought there ends the training."""
    graph = TorchGraph(bundle, dtype=torch.float32)
    asked = [Request("a question", 0.0), Request("and another one", 0.0)]
    data = generate_wave(graph, Plan(3, (2, 3, 4), new_tokens=12), 0, asked, encode, [0], lambda count: None)
    (tmp_path / "w").write_bytes(data)
    texts = Dataset(read_texts([tmp_path / "w"]), graph, np.arange(64))
    texts.batch([0, 1])  # the target's distributions are made where the graph is, once
    graph.device = "meta"
    batch = texts.batch([0, 1])
    assert {getattr(batch, name).device.type for name in batch.__slots__} == {"meta"}


def test_waves_are_the_same_however_they_are_shared(bundle: Bundle, tmp_path: Path) -> None:
    plan = Plan(7, (2, 2, 1), texts=6, new_tokens=8)
    again = [wave(bundle, plan, number) for number in (1, 0)]
    assert again == [wave(bundle, plan, number) for number in (1, 0)]
    assert again[0] != again[1]
    write_wave(tmp_path, 0, again[1])
    assert wave_path(tmp_path, 0).read_bytes() == again[1]


def test_sampled_answers_differ_from_greedy_ones(bundle: Bundle, tmp_path: Path) -> None:
    plan = Plan(3, (1, 2, 3), texts=2, new_tokens=40)
    graph = TorchGraph(bundle, dtype=torch.float32)
    texts = []
    for heat in (0.0, 0.0, 1.0):
        data = generate_wave(graph, plan, 0, [Request("x y z", heat)], encode, [0], lambda count: None)
        (tmp_path / "w").write_bytes(data)
        texts.append(read_texts([tmp_path / "w"])[0].tokens.tolist())
    assert texts[0] == texts[1] != texts[2]


def test_no_prompt_measures_what_it_taught() -> None:
    import random

    taught = {*fixed_prompts(), *sums(random.Random(0), 20_000)}
    assert len(fixed_prompts()) == len(set(fixed_prompts())) > 2000
    assert not taught & {prompt.text for prompt in LAB_PROMPTS}
    assert not taught & set(PROMPTS.values())


def test_requests_are_mostly_greedy_and_the_same_for_a_seed() -> None:
    first = list(islice(requests(5, ("mine",)), 2000))
    assert first == list(islice(requests(5, ("mine",)), 2000))
    assert first != list(islice(requests(6, ("mine",)), 2000))
    assert 0.7 < np.mean([request.temperature == 0 for request in first]) < 0.8


def test_prompts_are_whole_or_left_out(bundle: Bundle) -> None:
    """A cut one would lack its question and the assistant's turn."""
    long = "Count these: " + "a b c d e f g " * 40
    prompts = Prompts(bundle, 120, (long, "Why?"))
    codec = TextCodec(bundle)
    whole = codec.encode_chat([{"role": "user", "content": long}])
    assert len(whole) > 120
    assert prompts.encode(long) == whole
    asked = next(waves(Plan(3, (), texts=6000, extra=(long, "Why?")), prompts.fits))
    assert all(len(prompts.encode(request.message)) <= 120 for request in asked)
    messages = {request.message for request in asked}
    assert "Why?" in messages
    assert long not in messages
    assert long in prompts.left_out
    with pytest.raises(UsageError, match="no prompt of --prompts fits in 120 tokens") as raised:
        Prompts(bundle, 120, (long,))
    assert raised.value.hint == "shorten them, or leave out --prompts"
    with pytest.raises(UsageError, match="no prompt fits in the 4 tokens that answers leave for it"):
        Prompts(bundle, 4)
