"""Bad input through the command line: one sentence, a hint, an exit code, and nothing half-written."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

import pytest
from command import error_of, hexgraft
from tiny import write_tiny_gguf, write_tiny_hf

from hexgraft.host.bundle import open_bundle


@pytest.fixture
def bundle(pair: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair / "bundle", tmp_path / "copy"))


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    """Where an export that fails should leave nothing."""
    (tmp_path / "out").mkdir()
    yield tmp_path / "out" / "bundle"
    assert list((tmp_path / "out").iterdir()) == []


EXPORT = ("--context", "64", "--widths", "1,8")

# ------------------------------------------------------------------ checkpoints


def test_missing_checkpoint(output: Path) -> None:
    result = hexgraft("export", "nowhere.gguf", "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert message == "no checkpoint at nowhere.gguf"
    assert "`hexgraft fetch`" in hint
    assert result.exit_code == 1


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated_gguf(output: Path, tmp_path: Path, share: float) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    os.truncate(file, int(file.stat().st_size * share))
    result = hexgraft("export", file, "-o", output, *EXPORT)
    message, _ = error_of(result)
    assert "tiny.gguf" in message
    assert result.exit_code == 1


def test_unsupported_architecture(output: Path, tmp_path: Path) -> None:
    path = write_tiny_hf(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"model_type": "mamba"}))
    result = hexgraft("export", path, "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert "mamba" in message
    assert "llama" in message + hint
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("number", "said", "hinted"),
    [
        (24, "tensor token_embd.weight of {} has type I8, which is not supported", "Q8_0"),
        (200, "tensor token_embd.weight of {} is of the unknown type 200", "pip install -U gguf"),
    ],
)
def test_unsupported_quantisation(output: Path, tmp_path: Path, number: int, said: str, hinted: str) -> None:
    """A GGUF whose embedding says it is of another type."""
    file = write_tiny_gguf(tmp_path / "tiny.gguf", quant="F32")
    raw = bytearray(file.read_bytes())
    name = b"token_embd.weight"
    place = raw.index(name) + len(name) + 4 + 2 * 8
    assert int.from_bytes(raw[place : place + 4], "little") == 0
    raw[place : place + 4] = number.to_bytes(4, "little")
    file.write_bytes(raw)
    result = hexgraft("export", file, "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert message == said.format(file)
    assert hinted in hint
    assert result.exit_code == 1


def test_draft_with_another_vocabulary(output: Path, pair: Path, tmp_path: Path) -> None:
    draft = write_tiny_hf(tmp_path / "draft", vocab=280)
    result = hexgraft("export", pair / "target-checkpoint", "--draft", draft, "-o", output, *EXPORT)
    message, hint = error_of(result)
    assert message.startswith("the draft has another vocabulary: it lacks 40 of the target's 320 tokens, ")
    assert hint == "take a draft of the same model family and tokenizer"
    assert result.exit_code == 1


def test_context_beyond_the_trained_one(output: Path, pair: Path) -> None:
    result = hexgraft("export", pair / "target-checkpoint", "-o", output, "--context", "513")
    message, hint = error_of(result)
    assert message.startswith("--context 513 is more than the 512 positions ")
    assert hint == "use --context 512 or less"
    assert result.exit_code == 1


@pytest.mark.parametrize("widths", ["0", "-1,8", "1,99999", "a", "", "1,,8", "1e3"])
def test_absurd_widths(output: Path, pair: Path, widths: str) -> None:
    result = hexgraft("export", pair / "target-checkpoint", "-o", output, "--widths", widths)
    message, hint = error_of(result)
    assert message == f"--widths {widths!r} is not a list of numbers from 1 to 1024"
    assert hint == "example: --widths 1,8,16,32,128"
    assert result.exit_code == 2


# ------------------------------------------------------------------ output folders


def test_output_that_exists(bundle: Path, pair: Path) -> None:
    before = open_bundle(bundle).digest
    result = hexgraft("export", pair / "target-checkpoint", "-o", bundle, *EXPORT)
    message, hint = error_of(result)
    assert message == f"{bundle} exists already"
    assert hint == f"choose another name, or remove it: rm -r {quote(str(bundle))}"
    assert result.exit_code == 1
    assert open_bundle(bundle).digest == before


def test_full_disk(output: Path, pair: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        result = hexgraft("export", pair / "target-checkpoint", "-o", output, *EXPORT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    message, hint = error_of(result)
    assert message == f"no space left for the bundle in {output.parent}"
    assert hint.startswith(f"see `df -h {quote(str(output.parent))}`")
    assert result.exit_code == 1


def test_folder_that_cannot_be_written(pair: Path) -> None:
    result = hexgraft("export", pair / "target-checkpoint", "-o", "/proc/bundle", *EXPORT)
    message, hint = error_of(result)
    assert message.startswith("cannot write the bundle in /proc: ")
    assert "ls -ld /proc" in hint
    assert result.exit_code == 1


# ------------------------------------------------------------------ bundles


@pytest.mark.parametrize("command", [("inspect",), ("run", "-p", "hi"), ("chat",)])
def test_changed_byte(bundle: Path, command: tuple[str, ...]) -> None:
    file = bundle / "target" / "model.weights"
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    result = hexgraft(command[0], bundle, *command[1:], input="hi\n")
    message, hint = error_of(result)
    assert message == f"{file} is not the file that was exported: sha256 differs"
    assert hint == "make it again with `hexgraft export`"
    assert result.exit_code == 1


def test_no_verify_reads_no_file_it_does_not_need(bundle: Path) -> None:
    """What it skips is the content; a size that differs is found at once."""
    file = bundle / "draft" / "model.weights"
    raw = file.read_bytes()
    file.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    arguments = ("run", bundle, "-p", "hi", "--plain", "--max-tokens", "2")
    assert hexgraft(*arguments).exit_code == 1
    assert hexgraft(*arguments, "--no-verify").exit_code == 0
    file.write_bytes(raw[1:])
    message, _ = error_of(hexgraft(*arguments, "--no-verify"))
    assert f"has {len(raw) - 1} bytes" in message


def test_unknown_version(bundle: Path) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    (bundle / "bundle.json").write_text(json.dumps(manifest | {"format": 99}))
    result = hexgraft("run", bundle, "-p", "hi")
    message, hint = error_of(result)
    assert "has bundle format 99, this hexgraft reads format " in message
    assert hint == "export again with this version, or use the version that made the bundle"
    assert result.exit_code == 1


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_a_tokenizer_file_that_is_no_text(bundle: Path, name: str) -> None:
    file = bundle / name
    file.write_bytes(b"\xff" * file.stat().st_size)
    result = hexgraft("run", bundle, "-p", "hi", "--no-verify")
    message, hint = error_of(result)
    assert message == f"{file} is not UTF-8 text: invalid start byte"
    assert hint == "make it again with `hexgraft export`"
    assert result.exit_code == 1


def test_path_that_leaves_the_bundle(bundle: Path) -> None:
    manifest = json.loads((bundle / "bundle.json").read_text())
    manifest["files"]["../../etc/passwd"] = {"size": 1, "sha256": "0" * 64}
    (bundle / "bundle.json").write_text(json.dumps(manifest))
    message, _ = error_of(hexgraft("inspect", bundle))
    assert message == f"{bundle / 'bundle.json'} names '../../etc/passwd', which is no file in a bundle"


def test_link_in_a_bundle(bundle: Path, tmp_path: Path) -> None:
    (bundle / "tokenizer.json").rename(tmp_path / "elsewhere")
    (bundle / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    message, _ = error_of(hexgraft("inspect", bundle))
    assert message == f"{bundle / 'tokenizer.json'} is a link; a bundle holds plain files"


def test_checkpoint_where_a_bundle_is_wanted(tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf")
    message, hint = error_of(hexgraft("run", file, "-p", "hi"))
    assert message == f"no bundle at {file}"
    assert "`hexgraft export tiny.gguf -o BUNDLE`" in hint
    other = tmp_path / "letter.txt"
    other.write_text("Dear neighbour")
    _, hint = error_of(hexgraft("run", other, "-p", "hi"))
    assert hint == "give the folder that `hexgraft export` wrote"


def test_bundle_where_a_checkpoint_is_wanted(output: Path, pair: Path) -> None:
    message, hint = error_of(hexgraft("export", pair / "bundle", "-o", output))
    assert message == f"{pair / 'bundle'} is a bundle, not a checkpoint"
    assert hint == f"give what it was made of, see `hexgraft inspect {pair / 'bundle'}`"


def test_an_older_trace_outlives_a_prompt_that_is_too_long(pair: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    words = ("run", pair / "bundle", "--trace", trace, "--max-tokens", "3", "-p")
    assert hexgraft(*words, "the fox").exit_code == 0
    before = trace.read_bytes()
    message, _ = error_of(hexgraft(*words, "fox " * 300))
    assert message == "the prompt has 320 tokens, the context holds 256"
    assert trace.read_bytes() == before


def test_bundle_where_a_trace_is_wanted(pair: Path) -> None:
    message, hint = error_of(hexgraft("replay", pair / "bundle", "letter.jsonl"))
    assert message == f"cannot read the trace {pair / 'bundle'}: Is a directory"
    assert hint.endswith("a bundle comes after it")


@pytest.mark.parametrize("option", ["--trace", "-o"])
def test_files_of_others_are_not_written_over(pair: Path, tmp_path: Path, option: str) -> None:
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear neighbour")
    words = ("run", pair / "bundle", "-p", "a") if option == "--trace" else ("bench", pair / "bundle")
    message, hint = error_of(hexgraft(*words, option, letter))
    assert message == f"{letter} exists already and is no {'trace' if option == '--trace' else 'profile'}"
    assert hint == f"choose another name for {option}, or remove it"
    assert letter.read_text() == "Dear neighbour"


# ------------------------------------------------------------------ prompts and options


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
        (("-p", "a", "--temperature", "-1"), "--temperature -1.0 is negative", 2),
        (("-p", "a", "--top-p", "nan"), "sampling options must be finite numbers", 2),
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
        (("-p", "a", "--baked", "x"), "no baked prefix at x", 1),
    ],
)
def test_prompts_and_options(pair: Path, arguments: tuple[str, ...], message: str, code: int) -> None:
    result = hexgraft("run", pair / "bundle", *arguments)
    said, hint = error_of(result)
    assert said == message
    assert hint
    assert result.exit_code == code


def test_the_nearest_name_is_offered(pair: Path) -> None:
    result = hexgraft(
        "run", pair / "bundle", "-p", "a", "--draft", "best-first", "--draft-option", "max-fanout=3"
    )
    assert error_of(result)[1] == "did you mean --draft-option max_fan_out=...?"


def test_a_verifier_that_would_be_biased(pair: Path) -> None:
    result = hexgraft("run", pair / "bundle", "-p", "a", "--verifier", "specinfer", "--draft", "levels")
    message, _ = error_of(result)
    assert message.startswith("the specinfer verifier would be biased")
    assert result.exit_code == 2


def test_a_prompt_that_is_no_text(pair: Path) -> None:
    result = hexgraft("run", pair / "bundle", "-", input=b"abc\xff")
    message, hint = error_of(result)
    assert message == "the prompt on standard input is not UTF-8 text: invalid start byte at byte 3"
    assert "iconv" in hint
    assert result.exit_code == 2


@pytest.mark.parametrize("option", ["--system", "--prefix", "--stop"])
def test_an_argument_that_is_no_text(pair: Path, option: str) -> None:
    """What a shell passes on as other bytes than UTF-8 arrives with lone surrogates."""
    result = hexgraft("run", pair / "bundle", "-p", "a", option, "b\udcffc")
    message, hint = error_of(result)
    assert message == "a text is not UTF-8: it holds '\\udcff'"
    assert hint
    assert result.exit_code == 2


def test_penalties_beyond_any_use(pair: Path) -> None:
    """They would overflow, and what follows would look like a fault of the model."""
    for option in ("--presence-penalty", "--frequency-penalty", "--repetition-penalty"):
        result = hexgraft("run", pair / "bundle", "-p", "a", option, "1e308")
        assert error_of(result)[0].startswith(f"{option} 1e+308 is not in ")
        assert result.exit_code == 2


def test_a_prompt_larger_than_any(pair: Path) -> None:
    result = hexgraft("run", pair / "bundle", "-", input=b"a" * ((16 << 20) + 1))
    message, _ = error_of(result)
    assert message == "the prompt on standard input has more than 16 MB"
    assert result.exit_code == 2


def test_unknown_options_and_choices(pair: Path) -> None:
    for arguments, said in (
        (["--bogus"], "hexgraft run has no option --bogus"),
        (["--draft", "bogus"], "--draft 'bogus' is none of its choices"),
        (["--threads", "-1"], "--threads: -1 is not in the range 0<=x<=256"),
        (["--max-tokens", "x"], "--max-tokens: 'x' is not a valid integer"),
    ):
        result = hexgraft("run", pair / "bundle", "-p", "a", *arguments)
        assert result.exit_code == 2
        assert error_of(result)[0] == said


def test_a_file_where_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = hexgraft("export", tmp_path / "file" / "model", "-o", tmp_path / "out")
    message, hint = error_of(done)
    assert "model" in message
    assert hint
