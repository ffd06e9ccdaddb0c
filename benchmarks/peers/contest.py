"""Who is compared with whom: contenders of one precision take turns at the same prompts."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.peers import models
from benchmarks.peers.environments import (
    GENAI,
    HEXGRAFT,
    LLAMA,
    OPENVINO,
    TRANSFORMERS,
    Environment,
    Missing,
)
from benchmarks.peers.worker import Worker
from hexgraft.models.attention import CHOSEN, FUSED
from hexgraft.models.user_folders import cache_folder

TOKENS = int(os.environ.get("PEERS_TOKENS", "96"))
REPEATS = 3
THREADS = int(os.environ.get("PEERS_THREADS", "2"))
"""With one thread, speeds are tokens a second of processor time, which a busy machine hardly changes."""
CLASS_SECONDS = 150
"""No further repeat is begun after this long."""

OURS = "hexgraft"
FUSED_NAME = f"{OURS}, fused, "
"""With fused attention: in fp32 the same tokens as without; trees at a8 keep to plain decoding's only as far
as near ties."""
_ONE_PASS = ("lookup 6", "lookup+levels 8 depth=1 enough=1 top_k=1")
DRAFTS = {
    "fp32": ("lookup 8", "lookup+levels 16 depth=2 enough=1 top_k=1"),
    "w8a8": _ONE_PASS,
    "w4a8": _ONE_PASS,
    "w4h4a8": _ONE_PASS,
}
"""Our drafters, the nodes of their trees, and their parameters: lookup as peers have it, and together with
the head. They are about those that `hexgraft tune` finds here, on prompts of these kinds."""
HALF = "F16"
"""Two peers read no fp32: ours against their half precision is told, but held to no goal."""
Precision = tuple["Contender", ...]


@dataclass(frozen=True, slots=True)
class Contender:
    """`make` gives its model's path, made if need be; each of `modes` is tried."""

    name: str
    environment: Environment
    script: str
    make: Callable[[Path], Path]
    modes: tuple[str, ...] = ("plain", "lookup")


@dataclass(slots=True)
class Result:
    """Tokens a second by prompt, one for each repeat, and the tokens themselves."""

    contender: str
    mode: str
    speeds: dict[str, list[float]] = field(default_factory=dict)
    tokens: dict[str, list[int]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.contender}, {self.mode}"

    def over(self, prompts: Sequence[str]) -> list[float]:
        """Tokens a second over several prompts of equally many tokens, one for each repeat."""
        repeats = zip(*(self.speeds[prompt] for prompt in prompts), strict=False)
        return [len(speeds) / sum(1 / speed for speed in speeds) for speeds in repeats]

    def ratio(self, other: Result, prompts: Sequence[str]) -> float:
        """How many times as fast as another, the median over repeats side by side."""
        pairs = zip(self.over(prompts), other.over(prompts), strict=False)
        return median(ours / theirs for ours, theirs in pairs)


def precisions(source: Path) -> dict[str, Precision]:
    """The contests, by precision, on the weights of a GGUF file."""
    folder = cache_folder() / "peers" / "models"

    def stored(kind: str) -> Path:
        return models.once(folder / f"{kind}.gguf", lambda path: models.gguf_of(source, kind, path))

    def ours(precision: str, kind: str, make_source: Callable[[], Path], attention: str) -> Contender:
        def make(_: Path) -> Path:
            path = folder / f"hexgraft-{precision}-{kind}-{attention}"
            return models.bundle(make_source(), precision, attention, path)

        name = (FUSED_NAME if attention == FUSED else f"{OURS} ") + precision
        return Contender(name, HEXGRAFT, "run_hexgraft.py", make, ("plain", *DRAFTS[precision]))

    def two(precision: str, kind: str, make_source: Callable[[], Path], fused: str = "") -> Precision:
        return (
            ours(precision, kind, make_source, CHOSEN),
            ours(fused or precision, kind, make_source, FUSED),
        )

    def hf(_: Path) -> Path:
        return models.once(folder / "hf", lambda path: models.hf_folder(source, path))

    def genai(precision: str) -> Contender:
        def make(site: Path) -> Path:
            return models.once(
                folder / f"genai-{precision}",
                lambda path: models.genai_folder(site, hf(site), precision, path),
            )

        return Contender(f"ONNX Runtime GenAI {precision}", GENAI, "run_genai.py", make, ("plain",))

    def reader(name: str, environment: Environment, script: str, kind: str | None) -> Contender:
        label = kind or "Q4_1"
        return Contender(f"{name} {label}", environment, script, lambda _: stored(kind) if kind else source)

    def both(kind: str | None) -> Precision:
        return (
            reader("OpenVINO GenAI", OPENVINO, "run_openvino.py", kind),
            reader("llama.cpp", LLAMA, "run_llama.py", kind),
        )

    transformers = Contender("transformers fp32", TRANSFORMERS, "run_transformers.py", hf)
    full = two("fp32", "file", lambda: source)
    return {
        "fp32": (*full, genai("fp32"), transformers),
        HALF: (*full, *both("F16")),
        "8 bits": (*two("w8a8", "Q8_0", lambda: stored("Q8_0")), *both("Q8_0")),
        "4 bits, the file's": (*two("w4a8", "file", lambda: source), *both(None)),
        # GenAI's output matrix is in 4 bits, too.
        "4 bits, rounded": (*two("w4a8", "rounded", lambda: hf(Path()), "w4h4a8"), genai("int4")),
    }


def run(contenders: Precision, prompts: dict[str, list[int]]) -> Iterator[Result]:
    """Let contenders take turns; those that are missing are told on standard error and left out."""
    with ExitStack() as stack:
        found = [(result, stack.enter_context(worker)) for result, worker in _start(contenders)]
        begin, lost = time.monotonic(), set[str]()
        for repeat in range(REPEATS):
            if repeat and time.monotonic() - begin > CLASS_SECONDS:
                print(f"{repeat} of {REPEATS} repeats, after {CLASS_SECONDS} s", file=sys.stderr)
                break
            for name, prompt in prompts.items():
                for result, worker in found:
                    if result.label in lost:
                        continue
                    try:
                        answer = worker.generate(prompt, TOKENS)
                    except Missing as why:
                        print(f"{result.label}: left out, {why}", file=sys.stderr)
                        lost.add(result.label)
                        continue
                    seconds = answer["cpu_seconds" if THREADS == 1 else "seconds"]
                    result.speeds.setdefault(name, []).append(answer["timed"] / seconds)
                    result.tokens[name] = answer["tokens"]
    yield from (result for result, _ in found if result.label not in lost)


def _start(contenders: Precision) -> Iterator[tuple[Result, Worker]]:
    for contender in contenders:
        try:
            python = contender.environment.python()
            site = contender.environment.site() if contender.environment is GENAI else Path()
            model = contender.make(site)
        except (Missing, RuntimeError, OSError, ValueError) as why:
            print(f"{contender.name}: not run, {why}", file=sys.stderr)
            continue
        for mode in contender.modes:
            try:
                worker = Worker(python, contender.script, model, THREADS, mode)
                worker.generate([1, 2, 3, 4], 4)
            except Missing as why:
                print(f"{contender.name}, {mode}: not run, {why}", file=sys.stderr)
                continue
            yield Result(contender.name, mode), worker
