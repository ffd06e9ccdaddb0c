"""`hexgraft chat`: a conversation at the terminal, or scripted over standard input."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hexgraft.host.atomic_file import write_whole
from hexgraft.host.bundle import Bundle
from hexgraft.host.cli.authors import authors_option
from hexgraft.host.cli.chat_input import ChatInput
from hexgraft.host.cli.console import print_json, say, say_error, token_progress
from hexgraft.host.cli.generation import (
    Generation,
    answer_json,
    generate,
    keep_quiet,
    print_piece,
    summary,
)
from hexgraft.host.cli.interrupt import interruptible
from hexgraft.host.cli.options import (
    answer_options,
    answer_text,
    baked_option,
    draft_options,
    open_checked,
    open_decoder,
    sampling_options,
    session_options,
    system_options,
    take_system,
    verify_option,
)
from hexgraft.host.cli.place import open_baked
from hexgraft.host.cli.tuned import tuned_option
from hexgraft.host.conversation import Conversation
from hexgraft.host.counted import counted
from hexgraft.host.prefix import check_system, restore
from hexgraft.host.text import TextCodec
from hexgraft.models.errors import INTERRUPTED, DecodeError, HexgraftError, UsageError

HELP = """\
/reset      start over; the system message stays
/undo       take the last turn back
/save FILE  write the conversation as JSON
/stats      figures of the last answer
/help       this
/quit       leave; so does the end of input
A line that ends in \\ goes on with the next. A message that begins with / is written with two: //."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@system_options
@click.option("--drop-oldest", is_flag=True, help="When the context is full, forget the oldest turns.")
@baked_option
@answer_options
@draft_options
@tuned_option
@authors_option
@sampling_options
@session_options
@verify_option
@click.option("--json", "as_json", is_flag=True, help="Print each answer as a JSON object, one a line.")
def chat(bundle: Path, drop_oldest: bool, **options: Any) -> int:
    """Talk with BUNDLE. What the last turns left in the cache is not computed again.

    /help lists what can be typed. Ctrl-C ends an answer and keeps it. Where standard input is no terminal,
    each line is a turn, and only the answers are printed, with an empty line between them.

    \b
    Examples:
      hexgraft chat smollm2 --system "Answer in one sentence."
      printf 'What is the capital of France?\\nAnd of Italy?\\n' | hexgraft chat smollm2
      hexgraft chat smollm2 --json < questions.txt | jq -r .text
    """
    system = take_system(options)
    opened = open_checked(bundle, options["no_verify"])
    codec = TextCodec(opened)
    if not codec.has_template:
        raise UsageError(f"{bundle} has no chat template", f'hexgraft run {bundle} --raw -p "Once upon"')
    if system is not None:
        check_system(codec, system, opened.target.context)
    prefix = open_baked(opened, options)
    if prefix is not None and system is None:
        system = prefix.system
    talk = Conversation(codec, system, opened.manifest.tokenizer.stop_tokens)
    session = ChatSession(opened, codec, talk, drop_oldest, options)
    if prefix is not None:
        probe = Conversation(codec, system)
        probe.ask("?")
        restore(session.decoder, prefix, probe.prompt())
    return session.run()


class _Cancelled(Exception):
    """Ctrl-C before the answer began."""


class ChatSession:
    """The loop of turns and commands."""

    def __init__(
        self,
        bundle: Bundle,
        codec: TextCodec,
        talk: Conversation,
        drop_oldest: bool,
        options: dict[str, Any],
    ) -> None:
        self._bundle = bundle
        self._talk = talk
        self._drop_oldest = drop_oldest
        self._as_json: bool = options["as_json"]
        self._answer = answer_text(bundle, codec, options)
        self.decoder = open_decoder(bundle, codec, self._answer, options)
        self._input = ChatInput()
        self._last: str | None = None
        self._saved: set[Path] = set()
        self._commands: dict[str, Callable[[str], None]] = {
            "reset": self._reset,
            "undo": self._undo,
            "save": self._save,
            "stats": self._stats,
            "help": lambda argument: say(HELP),
        }

    def run(self) -> int:
        """Turns until the end of input, /quit, or Ctrl-C twice without a line in between; the exit code."""
        terminal = self._input.terminal
        if terminal:
            say(f"{self._bundle.target.name}, {self._room(0)}. /help shows what can be typed, Ctrl-D leaves.")
        presses = 0
        while True:
            try:
                line = self._input.read()
                if line is None or line.strip() == "/quit":
                    if terminal and line is None:
                        say("")
                    return 0
                presses = 0
                if line.strip():
                    presses = self._take(line)
            except KeyboardInterrupt:
                presses += 1
                if presses == 1 and terminal:
                    say("\nCtrl-C again leaves; so does /quit")
            except HexgraftError as error:
                if not terminal:
                    raise
                say_error(error.message, error.hint, error.details)
            if presses > 1 or (presses and not terminal):
                return INTERRUPTED

    def _take(self, line: str) -> int:
        """One line; how many times Ctrl-C was pressed during it."""
        if line.startswith("/") and not line.startswith("//"):
            self._command(line)
            return 0
        text = line[1:] if line.startswith("//") else line
        before = list(self._talk.turns)
        self._talk.ask(text)
        try:
            with interruptible() as interrupted:
                generation = self._generate(self._prompt(), interrupted)
                self._talk.reply(generation.text, generation.tokens)
        except _Cancelled:
            self._talk.turns = before
            say("\nthe message was taken back")
            return 1
        except KeyboardInterrupt:  # the second one
            self._talk.turns = before
            self._tell("")
            return 2
        except HexgraftError:
            self._talk.turns = before
            raise
        self._last = generation.finish
        self._say_full(len(before) + 1)
        if generation.error is not None:
            raise generation.error
        return int(generation.finish == "interrupted")

    def _say_full(self, turns: int) -> None:
        """What a full context did to an answer, and to the `turns` there were with it."""
        dropped = turns - len(self._talk.turns)
        if dropped:
            say(f"the context is full: forgot the {dropped} oldest of {counted(turns, 'turn')}")
        if self._last == "length":
            say(f"the context of {self._capacity} tokens is full, the answer ends here; {self._way_out()}")

    def _generate(self, prompt: list[int], interrupted: Callable[[], bool]) -> Generation:
        with token_progress("reading", len(prompt) - 1) as advance:

            def progress(count: int) -> None:
                advance(count)
                if interrupted():
                    raise _Cancelled

            self._answer.begin()
            self.decoder.begin(prompt, progress, reuse=True)
        if self._last is not None and not self._as_json and not self._input.terminal:
            click.echo()  # answers have paragraphs; at a terminal the next prompt parts them
        show = keep_quiet if self._as_json else print_piece
        generation = generate(self.decoder, self._answer, show=show, interrupted=interrupted)
        if self._as_json:
            print_json(answer_json(generation, self._bundle, self.decoder), in_a_line=True)
        else:
            click.echo()
        return generation

    def _prompt(self) -> list[int]:
        """The next prompt. Where it does not fit: with --drop-oldest without the oldest turns, so that a
        quarter of the context stays free for the answer; otherwise DecodeError."""
        prompt = self._talk.prompt()
        reserve = min(self.decoder.options.max_tokens, self._capacity // 4) if self._drop_oldest else 0
        while len(prompt) + reserve > self._capacity and self._drop_oldest and self._talk.drop_oldest():
            prompt = self._talk.prompt()
        if len(prompt) > self._capacity:
            raise DecodeError(
                f"with this message the conversation has {len(prompt)} tokens, the context holds "
                f"{self._capacity}; the message was taken back",
                "shorten the message" if len(self._talk.turns) == 1 else self._way_out(),
            )
        return prompt

    @property
    def _capacity(self) -> int:
        return self.decoder.session.spec.capacity

    def _way_out(self) -> str:
        return "/reset starts over, /undo takes a turn back; `chat --drop-oldest` forgets old turns by itself"

    def _room(self, used: int) -> str:
        return (
            f"{used} of {self._capacity} context tokens used" if used else f"{self._capacity} context tokens"
        )

    def _command(self, line: str) -> None:
        name, _, argument = line[1:].strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            names = [*self._commands, "quit"]
            close = difflib.get_close_matches(name, names, n=1)
            raise UsageError(f"there is no command /{name}", f"type /{close[0]}" if close else "type /help")
        command(argument.strip())

    def _reset(self, argument: str) -> None:
        self._talk.reset()
        self._tell("started over")

    def _undo(self, argument: str) -> None:
        self._tell("took the last turn back" if self._talk.undo() else "there is no turn to take back")

    def _stats(self, argument: str) -> None:
        if self._last is None:
            say("no answer yet")
            return
        say(summary(self.decoder.stats, self._last))
        say(f"{counted(len(self._talk.turns), 'turn')}, {self._room(len(self.decoder.tokens))}")

    def _save(self, argument: str) -> None:
        if not argument or "\0" in argument:
            raise UsageError("/save needs a file name", "type /save conversation.json")
        try:
            path = Path(argument).expanduser()
        except RuntimeError as error:
            raise UsageError(f"there is no home folder for {argument}", "give the path without ~") from error
        conversation = {
            "model": self._bundle.target.name,
            "bundle": self._bundle.digest,
            "messages": self._talk.messages(),
        }
        text = json.dumps(conversation, indent=1, ensure_ascii=False) + "\n"
        write_whole(path, text.encode(), replace=path in self._saved)
        self._saved.add(path)
        self._tell(f"wrote {path}")

    def _tell(self, text: str) -> None:
        """Confirm a command, to a human only."""
        if self._input.terminal:
            say(text)
