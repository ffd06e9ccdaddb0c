"""ONNX Runtime GenAI: a folder its own model builder wrote. It has no speculation for one model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnxruntime_genai as og
from serving import Clock, serve


def load(model: str, threads: int, mode: str) -> Callable[[list[int], int], Clock]:
    if mode == "lookup":
        raise ValueError("it has no prompt lookup")
    settings = Path(model) / "genai_config.json"
    config = json.loads(settings.read_text())
    config["model"]["decoder"].setdefault("session_options", {})["intra_op_num_threads"] = threads
    settings.write_text(json.dumps(config))
    network = og.Model(model)

    def generate(prompt: list[int], count: int) -> Clock:
        clock, params = Clock(), og.GeneratorParams(network)
        params.set_search_options(max_length=len(prompt) + count, do_sample=False)
        generator = og.Generator(network, params)
        generator.append_tokens(prompt)
        while not generator.is_done() and len(clock.tokens) < count:
            generator.generate_next_token()
            clock.add([int(generator.get_next_tokens()[0])])
        return clock

    return generate


if __name__ == "__main__":
    serve(load)
