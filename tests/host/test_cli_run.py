"""`hexgraft run` from outside: words, shapes, exit codes, and that trees change nothing."""

from __future__ import annotations

import json
from pathlib import Path
from shlex import quote
from typing import Any

import pytest
from command import error_of, hexgraft
from pair import write_pair
from safetensors.numpy import load_file

from hexgraft.host.bundle import open_bundle
from hexgraft.host.text import TextCodec

PROMPT = "the fox in the garden"


def run_json(bundle: Path, *arguments: str | Path, input: str | None = None) -> dict[str, Any]:
    result = hexgraft("run", bundle, *arguments, "--json", input=input)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_shape_of_json(bundle: Path) -> None:
    found = run_json(bundle, "-p", PROMPT, "--max-tokens", "12")
    assert set(found) == {"text", "tokens", "finish", "bundle", "drafter", "verifier", "stats"}
    assert found["bundle"] == open_bundle(bundle).digest
    assert (found["drafter"], found["verifier"]) == ("levels", "match")
    assert len(found["tokens"]) == found["stats"]["tokens"] == 12
    assert found["finish"] == "max-tokens"
    assert found["text"] == TextCodec(open_bundle(bundle)).decode(found["tokens"])


def test_streamed_text_is_that_of_json(bundle: Path) -> None:
    found = run_json(bundle, "-p", PROMPT, "--max-tokens", "50")
    result = hexgraft("run", bundle, "-p", PROMPT, "--max-tokens", "50")
    assert result.exit_code == 0
    assert result.stdout == found["text"] + "\n"
    assert result.stderr.startswith("[max-tokens] 50 tokens in ")


def test_prompts_come_from_three_places(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT)
    texts = {
        run_json(bundle, "-p", PROMPT, "--max-tokens", "20")["text"],
        run_json(bundle, "-f", tmp_path / "prompt.txt", "--max-tokens", "20")["text"],
        run_json(bundle, "-", "--max-tokens", "20", input=PROMPT)["text"],
    }
    assert len(texts) == 1


SAMPLED = ("--temperature", "0.9", "--seed", "5", "--top-k", "50", "--repetition-penalty", "1.2")


@pytest.mark.parametrize("sampling", [(), SAMPLED])
@pytest.mark.parametrize(
    "draft",
    [
        ("lookup",),
        ("chain",),
        ("best-first", "--draft-option", "top_k=4", "--draft-option", "early_stop=false"),
        ("levels", "--draft-option", "depth=3"),
        ("static", "--draft-option", "table=0.7,0.2,0.1"),
        ("sampled",),
        ("lookup+levels", "--draft-option", "enough=2"),
    ],
    ids=lambda draft: draft[0],
)
def test_trees_emit_what_plain_decoding_emits(
    bundle: Path, draft: tuple[str, ...], sampling: tuple[str, ...]
) -> None:
    common = ("-p", PROMPT, "--max-tokens", "80", "--widths", "16", *sampling)
    plain = run_json(bundle, *common, "--plain")
    trees = run_json(bundle, *common, "--draft", *draft)
    assert plain["drafter"] == "none"
    assert plain["stats"]["rounds"] == 80
    assert trees["tokens"] == plain["tokens"]
    assert trees["text"] == plain["text"]


@pytest.mark.parametrize("plain", [("--plain",), ("--draft", "none")])
@pytest.mark.parametrize("option", ["--tree-size", "--tree-depth"])
def test_plain_decoding_takes_no_trees(bundle: Path, plain: tuple[str, ...], option: str) -> None:
    done = hexgraft("run", bundle, "-p", PROMPT, *plain, option, "4")
    assert done.exit_code == 2
    assert error_of(done) == (f"plain decoding has no use for {option} 4", "leave it out")


def test_draft_options_reach_the_drafter(bundle: Path) -> None:
    common = ("-p", PROMPT, "--max-tokens", "40", "--draft", "levels")
    deep = run_json(bundle, *common, "--draft-option", "depth=5")["stats"]
    flat = run_json(bundle, *common, "--draft-option", "depth=1")["stats"]
    assert len(flat["acceptance_by_depth"]) == 1 < len(deep["acceptance_by_depth"])


@pytest.mark.parametrize("verifier", ["specinfer", "sequoia"])
def test_residual_verifiers_choose_the_drafter_they_need(bundle: Path, verifier: str) -> None:
    found = run_json(bundle, "-p", PROMPT, "--max-tokens", "30", "--temperature", "1", "--verifier", verifier)
    assert (found["drafter"], found["verifier"]) == ("sampled", verifier)
    assert found["stats"]["tokens"] == 30


def test_residual_verifiers_need_a_draft_model(tmp_path: Path) -> None:
    alone = write_pair(tmp_path, noise=None)
    for draft in ((), ("--draft", "lookup"), ("--draft", "sampled")):
        done = hexgraft("run", alone, "-p", PROMPT, "--verifier", "specinfer", *draft)
        assert done.exit_code == 2
        message, hint = error_of(done)
        assert message == f"--verifier specinfer needs draws from a draft model, {alone} has none"
        assert hint.startswith("leave it out")
    plain = hexgraft("run", alone, "-p", PROMPT, "--verifier", "specinfer", "--plain", "--max-tokens", "4")
    assert plain.exit_code == 0


@pytest.mark.parametrize(
    ("drafter", "option"),
    [
        ("lookup", "min_match=0"),
        ("lookup", "occurrences=0"),
        ("lookup+levels", "min_prob=2"),
        ("levels", "depth=0"),
        ("best-first", "p_base=2"),
        ("static", "table=2"),
    ],
)
def test_draft_options_out_of_range_have_a_hint(bundle: Path, drafter: str, option: str) -> None:
    done = hexgraft("run", bundle, "-p", PROMPT, "--draft", drafter, "--draft-option", option)
    assert done.exit_code == 2
    assert error_of(done)[1]


@pytest.mark.parametrize("command", [("run", "-p", PROMPT), ("chat",)], ids=["run", "chat"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--draft-option", "max-fanout=3"), "the drafter levels has no option 'max_fanout'"),
        (("--draft-option", "top_k=0"), "levels: top_k 0 is not positive"),
        (("--draft", "lookup", "--corpus", "missing.txt"), "cannot read missing.txt"),
        (("--max-tokens", "0"), "--max-tokens 0 is not positive"),
        (("--tree-size", "0"), "--tree-size 0 is not positive"),
    ],
)
def test_what_was_typed_is_checked_before_a_model_is_loaded(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], words: list[str], message: str
) -> None:
    monkeypatch.setattr("hexgraft.host.cli.options.open_role", lambda *_: pytest.fail("loaded"))
    done = hexgraft(*command[:1], bundle, *command[1:], *words)
    assert done.exit_code == 2
    assert error_of(done)[0].startswith(message)


def test_a_corpus_is_drafted_from(bundle: Path, tmp_path: Path) -> None:
    """The text of a run as the corpus of the next: nearly everything is accepted, and nothing changes."""
    arguments = ("-p", PROMPT, "--max-tokens", "100", "--draft", "lookup", "--temperature", "0.4")
    first = run_json(bundle, *arguments)
    (tmp_path / "corpus.txt").write_text("unrelated. " + first["text"], encoding="utf-8")
    second = run_json(bundle, *arguments, "--corpus", tmp_path / "corpus.txt")
    assert second["tokens"] == first["tokens"]
    assert second["stats"]["rounds"] < first["stats"]["rounds"]


def test_log_probabilities(bundle: Path) -> None:
    found = run_json(bundle, "-p", PROMPT, "--max-tokens", "9", "--logprobs", "3")
    assert [entry["token"] for entry in found["logprobs"]] == found["tokens"]
    for entry in found["logprobs"]:
        assert set(entry) == {"token", "text", "logprob", "top"}
        assert len(entry["top"]) == 3
        assert entry["top"][0] == {key: entry[key] for key in ("token", "text", "logprob")}
        assert all(a["logprob"] >= b["logprob"] for a, b in zip(entry["top"], entry["top"][1:], strict=False))
        assert entry["logprob"] <= 0
    alone = run_json(bundle, "-p", PROMPT, "--max-tokens", "9", "--logprobs", "0")
    assert [entry["top"] for entry in alone["logprobs"]] == [[]] * 9


def test_a_forced_beginning_is_part_of_the_answer(bundle: Path) -> None:
    """The answer goes on as if the model had written the beginning itself."""
    prefix = "The dog, and"
    found = run_json(bundle, "-p", PROMPT, "--prefix", prefix, "--max-tokens", "30")
    codec = TextCodec(open_bundle(bundle))
    assert found["text"] == prefix + codec.decode(found["tokens"])
    rendered = f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n{prefix}"
    raw = run_json(bundle, "-p", rendered, "--raw", "--max-tokens", "30")
    assert raw["tokens"] == found["tokens"]
    streamed = hexgraft("run", bundle, "-p", PROMPT, "--prefix", prefix, "--max-tokens", "30")
    assert streamed.stdout == found["text"] + "\n"


def test_stop_strings_end_text_tokens_and_figures(bundle: Path) -> None:
    free = run_json(bundle, "-p", PROMPT, "--max-tokens", "60", "--logprobs", "0")
    stop = next(free["text"][i : i + 2] for i in range(8, 60) if free["text"][i : i + 2].isascii())
    arguments = ("-p", PROMPT, "--max-tokens", "60", "--stop", stop, "--stop", "no such text")
    found = run_json(bundle, *arguments, "--logprobs", "0")
    assert found["finish"] == "stop-string"
    assert found["text"] == free["text"][: free["text"].index(stop)]
    count = len(found["tokens"])
    assert found["tokens"] == free["tokens"][:count]
    assert len(found["logprobs"]) == found["stats"]["tokens"] == count < 60
    streamed = hexgraft("run", bundle, *arguments)
    assert streamed.stdout == found["text"] + "\n"
    assert streamed.stderr.startswith(f"[stop-string] {count} tokens in ")


def test_a_drawn_tree_goes_to_stderr(bundle: Path) -> None:
    result = hexgraft("run", bundle, "-p", PROMPT, "--max-tokens", "8", "--show-tree")
    assert "at position" in result.stderr
    assert "the target's own token" in result.stderr
    assert "at position" not in result.stdout


def test_a_baked_prefix_changes_nothing_but_the_prefill(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("The birds sing in the morning.\n")
    prefix = tmp_path / "prefix.safetensors"
    baked = hexgraft("bake", bundle, "--system-file", tmp_path / "system.txt", "-o", prefix, "--json")
    assert baked.exit_code == 0, baked.stderr
    said = json.loads(baked.stdout)
    assert set(said) == {"prefix", "bundle", "tokens", "bytes"}
    assert said["bytes"] == prefix.stat().st_size
    with_it = run_json(bundle, "-p", PROMPT, "--baked", prefix, "--max-tokens", "40")
    without = run_json(
        bundle, "-p", PROMPT, "--system", "The birds sing in the morning.", "--max-tokens", "40"
    )
    assert with_it["tokens"] == without["tokens"]
    assert with_it["stats"]["reused_tokens"] == said["tokens"]
    assert without["stats"]["reused_tokens"] == 0
    for arguments, message in (
        (("--system", "Another."), "the prompt does not begin with the baked prefix"),
        (("--raw",), "the prompt does not begin with the baked prefix"),
        (("--widths", "8"), f"{prefix} was baked with other pass widths: any, not 8"),
        (("--threads", "3"), f"{prefix} was baked with --threads 0, not 3"),
    ):
        failed = hexgraft("run", bundle, "-p", PROMPT, "--baked", prefix, *arguments)
        assert error_of(failed)[0].startswith(message)
        assert failed.exit_code == 1
    message, hint = error_of(hexgraft("bake", bundle, "--system-file", tmp_path / "system.txt", "-o", prefix))
    assert message == f"{prefix} exists already"
    assert hint.endswith(f"rm {quote(str(prefix))}")
    nowhere = tmp_path / "my prefixes" / "prefix"
    message, hint = error_of(
        hexgraft("bake", "no bundle", "--system-file", tmp_path / "system.txt", "-o", nowhere)
    )
    assert message == f"the folder {nowhere.parent} does not exist", "said before anything is computed"
    assert hint == f"mkdir -p {quote(str(nowhere.parent))}"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["prefix.safetensors", "system.txt"]


def test_a_system_message_is_a_text_or_a_file_everywhere(bundle: Path, tmp_path: Path) -> None:
    text, file, empty = "Be brief.", tmp_path / "system.txt", tmp_path / "empty.txt"
    file.write_text(text + "\r\n\n")
    empty.write_text("\n")
    for command in (
        ("run", bundle, "-p", PROMPT, "--max-tokens", "8"),
        ("chat", bundle, "--max-tokens", "8"),
    ):
        results = [
            hexgraft(*command, *system, input="the fox\n")
            for system in (("--system", text), ("--system-file", file))
        ]
        assert results[0].exit_code == 0, results[0].stderr
        assert results[0].stdout == results[1].stdout
    for name, system in (("text", ("--system", text)), ("file", ("--system-file", file))):
        assert hexgraft("bake", bundle, *system, "-o", tmp_path / name).exit_code == 0
    tokens = [load_file(tmp_path / name)["tokens"].tolist() for name in ("text", "file")]
    assert tokens[0] == tokens[1]
    for system, words in (
        (("--system", text, "--system-file", file), "--system and --system-file contradict each other"),
        (("--system-file", empty), f"the system message in {empty} is empty"),
        (("--system-file", tmp_path / "none"), f"cannot read {tmp_path / 'none'}"),
        ((), "there is no system message to bake"),
    ):
        assert error_of(hexgraft("bake", bundle, *system, "-o", tmp_path / "no"))[0].startswith(words)


def test_narrow_widths_take_a_tree_that_fits(bundle: Path) -> None:
    """The default tree is 16 nodes; where the widest graph is narrower, the tree is."""
    narrow = run_json(bundle, "-p", PROMPT, "--max-tokens", "12", "--widths", "3,5,7")
    assert narrow["tokens"] == run_json(bundle, "-p", PROMPT, "--max-tokens", "12", "--plain")["tokens"]
    assert narrow["stats"]["nodes"] > narrow["stats"]["rounds"]
