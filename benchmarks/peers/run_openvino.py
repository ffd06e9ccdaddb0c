"""OpenVINO GenAI: a GGUF file, plain or with its prompt lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from serving import Clock, serve


class Timed(genai.StreamerBase):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()

    def write(self, token: Any) -> Any:
        self.clock.add([token] if isinstance(token, int) else list(token))
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


def load(model: str, threads: int, mode: str) -> Callable[[list[int], int], Clock]:
    extra: dict[str, Any] = {"prompt_lookup": True} if mode == "lookup" else {}
    pipeline = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, **extra)
    config = genai.GenerationConfig()
    config.do_sample, config.ignore_eos = False, True
    if mode == "lookup":
        config.num_assistant_tokens, config.max_ngram_size = 10, 2

    def generate(prompt: list[int], count: int) -> Clock:
        timed = Timed()
        config.max_new_tokens = count
        ids = ov.Tensor(np.array([prompt], np.int64))
        mask = ov.Tensor(np.ones((1, len(prompt)), np.int64))
        pipeline.generate(genai.TokenizedInputs(ids, mask), config, timed)
        return timed.clock

    return generate


if __name__ == "__main__":
    serve(load)
