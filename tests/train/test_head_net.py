"""The head in torch: unrolled over a text it says what one step after another would say, and its loss is
cross-entropy."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hexgraft.export.train.dataset import Batch  # noqa: E402
from hexgraft.export.train.head_net import HeadNet, HeadSizes  # noqa: E402
from hexgraft.export.train.loss import soft_cross_entropy  # noqa: E402

SIZES = HeadSizes(24, 4, 2, 6, 40, (2, 3, 4), 10000.0, 1e-5)


def batch(length: int) -> Batch:
    torch.manual_seed(4)
    tokens = torch.randint(0, 50, (2, length + 1))
    nothing = torch.zeros(2, length, 3)
    return Batch(
        tokens,
        torch.randn(2, length, 3, 24),
        torch.randn(2, length, 24),
        nothing.long(),
        nothing,
        nothing[..., 0],
    )


def net() -> HeadNet:
    torch.manual_seed(1)
    return HeadNet(SIZES)


def test_later_steps_see_true_rows_up_to_theirs_and_their_own_path() -> None:
    """What step s says at row i depends on tokens up to i + s and features up to i alone."""
    head, given, embedding = net(), batch(9), torch.randn(50, 24)
    whole = head.unroll(given, embedding, 3)
    for row in range(5):
        for step in (1, 2, 3):
            short = batch(9)
            short.states[:, row + 1 :] = 7.0
            short.tokens[:, row + step + 1 :] = 3
            again = head.unroll(short, embedding, 3)[step - 1]
            assert torch.allclose(again[:, row], whole[step - 1][:, row], atol=1e-5)
            short.tokens[:, row + step] += 1
            assert not torch.allclose(
                head.unroll(short, embedding, 3)[step - 1][:, row], again[:, row], atol=1e-3
            )


def test_first_step_equals_a_plain_decoder_layer() -> None:
    head, given, embedding = net(), batch(6), torch.randn(50, 24)
    (found,) = head.unroll(given, embedding, 1)
    layer = head.midlayer
    mixed = head.fc(given.states.flatten(2))[:, :5]
    read = torch.cat((layer.input_layernorm(embedding[given.tokens[:, 1:6]]), layer.hidden_norm(mixed)), -1)
    heads = {
        part: getattr(layer.self_attn, f"{part}_proj")(read).unflatten(-1, (-1, 6)).transpose(1, 2)
        for part in "qkv"
    }
    angles = torch.arange(1, 6)[:, None] / 10000.0 ** (torch.arange(3) / 3)
    turn = torch.polar(torch.ones_like(angles), angles)
    for part in "qk":
        first, second = heads[part].chunk(2, -1)
        turned = torch.complex(first, second) * turn
        heads[part] = torch.cat((turned.real, turned.imag), -1)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    out = torch.nn.functional.scaled_dot_product_attention(
        heads["q"], heads["k"].repeat_interleave(2, 1), heads["v"].repeat_interleave(2, 1), attn_mask=mask
    )
    x = mixed + layer.self_attn.o_proj(out.transpose(1, 2).flatten(2))
    normed, mlp = layer.post_attention_layernorm(x), layer.mlp
    x = x + mlp.down_proj(torch.nn.functional.silu(mlp.gate_proj(normed)) * mlp.up_proj(normed))
    assert torch.allclose(found, x, atol=1e-5)


def test_loss_and_its_gradient_are_those_of_cross_entropy() -> None:
    torch.manual_seed(2)
    states = torch.randn(2100, 12, requires_grad=True)
    head, ids = torch.randn(30, 12), torch.stack([torch.randperm(30)[:5] for _ in range(2100)])
    shares, weights = torch.softmax(torch.randn(2100, 5), -1), torch.rand(2100)
    soft_cross_entropy(states, head, ids, shares, weights).mul(0.5).backward()
    ours, states.grad = states.grad, None
    dense = torch.zeros(2100, 30).scatter_(1, ids, shares)
    each = torch.nn.functional.cross_entropy(states @ head.t(), dense, reduction="none")
    total = (each * weights).sum()
    (total * 0.5).backward()
    assert torch.allclose(soft_cross_entropy(states, head, ids, shares, weights), total, rtol=1e-5)
    assert ours is not None
    assert states.grad is not None
    assert torch.allclose(ours, states.grad, atol=1e-5)
