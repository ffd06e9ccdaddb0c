"""Which states of a target a draft head reads, as the authors of the heads chose them."""

from __future__ import annotations

from hexgraft.models.errors import UnsupportedError

LEAST_LAYERS = 3


def eagle_features(layers: int) -> tuple[int, ...]:
    """EAGLE-1 and 2 read the state after the last norm of a target of so many layers: what its own head
    reads.

    Source: Li et al., "EAGLE", arXiv 2401.15077.
    """
    return (layers,)


def eagle3_features(layers: int) -> tuple[int, ...]:
    """EAGLE-3 reads the residual stream low, in the middle and high: after 2, layers // 2 and layers - 3
    layers.

    Source: Li et al., "EAGLE-3", arXiv 2503.01840; the numbers are those of its published code, which takes
    the input of the layer with that index. Raises CheckpointError for a target of fewer than three layers.
    """
    if layers < LEAST_LAYERS:
        raise UnsupportedError(
            f"an EAGLE-3 head reads a target of at least {LEAST_LAYERS} layers, this one has {layers}"
        )
    return tuple(sorted((2, layers // 2, layers - 3)))
