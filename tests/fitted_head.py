"""An EAGLE-1 head that agrees with its tiny target on many tokens: a least-squares fit, no training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from heads import read_head, write_head
from safetensors.numpy import save_file
from tiny import read_tiny_weights

from hexgraft.export.writer import ExportOptions, export_bundle
from hexgraft.host.bundle import open_bundle
from hexgraft.host.cpu_session import CpuSession
from hexgraft.host.session import Rows, prefill
from hexgraft.models.checkpoint import open_checkpoint


def write_fitted_head(path: Path, target: Path, work: Path) -> Path:
    """Write a head whose `fc` maps (token, last feature) to the next feature as well as a linear map can."""
    write_head(path, target, "eagle")
    weights, theirs = read_head(path), read_tiny_weights(target)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= 0
    layers = open_checkpoint(target).config.layers
    options = ExportOptions((1, 32), 256, (layers,))
    export_bundle(open_checkpoint(target), work, options=options, report=lambda step: None)
    session, inputs, outputs = CpuSession(open_bundle(work)), [], []
    rng = np.random.default_rng(4)
    for _ in range(12):
        tokens = rng.integers(0, 320, 200).tolist()
        found: list[np.ndarray] = []

        def keep(start: int, rows: Rows, found: list[np.ndarray] = found) -> None:
            found.append(rows.hiddens())

        list(prefill(session, tokens, 0, 200, keep))
        features = np.concatenate(found)
        embedded = theirs["model.embed_tokens.weight"][tokens]
        inputs.append(np.concatenate((embedded[1:], features[:-1]), 1))
        outputs.append(features[1:])
    solution = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs), rcond=None)[0]
    weights["fc.weight"] = np.ascontiguousarray(solution.T.astype(np.float32))
    save_file(weights, path / "model.safetensors")
    return path
