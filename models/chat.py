"""Chat messages written out as a prompt by the model's own Jinja template, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hexgraft.models.errors import HexgraftError

Message = Mapping[str, Any]


class _GenerationBlock(Extension):
    """`{% generation %}` marks an assistant's text for training; rendering passes it through."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str,
    messages: Sequence[Message],
    special: Mapping[str, str],
    add_generation_prompt: bool = True,
) -> str:
    """The prompt of a conversation, ready to be encoded with its special tokens parsed.

    `messages` have `role` and `content`; `special` gives the template `bos_token`, `eos_token` and so on. The
    names a template finds are those Hugging Face gives it. Raises HexgraftError for a template that is
    malformed, does what the sandbox forbids, or refuses the messages.
    """
    try:
        return (
            _environment()
            .from_string(template)
            .render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **special,
            )
        )
    except jinja2.TemplateSyntaxError as error:
        raise HexgraftError(
            f"the model's chat template is malformed: {error.message} (line {error.lineno})", _HINT
        ) from error
    except _Refused as error:
        raise HexgraftError(
            f"the model's chat template refuses these messages: {error}",
            f"leave out what it does not take, such as --system, or {_HINT}",
        ) from error
    except Exception as error:  # a template is a foreign program: it may raise anything
        detail = str(error) or type(error).__name__
        raise HexgraftError(f"the model's chat template fails on these messages: {detail}", _HINT) from error


_HINT = "do without the template: `hexgraft run BUNDLE --raw -p TEXT`"


class _Refused(jinja2.TemplateError):
    """What `raise_exception` in a template raises."""


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which no prompt wants."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> None:
    raise _Refused(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)
