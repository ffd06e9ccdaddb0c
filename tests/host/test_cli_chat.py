"""`hexgraft chat` from outside: turns, commands and what they are kept in."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import pytest
from command import error_of, hexgraft

from hexgraft.host.bundle import open_bundle
from hexgraft.host.text import TextCodec


def test_each_line_is_a_turn_and_only_answers_are_printed(bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    script = f"the fox\n\nthe dog\n/save {saved}\n"
    result = hexgraft("chat", bundle, "--max-tokens", "9", "--system", "Be kind.", input=script)
    assert result.exit_code == 0
    assert result.stderr == ""
    talk = json.loads(saved.read_text(encoding="utf-8"))
    assert set(talk) == {"model", "bundle", "messages"}
    assert talk["bundle"] == open_bundle(bundle).digest
    assert [m["role"] for m in talk["messages"]] == ["system", "user", "assistant", "user", "assistant"]
    answers = [m["content"] for m in talk["messages"] if m["role"] == "assistant"]
    assert result.stdout == "\n".join(answer + "\n" for answer in answers)
    single = hexgraft("run", bundle, "-p", "the fox", "--max-tokens", "9", "--system", "Be kind.")
    assert single.stdout == answers[0] + "\n"


def test_json_is_an_object_a_line(bundle: Path, tmp_path: Path) -> None:
    """As `run --json` gives it, in the same order of turns as the text."""
    saved = tmp_path / "talk.json"
    script = f"the fox\n/stats\nthe dog\n/save {saved}\n"
    result = hexgraft("chat", bundle, "--max-tokens", "9", "--json", input=script)
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    talk = json.loads(saved.read_text(encoding="utf-8"))["messages"]
    assert [each["text"] for each in found] == [m["content"] for m in talk if m["role"] == "assistant"]
    alone = json.loads(hexgraft("run", bundle, "-p", "the fox", "--max-tokens", "9", "--json").stdout)
    assert [{*each} for each in found] == [{*alone}] * 2
    assert {**found[0], "stats": {}} == {**alone, "stats": {}}
    assert [each["stats"]["tokens"] for each in found] == [9, 9]
    assert found[1]["stats"]["reused_tokens"] > 0


def test_trees_and_plain_decoding_hold_the_same_conversation(bundle: Path) -> None:
    script = "the fox\nthe dog\nthe birds\n"
    common = ("chat", bundle, "--max-tokens", "20", "--widths", "16")
    texts = {
        hexgraft(*common, *draft, input=script).stdout
        for draft in (
            ("--plain",),
            ("--draft", "levels"),
            ("--draft", "lookup"),
            ("--draft", "lookup+levels"),
        )
    }
    assert len(texts) == 1


def test_the_cache_is_reused_across_turns_and_undo(bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    script = f"the fox\nthe dog\n/stats\n/save {saved}\n/undo\nthe dog\n/stats\n/save {saved}.again\n"
    result = hexgraft("chat", bundle, "--max-tokens", "9", input=script + "/reset\nthe fox\n/stats\n")
    assert result.exit_code == 0
    counts = [int(n) for n in re.findall(r"(\d+) of them from the cache", result.stderr)]
    prompts = [int(n) for n in re.findall(r"prompt (\d+) tokens", result.stderr)]
    assert len(counts) == len(prompts) == 3
    first = TextCodec(open_bundle(bundle)).encode_chat([{"role": "user", "content": "the fox"}])
    assert counts[0] == len(first) + 9 - 1, "all but the last token of the first answer"
    assert counts[1:] == [prompt - 1 for prompt in prompts[1:]], "the whole prompt was there already"
    assert saved.read_text() == Path(f"{saved}.again").read_text()


def test_lines_continue_after_a_backslash(bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    script = f"the fox\\\nand the dog\n//no command\n/save {saved}\nlast \\"
    result = hexgraft("chat", bundle, "--max-tokens", "3", input=script)
    assert result.exit_code == 0, result.stderr
    questions = [m["content"] for m in json.loads(saved.read_text())["messages"] if m["role"] == "user"]
    assert questions == ["the fox\nand the dog", "/no command"]


def test_stop_strings_end_answers(bundle: Path) -> None:
    free = hexgraft("chat", bundle, "--max-tokens", "40", input="the fox\n").stdout
    stop = next(free[i : i + 2] for i in range(6, 40) if free[i : i + 2].isascii())
    result = hexgraft("chat", bundle, "--max-tokens", "40", "--stop", stop, input="the fox\n/stats\n")
    assert result.stdout == free[: free.index(stop)] + "\n"
    assert result.stderr.startswith("[stop-string] ")


def test_a_baked_prefix_is_kept_from_the_first_turn(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "system.txt").write_text("The fox answers.")
    prefix = tmp_path / "prefix.safetensors"
    baked = json.loads(
        hexgraft("bake", bundle, "--system-file", tmp_path / "system.txt", "-o", prefix, "--json").stdout
    )
    script = "the dog\n/stats\n"
    result = hexgraft("chat", bundle, "--baked", prefix, "--max-tokens", "9", input=script)
    assert f" {baked['tokens']} of them from the cache" in result.stderr
    plain = hexgraft("chat", bundle, "--system", "The fox answers.", "--max-tokens", "9", input=script)
    assert result.stdout == plain.stdout


def test_a_full_context_is_said_with_what_to_do(bundle: Path) -> None:
    script = "the fox " * 12 + "\n"
    result = hexgraft("chat", bundle, "--max-tokens", "40", input=script * 6)
    assert result.exit_code == 1
    message, hint = result.stderr.strip().splitlines()[-3], result.stderr.strip().splitlines()[-1]
    assert message.startswith("error: with this message the conversation has ")
    assert message.endswith(" tokens, the context holds 256; the message was taken back")
    assert hint.startswith("hint: /reset starts over, /undo takes a turn back; `chat --drop-oldest`")


def test_the_oldest_turns_are_dropped_when_asked(bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    script = "the fox " * 12 + "\n"
    result = hexgraft(
        "chat",
        bundle,
        "--drop-oldest",
        "--max-tokens",
        "30",
        "--system",
        "Be kind.",
        input=script * 6 + f"/save {saved}\n",
    )
    assert result.exit_code == 0, result.stderr
    assert "the context is full: forgot the 1 oldest of " in result.stderr
    talk = json.loads(saved.read_text())["messages"]
    assert talk[0]["role"] == "system"
    assert 3 <= len(talk) < 13


def test_a_message_that_is_refused_costs_no_turns(
    bundle: Path, tmp_path: Path, typed: Callable[..., None]
) -> None:
    saved = [tmp_path / name for name in ("before.json", "after.json")]
    typed("the fox", "the dog", f"/save {saved[0]}", "the birds " * 200, f"/save {saved[1]}")
    result = hexgraft("chat", bundle, "--drop-oldest", "--max-tokens", "9")
    assert result.exit_code == 0
    assert "the message was taken back\n\nhint: shorten the message" in result.stderr
    assert "forgot" not in result.stderr
    assert len(json.loads(saved[1].read_text())["messages"]) == 4
    assert saved[0].read_text() == saved[1].read_text()


def test_an_answer_cut_by_the_context_is_said(bundle: Path) -> None:
    result = hexgraft("chat", bundle, "--max-tokens", "1000", input="the fox " * 30 + "\n")
    assert "the context of 256 tokens is full, the answer ends here; /reset starts over" in result.stderr


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("/rest", "there is no command /rest", "type /reset"),
        ("/xyzzy", "there is no command /xyzzy", "type /help"),
        ("/save", "/save needs a file name", "type /save conversation.json"),
    ],
)
def test_bad_commands(bundle: Path, line: str, message: str, hint: str) -> None:
    result = hexgraft("chat", bundle, input=line + "\n")
    assert error_of(result) == (message, hint)
    assert result.exit_code == 2


def test_save_does_not_overwrite_what_it_did_not_write(bundle: Path, tmp_path: Path) -> None:
    mine, saved = tmp_path / "mine", tmp_path / "saved.json"
    mine.write_text("mine")
    result = hexgraft("chat", bundle, input=f"/save {saved}\n/save {saved}\n/save {mine}\n")
    message, hint = error_of(result)
    assert message == f"{mine} exists already"
    assert hint.endswith(f"rm {quote(str(mine))}")
    assert mine.read_text() == "mine"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine", "saved.json"]


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("~nobody-at-all/x.json", "there is no home folder for {}", "give the path without ~"),
        ("/dev/null/x.json", "the folder /dev/null does not exist", "mkdir -p /dev/null"),
        ("x" * 300, "cannot write {}: File name too long", "choose a shorter name"),
        ("x" * 250, "cannot write {}: File name too long", "choose a shorter name"),
        ("x\0y", "/save needs a file name", "type /save conversation.json"),
    ],
)
def test_a_conversation_goes_on_where_it_cannot_be_saved(
    bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Callable[..., None],
    name: str,
    message: str,
    hint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    typed(f"/save {name}", "/save talk.json")
    result = hexgraft("chat", bundle)
    assert result.exit_code == 0, result.output
    assert f"error: {message.format(name)}\n\nhint: {hint}\n" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]


def test_a_folder_that_may_not_be_read_ends_no_conversation(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Callable[..., None]
) -> None:
    closed, is_dir = tmp_path / "closed", Path.is_dir

    def refuse(path: Path) -> bool:
        if path.parent == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_dir(path)

    monkeypatch.setattr(Path, "is_dir", refuse)
    typed(f"/save {closed}/in/talk.json", "/stats")
    result = hexgraft("chat", bundle)
    assert result.exit_code == 0, result.output
    assert f"error: cannot write {closed}/in/talk.json: Permission denied\n\nhint: " in result.stderr
    assert "no answer yet" in result.stderr


def test_help_and_quit(bundle: Path) -> None:
    result = hexgraft("chat", bundle, input="/help\n/stats\n/quit\nnever read\n")
    assert result.exit_code == 0
    assert result.stdout == ""
    for name in ("/reset", "/undo", "/save FILE", "/stats", "/quit"):
        assert name in result.stderr
    assert "no answer yet" in result.stderr


def test_a_bundle_without_template_is_sent_to_run(tmp_path: Path, bundle: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    manifest = json.loads((copy / "bundle.json").read_text())
    manifest["tokenizer"]["chat_template"] = None
    (copy / "bundle.json").write_text(json.dumps(manifest))
    result = hexgraft("chat", copy, input="hi\n")
    message, hint = error_of(result)
    assert message == f"{copy} has no chat template"
    assert hint.startswith(f"hexgraft run {copy} --raw")
    assert result.exit_code == 2
