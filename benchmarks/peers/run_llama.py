"""llama.cpp through llama-cpp-python: a GGUF file, plain or with its prompt lookup."""

from __future__ import annotations

from collections.abc import Callable

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from serving import Clock, serve


def load(model: str, threads: int, mode: str) -> Callable[[list[int], int], Clock]:
    draft = LlamaPromptLookupDecoding(num_pred_tokens=10, max_ngram_size=2) if mode == "lookup" else None
    llama = Llama(
        model, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False, draft_model=draft
    )

    def generate(prompt: list[int], count: int) -> Clock:
        clock = Clock()
        llama.reset()
        for token in llama.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0, reset=False):
            clock.add([token])
            if len(clock.tokens) >= count:
                return clock
        return clock

    return generate


if __name__ == "__main__":
    serve(load)
