"""The vendor's layout in the C++ runner: bit by bit what the session in process gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from phones import Connect
from vendor_export import import_folder, write_vendor_export

from hexgraft.host.adb.session import open_device_session
from hexgraft.host.backends import open_session
from hexgraft.host.bundle import Bundle
from hexgraft.host.decode import DecodeOptions, Decoder
from hexgraft.host.drafters.registry import make_drafter
from hexgraft.host.runner.session import RunnerSession, open_local_session
from hexgraft.host.runner.wire import RunnerError
from hexgraft.host.session import Session, causal, prefill
from hexgraft.models.errors import DecodeError

TEXT = [int(token) for token in np.random.default_rng(0).integers(8, 300, 60)]
KINDS: dict[str, dict[str, Any]] = {
    "uint8 K/V in three parts": {},
    "everything quantised": {"border": True, "cuts": ("layers.0.out",)},
    "float32": {"quantised": False, "cuts": ()},
    "the widest gives one row's logits": {"widths": (1, 8, 32), "last": (32,)},
}


@pytest.fixture(scope="module", params=KINDS)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("vendor")
    made = write_vendor_export(folder, **KINDS[request.param])
    return import_folder(made.folder, folder / "bundle")


@pytest.fixture
def remote(bundle: Bundle, binary: Path) -> Iterator[RunnerSession]:
    session = open_local_session(bundle, binary=binary, threads=1)
    yield session
    session.close()


def tokens(session: Session, bundle: Bundle) -> list[int]:
    options = DecodeOptions(max_tokens=150, tree_size=8)
    decoder = Decoder(session, make_drafter("lookup", bundle, lambda: session), options)
    decoder.begin(TEXT[:6] * 3)
    return [token for current in decoder.rounds() for token in current.tokens]


def test_bit_by_bit(bundle: Bundle, remote: RunnerSession) -> None:
    local = open_session(bundle, "target", "cpu", threads=1)
    assert (remote.spec.capacity, remote.spec.widths) == (local.spec.capacity, local.spec.widths)
    assert remote.spec.tree_widths == local.spec.tree_widths
    for session in (remote, local):
        for _ in prefill(session, TEXT, 0, 57):  # through the widest graph, then a narrower one
            pass
    saved = [session.save(57) for session in (remote, local)]
    assert (saved[0].keys == saved[1].keys).all()
    assert (saved[0].values == saved[1].values).all()
    rows = [session.forward(TEXT[:5], range(57, 62), causal(57, 5)) for session in (remote, local)]
    for row in range(5):
        assert (rows[0].logits(row) == rows[1].logits(row)).all()
    assert rows[0].topk(4).ids.tolist() == rows[1].topk(4).ids.tolist()
    for session in (remote, local):
        session.store([0, 3], [70, 71])
        session.move([70, 71], [57, 58])
    assert (remote.save(59).keys == local.save(59).keys).all()
    remote.reset()
    remote.restore(saved[1])
    assert (remote.save(57).values == saved[1].values).all()
    assert tokens(remote, bundle) == tokens(local, bundle)


def test_slots_end_where_the_widest_graph_ends(bundle: Bundle, remote: RunnerSession, binary: Path) -> None:
    assert remote.spec.capacity == 128
    with pytest.raises((RunnerError, DecodeError), match="positions` must hold"):
        remote.forward([5], [128], causal(128, 1))
    narrow = open_local_session(bundle, binary=binary, widths=[1, 8], threads=1)
    assert (narrow.spec.capacity, narrow.spec.max_width) == (152, 8)
    narrow.forward([5], [151], causal(151, 1))
    narrow.store([0], [151])
    narrow.save(152)
    narrow.close()


def test_one_rows_logits(binary: Path, tmp_path: Path) -> None:
    made = write_vendor_export(tmp_path, widths=(1, 16), last=(16,))
    bundle = import_folder(made.folder, tmp_path / "b")
    session = open_local_session(bundle, binary=binary, threads=1)
    assert session.spec.tree_width == 1
    rows = session.forward(TEXT[:9], range(9), causal(0, 9))
    assert rows.topk(1, [8]).ids.shape == (1, 1)
    with pytest.raises((RunnerError, DecodeError), match="logits of the last row alone"):
        rows.logits(3)
    session.close()


@pytest.mark.usefixtures("built_runner")
def test_phones_know_what_graphs_give(connect: Connect, tmp_path: Path) -> None:
    made = write_vendor_export(tmp_path, widths=(1, 8, 16), last=(16,))
    bundle = import_folder(made.folder, tmp_path / "b")
    connect()
    session = open_device_session(bundle, "target")
    assert (session.spec.max_width, session.spec.tree_width) == (16, 8)
    session.close()
