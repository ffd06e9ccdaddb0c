"""The rotation of nets that are trained, beside targets whose rotation is scaled or of a part of a head."""

from __future__ import annotations

import pytest

from hexgraft.export.train.plain_rope import is_plain, rope_base
from hexgraft.models.config import Rope
from hexgraft.models.partial_rope import padded_rope
from hexgraft.models.rope_scaling import linear_rope, llama3_rope, plain_rope, yarn_rope


@pytest.mark.parametrize(
    ("rope", "base"),
    [
        (plain_rope(64, 100000.0), 1e5),
        (linear_rope(256, 1e6, 8.0), 1e6),
        (llama3_rope(128, 5e5, 8.0, 1.0, 4.0, 8192), 5e5),
        (yarn_rope(128, 1e6, 4.0, 32768), 1e6),
        (padded_rope(plain_rope(96, 10000.0), 128), 1e4),
    ],
    ids=["plain", "linear", "llama3", "yarn", "part"],
)
def test_the_base_is_that_before_scaling(rope: Rope, base: float) -> None:
    found = rope_base(rope)
    assert found == pytest.approx(base, rel=1e-4)
    dim = 2 * len(rope.frequencies)
    assert is_plain(plain_rope(dim, found), dim)
    assert is_plain(rope, dim) == (rope == plain_rope(64, 100000.0))
