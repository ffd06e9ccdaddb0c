"""The norm of drafts in training: float32 inside autocast, and no word of torch's about its types."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")

from hexgraft.export.train.dataset import Batch  # noqa: E402
from hexgraft.export.train.head_net import HeadNet, HeadSizes  # noqa: E402
from hexgraft.export.train.norm import Norm  # noqa: E402


def test_bfloat16_comes_out_as_float32_normed_in_float32() -> None:
    torch.manual_seed(0)
    norm = Norm(16, eps=1e-5)
    x = (40 * torch.randn(5, 16)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = norm(x)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), exact, rtol=1e-5)


def test_a_head_unrolls_in_bfloat16_without_a_warning() -> None:
    torch.manual_seed(0)
    net = HeadNet(HeadSizes(16, 4, 2, 4, 32, (1, 2, 3), 10000.0, 1e-5))
    nothing = torch.zeros(1, 6, 1)
    batch = Batch(
        torch.arange(7)[None], torch.randn(1, 6, 3, 16), nothing, nothing.long(), nothing, nothing[..., 0]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.autocast("cpu", torch.bfloat16):
            states = [net.norm(state) for state in net.unroll(batch, torch.randn(8, 16), 3)]
    assert [state.dtype for state in states] == [torch.float32] * 3
