"""Hugging Face transformers on torch: a model folder in fp32, plain or with its prompt lookup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from serving import Clock, serve
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList


class Timed(StoppingCriteria):  # type: ignore[misc]
    """Notes tokens as the model gives them, and never stops."""

    def __init__(self, prompt: int) -> None:
        self.clock = Clock()
        self._seen = prompt

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        self.clock.add(input_ids[0, self._seen :].tolist())
        self._seen = input_ids.shape[1]
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def load(model: str, threads: int, mode: str) -> Callable[[list[int], int], Clock]:
    torch.set_num_threads(threads)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    extra = {"prompt_lookup_num_tokens": 10} if mode == "lookup" else {}

    def generate(prompt: list[int], count: int) -> Clock:
        ids, timed = torch.tensor([prompt]), Timed(len(prompt))
        with torch.inference_mode():
            network.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=count,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([timed]),
                **extra,
            )
        return timed.clock

    return generate


if __name__ == "__main__":
    serve(load)
