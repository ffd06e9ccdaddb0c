"""Names of nothing that there is, wherever they are typed: errors of usage, with exit code 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command import error_of, hexgraft
from tiny import write_tiny_gguf

from hexgraft.models.errors import USAGE

RUN = ("run", "BUNDLE", "-p", "a", "--max-tokens", "2")


@pytest.mark.parametrize(
    "words",
    [
        *(
            (name, "nosuch", *rest)
            for name, *rest in (
                ("run", "-p", "a"),
                ("chat",),
                ("inspect",),
                ("bench",),
                ("lab",),
                ("tune", "--per-category", "1"),
                ("bake", "--system", "a", "-o", "new"),
                ("export", "-o", "new"),
                ("import", "-o", "new"),
                ("genie", "-o", "new"),
                ("push",),
                ("models",),
                ("tree",),
                ("replay", "BUNDLE"),
                ("compare", "TRACE"),
            )
        ),
        ("replay", "TRACE", "nosuch"),
        ("models", "CHECKPOINT", "--draft", "nosuch"),
        ("export", "CHECKPOINT", "-o", "new", "--draft", "nosuch"),
        ("run", "BUNDLE", "-f", "nosuch"),
        (*RUN, "--system-file", "nosuch"),
        (*RUN, "--baked", "nosuch"),
        (*RUN, "--draft", "lookup", "--corpus", "nosuch"),
        (*RUN, "--trace", "nosuch/file"),
        ("tree", "TRACE", "--html", "nosuch/file"),
        ("export", "CHECKPOINT", "-o", "nosuch/folder"),
        ("bake", "BUNDLE", "--system", "a", "-o", "nosuch/file"),
        ("lab", "BUNDLE", "--plot", "nosuch/file.png"),
        ("lab", "BUNDLE", "--prompts", "nosuch"),
        ("bench", "BUNDLE", "-o", "nosuch/file"),
        ("tune", "BUNDLE", "--prompts", "PROMPTS", "--profile", "nosuch"),
        ("tune", "BUNDLE", "--prompts", "PROMPTS", "--profile", "nosuch.json"),
    ],
    ids=" ".join,
)
def test_what_names_nothing(
    bundle: Path,
    traces: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts").write_text("one\n")
    places = {"BUNDLE": bundle, "TRACE": traces["plain"], "PROMPTS": tmp_path / "prompts"}
    if "CHECKPOINT" in words:
        places["CHECKPOINT"] = write_tiny_gguf(tmp_path / "tiny.gguf")
    done = hexgraft(*(places.get(word, word) for word in words))
    message, hint = error_of(done)
    assert "nosuch" in message
    assert hint
    assert done.exit_code == USAGE


@pytest.mark.parametrize("command", ["run", "compare", "chat", "lab", "tune"])
def test_a_drafter_that_the_bundle_cannot_have(pair: Path, tmp_path: Path, command: str) -> None:
    alone = tmp_path / "alone"
    assert hexgraft("export", pair / "target-checkpoint", "-o", alone, "--context", "64").exit_code == 0
    option = "--drafters" if command in ("lab", "tune") else "--draft"
    prompt = ("-p", "a") if command in ("run", "compare") else ()
    done = hexgraft(command, alone, *prompt, option, "levels", input="")
    assert done.exit_code == USAGE
    assert "`--draft CHECKPOINT`" in done.stderr


def test_what_is_damaged_is_no_matter_of_usage(bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    (copy / "tokenizer.json").unlink()
    assert hexgraft("run", copy, "-p", "a").exit_code == 1
