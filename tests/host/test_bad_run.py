"""`hexgraft run` with bad prompts and options: a sentence, a hint, an exit code, and files of others kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import error_of, hexgraft


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("-p", ""), "the prompt is empty", 2),
        ((), "give one prompt", 2),
        (("-p", "a", "-f", "b"), "give one prompt", 2),
        (("-f", "nowhere.txt"), "cannot read nowhere.txt: No such file or directory", 2),
        (("-f", "/"), "cannot read /: Is a directory", 2),
        (("what", "-p", "a"), "unexpected argument 'what'", 2),
        (("-p", "fox " * 300), "the prompt has 320 tokens, the context holds 256", 1),
        (("-p", "a", "--tree-size", "33"), "--tree-size 33 is wider than the widest graph, 32", 2),
        (("-p", "a", "--tree-size", "0"), "--tree-size 0 is not positive", 2),
        (("-p", "a", "--max-tokens", "0"), "--max-tokens 0 is not positive", 2),
        (("-p", "a", "--temperature", "-1"), "--temperature -1.0 is not 0 or more", 2),
        (("-p", "a", "--temperature", "nan"), "--temperature nan is not 0 or more", 2),
        (("-p", "a", "--temperature", "inf"), "--temperature inf is not 0 or more", 2),
        (("-p", "a", "--top-p", "nan"), "--top-p nan is not above 0 and at most 1", 2),
        (("-p", "a", "--min-p", "nan"), "--min-p nan is not in 0..1", 2),
        (("-p", "a", "--repetition-penalty", "nan"), "--repetition-penalty nan is not in 0.001..1000", 2),
        (("-p", "a", "--presence-penalty", "inf"), "--presence-penalty inf is not in -1000..1000", 2),
        (("-p", "a", "--frequency-penalty", "nan"), "--frequency-penalty nan is not in -1000..1000", 2),
        (
            ("-p", "a", "--widths", "5000"),
            "--widths '5000' is neither `bundle` nor numbers from 1 to 1024",
            2,
        ),
        (("-p", "a", "--stop", ""), "a stop string is empty", 2),
        (
            ("-p", "a", "--prefix", "x.", "--stop", "."),
            "the answer's given beginning holds the stop string '.'",
            2,
        ),
        (("-p", "a", "--raw", "--system", "b"), "--system needs a chat template", 2),
        (("-p", "a", "--plain", "--draft", "levels"), "--plain and --draft levels contradict each other", 2),
        (("-p", "a", "--logprobs", "1"), "--logprobs shows in --json only", 2),
        (("-p", "a", "--draft-option", "depth"), "--draft-option 'depth' is not name=value", 2),
        (("-p", "a", "--draft-option", "dept=3"), "the drafter levels has no option 'dept'", 2),
        (("-p", "a", "--draft-option", "depth=0"), "levels: depth 0 is not positive", 2),
        (
            ("-p", "a", "--draft-option", "depth=three"),
            "--draft-option depth=three: 'three' is not a whole number",
            2,
        ),
        (
            ("-p", "a", "--draft", "static", "--draft-option", "table=2"),
            "acceptance by rank [2.0] is not a list of numbers from 0 to 1",
            2,
        ),
        (("-p", "a", "--corpus", "x"), "--corpus is of no use to the drafter levels", 2),
        (("-p", "a", "--draft", "lookup", "--corpus", "x"), "cannot read x: No such file or directory", 2),
        (("-p", "a", "--baked", "x"), "no baked prefix at x", 2),
    ],
)
def test_prompts_and_options(bundle: Path, arguments: tuple[str, ...], message: str, code: int) -> None:
    result = hexgraft("run", bundle, *arguments)
    said, hint = error_of(result)
    assert said == message
    assert hint
    assert result.exit_code == code


def test_a_tree_wider_than_the_widths_of_this_run(bundle: Path) -> None:
    """A bundle's own widths are for an export to change, those that were typed are not."""
    typed = hexgraft("run", bundle, "-p", "a", "--widths", "1,8", "--tree-size", "16")
    assert error_of(typed) == (
        "--tree-size 16 is wider than --widths 1,8",
        "use --tree-size 8 or less, or a wider --widths",
    )
    own = hexgraft("run", bundle, "-p", "a", "--widths", "bundle", "--tree-size", "64")
    assert error_of(own)[1].endswith("or export with a wider --widths")
    assert typed.exit_code == own.exit_code == 2


def test_the_nearest_name_is_offered(bundle: Path) -> None:
    result = hexgraft("run", bundle, "-p", "a", "--draft", "best-first", "--draft-option", "max-fanout=3")
    assert error_of(result)[1] == (
        "did you mean --draft-option max_fan_out=...? best-first has top_k=15, temperature=1.5, p_base=0.9, "
        "max_fan_out=3, min_prob=0.2, early_stop=true"
    )


@pytest.mark.parametrize(
    ("drafter", "option", "hint"),
    [
        (
            "lookup",
            "max_fan_out=3",
            "it is one of --draft best-first; lookup has min_match=2, max_match=64, occurrences=16, "
            "min_prob=0.0",
        ),
        ("static", "depth=3", "it is one of --draft levels or lookup+levels; static has table"),
        ("chain", "top_k=3", "it is one of --draft best-first or levels or lookup+levels; chain has none"),
        ("levels", "help", "levels has top_k=8, depth=8, calibrated=true"),
        ("levels", "depth", "example: --draft-option depth=8"),
        ("sampled", "table", "example: --draft-option table=0.6,0.2,0.1"),
    ],
)
def test_options_of_drafters_are_told(bundle: Path, drafter: str, option: str, hint: str) -> None:
    done = hexgraft("run", bundle, "-p", "a", "--draft", drafter, "--draft-option", option)
    assert error_of(done)[1] == hint
    assert done.exit_code == 2


def test_a_system_message_without_room_for_another(bundle: Path) -> None:
    """Refused for what it is, and before the model is loaded."""
    system, words = "fox " * 300, "and the context holds 256: no room is left"
    for command in (("run", bundle, "-p", "hi"), ("chat", bundle)):
        message, hint = error_of(hexgraft(*command, "--system", system, input="hi\n"))
        assert message.startswith("the system message has ")
        assert message.endswith(words)
        assert hint == "shorten it, or export with a larger --context"


def test_a_verifier_that_would_be_biased(bundle: Path) -> None:
    result = hexgraft("run", bundle, "-p", "a", "--verifier", "specinfer", "--draft", "levels")
    message, _ = error_of(result)
    assert message.startswith("the specinfer verifier would be biased")
    assert result.exit_code == 2


def test_a_prompt_that_is_no_text(bundle: Path) -> None:
    result = hexgraft("run", bundle, "-", input=b"abc\xff")
    message, hint = error_of(result)
    assert message == "the prompt on standard input is not UTF-8 text: invalid start byte at byte 3"
    assert "iconv" in hint
    assert result.exit_code == 2


@pytest.mark.parametrize("option", ["--system", "--prefix", "--stop"])
def test_an_argument_that_is_no_text(bundle: Path, option: str) -> None:
    """What a shell passes on as other bytes than UTF-8 arrives with lone surrogates."""
    result = hexgraft("run", bundle, "-p", "a", option, "b\udcffc")
    message, hint = error_of(result)
    assert message == "a text is not UTF-8: it holds '\\udcff'"
    assert hint
    assert result.exit_code == 2


def test_penalties_beyond_any_use(bundle: Path) -> None:
    """They would overflow, and what follows would look like a fault of the model."""
    for option in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
        result = hexgraft("run", bundle, "-p", "a", option, "1e308")
        assert error_of(result)[0].startswith(f"{option} 1e+308 is not in ")
        assert result.exit_code == 2


def test_a_prompt_larger_than_any(bundle: Path) -> None:
    result = hexgraft("run", bundle, "-", input=b"a" * ((16 << 20) + 1))
    message, _ = error_of(result)
    assert message == "the prompt on standard input has more than 16 MB"
    assert result.exit_code == 2


def test_unknown_options_and_choices(bundle: Path) -> None:
    for arguments, said in (
        (["--bogus"], "hexgraft run has no option --bogus"),
        (["--draft", "bogus"], "--draft 'bogus' is none of its choices"),
        (["--threads", "-1"], "--threads: -1 is not in the range 0<=x<=256"),
        (["--max-tokens", "x"], "--max-tokens: 'x' is not a valid integer"),
    ):
        result = hexgraft("run", bundle, "-p", "a", *arguments)
        assert result.exit_code == 2
        assert error_of(result)[0] == said


def test_an_older_trace_outlives_a_prompt_that_is_too_long(bundle: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    words = ("run", bundle, "--trace", trace, "--max-tokens", "3", "-p")
    assert hexgraft(*words, "the fox").exit_code == 0
    before = trace.read_bytes()
    message, _ = error_of(hexgraft(*words, "fox " * 300))
    assert message == "the prompt has 320 tokens, the context holds 256"
    assert trace.read_bytes() == before


@pytest.mark.parametrize("option", ["--trace", "-o"])
def test_files_of_others_are_not_written_over(bundle: Path, tmp_path: Path, option: str) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear neighbour")
    words = ("run", bundle, "-p", "a") if option == "--trace" else ("bench", bundle)
    message, hint = error_of(hexgraft(*words, option, letter))
    assert message == f"{letter} exists already and is no {'trace' if option == '--trace' else 'profile'}"
    assert hint == f"choose another name for {option}, or remove it"
    assert letter.read_text() == "Dear neighbour"
