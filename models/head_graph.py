"""A draft head as a graph of the decoder's contract: same cache, mask and RoPE inputs, and states in and
out."""

from __future__ import annotations

from collections.abc import Mapping

from hexgraft.models.attention import STACKED, WIDTH
from hexgraft.models.decoder import DecoderBuilder
from hexgraft.models.graph import Graph, Loan, Part, Weight
from hexgraft.models.head_config import EAGLE3, HeadConfig


def build_head(
    config: HeadConfig,
    weights_file: str,
    *,
    name: str,
    loans: Mapping[str, Loan] | None = None,
    attention: str = STACKED,
) -> Graph:
    """Build the graph of a head with symbolic width T and cache capacity C; `loans` gives its embedding
    ("embed") or output matrix ("head") where they are the target's, `attention` is `build_decoder`'s.

    Beside a decoder's inputs it takes hidden_in [1,T,d] and, of EAGLE-3, features [1,T,F]: what stood before
    a row's token in the target, or in the head itself where the target has not been there. The two are
    added, so that rows of either kind go through one pass; the one that a row does not have is zero.
    Outputs: logits [1,T,rows], hidden [1,T,d] (what the next row's hidden_in is, before the last norm), and
    the K/V rows.

    Sources: Li et al., "EAGLE", arXiv 2401.15077, and "EAGLE-3", arXiv 2503.01840, and their published code:
    EAGLE-1 has no norm before its first layer nor before the target's output matrix; EAGLE-3 norms token and
    state apart, attends to both side by side, and adds to the state.
    """
    return _Head(config, name, loans or {}, attention).build_head(weights_file)


class _Head(DecoderBuilder):
    def __init__(self, config: HeadConfig, name: str, loans: Mapping[str, Loan], attention: str) -> None:
        super().__init__(config.layer, name, attention=attention)
        self.head, self.loans = config, loans

    def build_head(self, weights_file: str) -> Graph:
        c, g, head = self.config, self.graph, self.head
        ids = self._inputs(head.rows)
        g.input("hidden_in", (1, WIDTH, c.hidden))
        g.output("hidden", (1, WIDTH, c.hidden))
        embedded = g.node("Gather", [self._matrix("embed", c.vocab), ids], "embedded")
        x = self._eagle3(embedded) if head.kind == EAGLE3 else self._eagle(embedded)
        for i in range(1, c.layers):
            x = self._ffn(i, self._attention(i, x))
        g.node("Identity", [x], "hidden")
        normed = self._norm("norm", x) if head.kind == EAGLE3 else x
        self._head(normed, self._matrix("head", head.rows), head.rows)
        return g.build(weights_file)

    def _eagle3(self, embedded: str) -> str:
        c, g, head = self.config, self.graph, self.head
        g.input("features", (1, WIDTH, head.feature_size))
        mixed = self._project("fc", "features", c.hidden, head.feature_size, Part("fc"))
        x = g.node("Add", [mixed, "hidden_in"], "state")
        token, state = self._norm("layers.0.attn_norm", embedded), self._norm("layers.0.hidden_norm", x)
        read = g.node("Concat", [token, state], "token_and_state", axis=-1)
        return self._ffn(0, self._attention(0, x, read, 2 * c.hidden))

    def _eagle(self, embedded: str) -> str:
        c, g, head = self.config, self.graph, self.head
        both = g.node("Concat", [embedded, "hidden_in"], "token_and_state", axis=-1)
        x = self._project("fc", both, c.hidden, 2 * c.hidden, Part("fc"), bias=head.fc_bias)
        return self._ffn(0, self._attention(0, x, x))

    def _matrix(self, name: str, rows: int) -> str:
        if name in self.loans:
            return self.graph.borrow(self.loans[name])
        return self.graph.weight(Weight(name, (rows, self.config.hidden), (Part(name),)))
