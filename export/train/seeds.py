"""What a target is asked when it writes its own training text: our seed prompts, and those of a user's file.

None of them is among the prompts of `hexgraft lab` or of `hexgraft demo`, which measure what was learnt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent / "prompts"
_LANGUAGES = ("French", "German", "Spanish", "Italian", "Portuguese", "Dutch")
_GREEDY = 0.75
"""Part of the first answers to a prompt that are greedy; further answers are sampled."""
_TEMPERATURES = (0.3, 0.5, 0.7, 1.0)

_PASSAGE_TASKS = (
    "Summarise this text in one sentence.\n\n{}",
    "Summarise in two sentences.\n\n{}",
    "Write a summary of the following text.\n\n{}",
    "Give the main points of this text as a list.\n\n{}",
    "Find a good title for this text and explain your choice.\n\n{}",
    "Shorten this text to half its length.\n\n{}",
    "Rewrite this text in simpler words.\n\n{}",
    "Correct the mistakes in this text and print the whole text again.\n\n{}",
    "Copy this text and put a comma or a full stop wherever one is missing.\n\n{}",
    "Ask three questions about this text and answer them with its own words.\n\n{}",
    "What is this text about? Quote the most important sentence.\n\n{}",
    "List all numbers and dates in this text and say what they stand for.\n\n{}",
    "Translate this text into French.\n\n{}",
    "Translate into German, sentence by sentence, the English first.\n\n{}",
    "Turn this text into a short news report.\n\n{}",
    "Answer with a sentence of the text: who or what is described here, and why?\n\n{}",
    "Continue this text with three more sentences.\n\n{}",
    "Make a table of the facts in this text.\n\n{}",
)
_TOPIC_TASKS = (
    "Tell me something interesting about {}.",
    "Write a short paragraph about {}.",
    "What are the main facts about {}? Give a list.",
    "Write a short story in which {} play a role.",
    "Explain {} to a child of eight.",
    "Write a poem of eight lines about {}.",
    "Give me five questions and answers for a quiz about {}.",
    "What are the advantages and disadvantages of {}?",
    "I want to know more about {}. Where should I begin?",
    "Write an outline for a talk about {}.",
    "Why are {} important to people?",
    "Write a letter to a friend about {}.",
    "What is the history of {}?",
)
_CODE_TASKS = (
    "{} Print the whole code.\n\n{}",
    "{} Print everything again.\n\n{}",
    "{}\n\n{}",
)
_CODE_ANY = (
    "Explain what this does.\n\n{}",
    "Copy this code and add a comment to every part.\n\n{}",
    "Is there a mistake in this? Print a better version.\n\n{}",
)
_PEOPLE = ("Tom", "Ella", "Ben", "Mia", "Paul", "Nora", "Omar", "Lucy")
_THINGS = ("apples", "books", "stamps", "coins", "pencils", "tickets", "shells", "cards")


@dataclass(frozen=True, slots=True)
class Request:
    """One text to be generated: the message, and the temperature of the answer (0 is greedy)."""

    message: str
    temperature: float


def requests(seed: int, extra: tuple[str, ...] = ()) -> Iterator[Request]:
    """An endless list of requests, the same for the same seed and prompts.

    Every prompt comes once before any comes again. The first answer is mostly greedy, further ones are
    sampled; sums are new every time.
    """
    first = True
    for number in range(1 << 30):
        rng = random.Random(f"{seed}/{number}")
        prompts = [*fixed_prompts(), *sums(rng, 600), *extra]
        rng.shuffle(prompts)
        for prompt in prompts:
            greedy = first and rng.random() < _GREEDY
            yield Request(prompt, 0.0 if greedy else rng.choice(_TEMPERATURES))
        first = False


def fixed_prompts() -> list[str]:
    """All prompts without chance in them."""
    passages = _read("passages").split("\n\n")
    prompts = _read("questions").splitlines()
    prompts += [task.format(passage) for passage in passages for task in _PASSAGE_TASKS]
    prompts += [task.format(topic) for topic in _read("topics").splitlines() for task in _TOPIC_TASKS]
    sentences = _read("sentences").splitlines()
    prompts += [f"Translate into {language}: {s}" for s in sentences for language in _LANGUAGES]
    for one, two in zip(sentences, sentences[7:] + sentences[:7], strict=True):
        prompts.append(f"Translate into French: {one} {two}")
        prompts.append(f"Put these sentences into the past tense: {one} {two}")
        prompts.append(f"Write a short story that begins with this sentence: {one}")
    for block in _read("code").split("\n---\n"):
        edits, _, code = block.partition("\n")
        prompts += [task.format(edit, code) for edit in edits.split("|") for task in _CODE_TASKS]
        prompts += [task.format(code) for task in _CODE_ANY]
    return prompts


def sums(rng: random.Random, count: int) -> list[str]:
    """Questions of arithmetic with numbers from `rng`."""
    found = []
    for _ in range(count):
        a, b, c = rng.randint(2, 12), rng.randint(2, 60), rng.randint(2, 20)
        one, two = rng.sample(_PEOPLE, 2)
        thing = rng.choice(_THINGS)
        found.append(
            rng.choice(
                (
                    f"What is {a * b} divided by {a}?",
                    f"What is {b} times {c}? Show the steps.",
                    f"What is {b * a} + {c * 7}?",
                    f"A car travels {b * a} km in {a} hours. How fast is it? "
                    f"How far does it go in {c} hours?",
                    f"List the first ten multiples of {c + 1}.",
                    f"List the first {a + 3} square numbers.",
                    f"Write the multiplication table of {c} from 1 to {a + 2}.",
                    f"{one} has {b} {thing} and gives {a} to {two}. How many are left? Explain.",
                    f"{one} has {a} times as many {thing} as {two}. Together they have {c * (a + 1)}. "
                    "How many has each?",
                    f"A room is {a} m long and {c} m wide. What is its area, and what is its perimeter?",
                    f"{c} {thing} cost {c * a} euros. What do {b} {thing} cost?",
                    f"Solve for x: {a}x + {b} = {a * c + b}. Show every step.",
                    f"What is {a * 5} percent of {b * 10}?",
                    f"Count from {b} to {b + a} and say for each number whether it is even or odd.",
                )
            )
        )
    return found


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").strip()
