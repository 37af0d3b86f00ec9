from __future__ import annotations

import datetime

import pytest

from specedge.errors import PromptError
from specedge.template import ChatTemplate
from tests import tiny

HELLO = [{"role": "user", "content": "hello"}]


def render(source, messages=HELLO, **special):
    return ChatTemplate(source, special).render(messages)


def test_messages_become_text_that_asks_for_an_answer():
    chat = [{"role": "system", "content": "be brief"}, *HELLO]
    assert render(tiny.TEMPLATE, chat) == "system: be brief\nuser: hello\n<ask>"
    template = ChatTemplate(tiny.TEMPLATE)
    assert template.render(HELLO, add_generation_prompt=False) == "user: hello\n"


def test_block_lines_leave_no_blank_lines_behind():
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source) == "hello\n"


def test_special_tokens_are_named_as_checkpoints_name_them():
    assert render("{{ bos_token }}|{{ eos_token }}|{{ pad_token }}", bos_token="<s>") == "<s>||"


def test_json_is_written_for_models_not_for_html():
    source = "{{ messages[0].content | tojson }} {{ {'b': 1, 'a': '<é>'} | tojson(indent=1) }}"
    said = render(source, [{"role": "user", "content": "<é'>"}])
    assert said == '"<é\'>" {\n "b": 1,\n "a": "<é>"\n}'


def test_loop_controls_generation_blocks_and_the_date_work():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}"
    source += "{% endfor %} {{ strftime_now('%Y') }}"
    said = render(source, [*HELLO, *HELLO])
    assert said.split()[0] == "hello"
    assert abs(int(said.split()[1]) - datetime.datetime.now().year) <= 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "roles must alternate"),
        ("{% for %}", "line 1"),
        ("{{ messages[9].content }}", "messages"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ messages.append(1) }}", "append"),
        ("{{ ''.__class__.__mro__ }}", "__class__"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe|undefined|__init__"),
        ("{% for i in range(10**9) %}{% endfor %}", "[Rr]ange"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    ],
)
def test_a_template_that_fails_is_one_prompt_error(source, message):
    with pytest.raises(PromptError, match=message) as caught:
        render(source)
    assert str(caught.value).startswith("chat template")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hello", "messages: expected a list, found str"),
        ([], "messages: the list is empty"),
        (["hello"], r"messages\[0\]: expected"),
        ([*HELLO, {"role": "user"}], r"messages\[1\]\.content: expected text, found nothing"),
        ([{"role": "user", "content": None}], r"content: expected text, found NoneType"),
        ([{"role": "user", "content": [{"text": "x"}]}], r"content: expected text, found list"),
        ([{"role": "", "content": "x"}], r"role: expected text, found an empty string"),
        ([{"content": "x"}], r"messages\[0\]\.role: expected text"),
        ([{"role": "user", "content": "x", "name": "me"}], "the key 'name' is not supported"),
        ([{"role": "user", "content": "a\udc80"}], r"content: character 1 is a lone surrogate"),
    ],
)
def test_malformed_messages_are_refused_by_place(messages, message):
    with pytest.raises(PromptError, match=message):
        render(tiny.TEMPLATE, messages)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{{ 'a' * 10**15 }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% include 'a' %}",
    ],
    ids=["nested blocks", "nested parentheses", "memory", "escape", "include"],
)
def test_a_template_that_cannot_run_is_one_line(source):
    with pytest.raises(PromptError, match=r"^chat template") as caught:
        ChatTemplate(source).render([{"role": "user", "content": "hi"}])
    assert "\n" not in str(caught.value)
