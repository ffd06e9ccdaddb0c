"""Chat templates: rendered as transformers renders them, in a sandbox, with errors in words."""

from __future__ import annotations

import re

import pytest
from tiny_tokenizer import CHATML

from hexgraft.models.chat import render_chat
from hexgraft.models.errors import HexgraftError

TALK = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<b>&'"}]
LLAMA_STYLE = """{{- bos_token }}
{%- if not tools is defined or tools is none %}
    {%- for message in messages %}
        {%- if message['role'] == 'user' %}
[U] {{ message['content'] | trim }}
        {% else %}
[A] {{ message['content'] | tojson }}{{ eos_token }}
        {% endif %}
    {%- endfor %}
{%- endif %}
"""


def test_chatml() -> None:
    expected = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<b>&'<|im_end|>\n"
    assert render_chat(CHATML, TALK, {}, add_generation_prompt=False) == expected
    assert render_chat(CHATML, TALK, {}) == expected + "<|im_start|>assistant\n"


def test_blocks_are_trimmed_and_json_is_not_escaped() -> None:
    text = render_chat(LLAMA_STYLE, TALK, {"bos_token": "<s>", "eos_token": "</s>"})
    assert text == '<s>[U] Hi\n[A] "<b>&\'"</s>\n'


@pytest.mark.parametrize("template", [CHATML, LLAMA_STYLE])
def test_equals_transformers(template: str) -> None:
    chat_template = pytest.importorskip("transformers.utils.chat_template_utils")
    theirs, _ = chat_template.render_jinja_template(
        conversations=[TALK],
        chat_template=template,
        add_generation_prompt=True,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert render_chat(template, TALK, {"bos_token": "<s>", "eos_token": "</s>"}) == theirs[0]


def test_helpers_templates_count_on() -> None:
    assert re.fullmatch(r"\d{4}-\d\d", render_chat("{{ strftime_now('%Y-%m') }}", [], {}))
    assert (
        render_chat("{% for x in [1,2,3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", [], {})
        == "1"
    )
    assert render_chat("a{% generation %}b{{ 1 + 1 }}{% endgeneration %}c", [], {}) == "ab2c"
    assert render_chat("{{ {'ü': 1} | tojson(indent=2) }}", [], {}) == '{\n  "ü": 1\n}'
    assert render_chat("{{ tools is none }} {{ documents is none }}", [], {}) == "True True"


def test_raise_exception_speaks_for_the_template() -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    with pytest.raises(HexgraftError, match="refuses these messages: Roles must alternate"):
        render_chat(template, TALK[1:], {})
    assert render_chat(template, TALK, {}) == ""


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for x in %}", r"is malformed: .* \(line 1\)"),
        ("\n{{ 1 +", r"is malformed: .* \(line 2\)"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails on these messages"),
        ("{{ messages.append(1) }}", "fails on these messages"),
        ("{% for i in range(10**9) %}{% endfor %}", "fails on these messages"),
        ("{{ messages[0].content + 1 }}", "fails on these messages"),
        ("{{ 1 / 0 }}", "fails on these messages"),
        ("{{ nothing.here.at_all }}", "fails on these messages"),
        ("{% include 'x' %}", "fails on these messages"),
    ],
)
def test_bad_templates_become_errors_in_words(template: str, message: str) -> None:
    with pytest.raises(HexgraftError, match=message) as caught:
        render_chat(template, TALK, {})
    assert caught.value.hint is not None


def test_messages_stay_as_they_were() -> None:
    talk = [dict(message) for message in TALK]
    render_chat(CHATML, talk, {})
    assert talk == TALK
