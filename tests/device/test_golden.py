"""The recorded conversation: this side says what was recorded, and makes the right things of the answers."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from conversation import GOLDEN, REFUSED, Replay, converse, fake_logits, golden_frames

from hexgraft.host.logits import NotFinite, topk
from hexgraft.host.runner.connection import RunnerConnection
from hexgraft.host.runner.wire import PROTOCOL, Hello, RunnerLost
from hexgraft.host.session import TopK
from hexgraft.models.errors import BundleError


def test_conversation_is_the_recorded_one() -> None:
    requests, answers = golden_frames()
    replay = Replay(answers)
    converse(RunnerConnection(replay, replay))
    for i, (said, recorded) in enumerate(zip(replay.requests, requests, strict=True)):
        assert said == recorded, f"request {i}: {msgspec.msgpack.decode(said)}"


def test_answers_mean_what_the_fake_model_computes() -> None:
    replay = Replay(golden_frames()[1])
    got = converse(RunnerConnection(replay, replay))
    chain = np.stack([fake_logits(5, 1), fake_logits(6, 2), fake_logits(7, 3)])
    _equal(got[0], topk(chain, 3, log_sum=False))
    np.testing.assert_array_equal(got[1], chain[1])
    np.testing.assert_array_equal(got[2], np.float32([7, 8, 9, 10]))
    # Row 1 sees three slots, the root and itself; so does row 2.
    _equal(got[3], topk(fake_logits(10, 5)[None], 2, log_sum=False))
    _equal(got[4], topk(fake_logits(11, 5)[None], 1, log_sum=False))
    # Four slots, one scratch slot and itself.
    _equal(got[5], topk(np.stack([fake_logits(20, 6), fake_logits(21, 6)]), 1, log_sum=False))
    saved = got[6]
    assert saved.keys.shape == (2, 2, 4, 5)
    assert saved.keys[1, 1, 2].tolist() == [token * 100 + 10 + 6 for token in (5, 6, 7, 9, 11)]
    assert saved.values[0, 1, :, 3].tolist() == [-(token * 100 + 7) for token in (5, 6, 7, 9, 11)]
    assert isinstance(got[8], NotFinite)
    np.testing.assert_array_equal(got[9].keys, saved.keys)
    np.testing.assert_array_equal(got[9].values, saved.values)
    assert got[10] == (2, 4, 0.25)
    assert got[11].widths == (1, 4, 8)
    np.testing.assert_array_equal(got[12], fake_logits(6, 2))
    assert isinstance(got[13], BundleError)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_messages_are_no_answers_either(name: str) -> None:
    message = (GOLDEN / "refused" / f"{name}.bin").read_bytes()
    assert message == REFUSED[name]
    hello = golden_frames()[1][0]
    replay = Replay([hello, message])
    connection = RunnerConnection(replay, replay)
    with pytest.raises(RunnerLost):
        connection.call([{"op": "stats"}])
    with pytest.raises(RunnerLost, match="is gone"):
        connection.call([{"op": "stats"}])


def test_hello_is_read() -> None:
    hello = msgspec.msgpack.decode(golden_frames()[1][0], type=Hello)
    assert hello.protocol == PROTOCOL
    assert hello.providers == ["cpu"]


def _equal(got: TopK, expected: TopK) -> None:
    np.testing.assert_array_equal(got.ids, expected.ids)
    np.testing.assert_array_equal(got.logits, expected.logits)
