"""Chat templates: what they render, by what others say they render, and what they may not do."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kit
from kit.models.chat import limits as template_limits
from kit.models.chat.forms import FORMS
from kit.models.text.tokenizer import Tokenizer

TEMPLATES = pathlib.Path(__file__).parent / "data" / "templates"
HI = [{"role": "user", "content": "Hi"}]

# The conversation and the results of llama.cpp's own test of its built-in forms (tests/test-chat-template.cpp in the
# sdist of llama-cpp-python 0.3.36); llama2-sys and mistral-v7-tekken, which it
# leaves out, differ by what their names say.
TALK = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi there"},
    {"role": "user", "content": "Who are you"},
    {"role": "assistant", "content": "   I am an assistant   "},
    {"role": "user", "content": "Another question"},
]
EXPECTED = {
    "chatml": (
        "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nWho are you<|im_end|>\n"
        "<|im_start|>assistant\n   I am an assistant   <|im_end|>\n<|im_start|>user\nAnother question<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "llama2": (
        "[INST] You are a helpful assistant\nHello [/INST]Hi there</s>[INST] Who are you [/INST]   I am an assistant   "
        "</s>[INST] Another question [/INST]"
    ),
    "llama2-sys": (
        "[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST]Hi there</s>[INST] Who are you [/INST]"
        "   I am an assistant   </s>[INST] Another question [/INST]"
    ),
    "llama2-sys-bos": (
        "[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST]Hi there</s><s>[INST] Who are you "
        "[/INST]   I am an assistant   </s><s>[INST] Another question [/INST]"
    ),
    "llama2-sys-strip": (
        "[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST]Hi there</s>[INST] Who are you [/INST]"
        "I am an assistant</s>[INST] Another question [/INST]"
    ),
    "llama3": (
        "<|start_header_id|>system<|end_header_id|>\n\nYou are a helpful assistant<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHello<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHi there<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWho are you<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nI am an assistant<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nAnother question<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "mistral-v1": (
        " [INST] You are a helpful assistant\n\nHello [/INST] Hi there</s> [INST] Who are you [/INST]"
        "    I am an assistant   </s> [INST] Another question [/INST]"
    ),
    "mistral-v3": (
        "[INST] You are a helpful assistant\n\nHello[/INST] Hi there</s>[INST] Who are you[/INST] I am an assistant"
        "</s>[INST] Another question[/INST]"
    ),
    "mistral-v3-tekken": (
        "[INST]You are a helpful assistant\n\nHello[/INST]Hi there</s>[INST]Who are you[/INST]   I am an assistant   "
        "</s>[INST]Another question[/INST]"
    ),
    "mistral-v7": (
        "[SYSTEM_PROMPT] You are a helpful assistant[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>"
        "[INST] Who are you[/INST]    I am an assistant   </s>[INST] Another question[/INST]"
    ),
    "mistral-v7-tekken": (
        "[SYSTEM_PROMPT]You are a helpful assistant[/SYSTEM_PROMPT][INST]Hello[/INST]Hi there</s>"
        "[INST]Who are you[/INST]   I am an assistant   </s>[INST]Another question[/INST]"
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_built_in_form_gives_what_llama_cpp_gives(name):
    assert kit.ChatTemplate(name, bos_token="<s>", eos_token="</s>").render(TALK) == EXPECTED[name]


@pytest.mark.parametrize("name", FORMS)
def test_a_built_in_form_writes_the_texts_it_is_given(name):
    odd = "{{ 1 + 1 }} {% raw %} '\"\\ \n<b>"
    assert odd in kit.ChatTemplate(name).render([{"role": "user", "content": odd}])


def test_llama_31_renders_the_format_of_its_model_card():
    source = (TEMPLATES / "meta-llama-Llama-3.1-8B-Instruct.jinja").read_text()
    text = kit.ChatTemplate(source, bos_token="<|begin_of_text|>").render(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi <b>\n"}], date_string="1 May 2025"
    )
    assert text == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 1 May 2025\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi <b><|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.parametrize("case", json.loads((TEMPLATES / "transformers.json").read_text())["cases"])
def test_a_published_template_gives_what_transformers_gives(case):
    source = (TEMPLATES / case.pop("template")).read_text()
    text = case.pop("text")
    assert kit.ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(**case) == text


def test_mistral_nemo_renders_what_llama_cpp_renders_with_it():
    source = (TEMPLATES / "mistralai-Mistral-Nemo-Instruct-2407.jinja").read_text()
    assert kit.ChatTemplate(source, eos_token="</s>").render(TALK) == (
        "[INST]Hello[/INST]Hi there</s>[INST]Who are you[/INST]   I am an assistant   </s>"
        "[INST]You are a helpful assistant\n\nAnother question[/INST]"
    )


def test_mistral_nemo_renders_calls_in_the_format_of_its_documentation():
    source = (TEMPLATES / "mistralai-Mistral-Nemo-Instruct-2407.jinja").read_text()
    call = {"id": "123456789", "function": {"name": "add", "arguments": {"a": 1, "b": "é"}}}
    messages = [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": 3, "tool_call_id": "123456789"},
    ]
    text = kit.ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages)
    assert text == (
        '<s>[INST]1+2?[/INST][TOOL_CALLS][{"name": "add", "arguments": {"a": 1, "b": "é"}, "id": "123456789"}]</s>'
        '[TOOL_RESULTS]{"content": 3, "call_id": "123456789"}[/TOOL_RESULTS]'
    )


def test_what_a_template_refuses_names_template_line_and_reason():
    source = (TEMPLATES / "mistralai-Mistral-Nemo-Instruct-2407.jinja").read_text()
    template = kit.ChatTemplate(source, name="nemo.gguf")
    with pytest.raises(kit.TemplateError, match=r"nemo\.gguf, line 18: .*must alternate"):
        template.render([{"role": "assistant", "content": "x"}])


def test_json_is_written_as_hugging_face_writes_it():
    values = {"b": [1, 2.5, None, True], "a": "<é'>"}
    text = kit.ChatTemplate("{{ v | tojson }}|{{ v | tojson(indent=2) }}").render(HI, v=values)
    assert text == f"{json.dumps(values, ensure_ascii=False)}|{json.dumps(values, ensure_ascii=False, indent=2)}"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}\n  {% if true %}\nx\n  {% endif %}\n{% endfor %}\ny", "x\ny"),  # trim and lstrip
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "02"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aHib"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "6"),
        ("{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a ~ b }}{{ ',' if not loop.last }}{% endfor %}", "x1,y2"),
        ("{{ messages[::-1] | map(attribute='role') | join('-') }}", "user"),
        ("{% macro twice(x) %}{{ x ~ x }}{% endmacro %}{{ twice('ab') | upper }}", "ABAB"),
        ("{{ 'a,b'.split(',')[-1] + '%s' % 1 + '{}'.format(2) + ' x '.strip() }}", "b12x"),
        ("{% set a, b = 1, 2 %}{{ (a, b)[1] }}{{ nothing is defined }}{{ nothing }}", "2False"),
        ("{% for i in [3, 4, 5] if i != 4 %}{{ loop.index ~ '/' ~ loop.length }} {% endfor %}", "1/2 2/2 "),
        ("{% for x in [[1, [2]], [3]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}", "123"),
        ("{{ [1, 2] + [3] }}{{ {'a': 1} | items | list }}{{ 'x' in ('x', 'y') }}", "[1, 2, 3][('a', 1)]True"),
        ("{{ bos_token }}{{ add_generation_prompt }}", "<s>True"),
        ("{{ '{{{}}}: 12345678 {x:>3}'.format(1, x=2) }}{{ '100000 %s%%' % 5 }}", "{1}: 12345678   2100000 5%"),
        ("{{ messages | map(attribute='role') | tojson }}", '["user"]'),
    ],
)  # fmt: skip
def test_what_templates_of_hugging_face_use_works(source, text):
    assert kit.ChatTemplate(source, bos_token="<s>").render(HI) == text


@given(st.text(), st.text())
def test_texts_come_through_unchanged(content, bos):
    source = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"
    assert (
        kit.ChatTemplate(source, bos_token=bos).render([{"role": "user", "content": content}] * 2) == bos + 2 * content
    )


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ messages | attr('__class__') }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ '{0.__class__}'.format_map({}) }}",
        "{{ self.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ (namespace | attr('__init__')).__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages[0].pop('role') }}",
        "{% macro m() %}{% endmacro %}{{ m._func }}",
        "{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
        "{{ 'a'.encode() }}",
        "{% include 'x' %}",
        "{% import 'os' as os %}",
        "{% extends '/etc/passwd' %}",
    ],
)
def test_nothing_reaches_outside(source):
    with pytest.raises(kit.TemplateError, match="line 1"):
        kit.ChatTemplate(source).render(HI)


GREEDY_TEMPLATES = [
    "{% for i in range(10**12) %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [1] * 10**9 }}",
    "{{ 10**(10**9) }}",
    "{{ (2**1000) ** (10**6) }}",
    "{{ 'a'.center(10**9) }}",
    "{{ 'a'.zfill(10**9) }}",
    "{{ 'a' | center(10**9) }}",
    "{{ 'a' | indent(10**9) }}",
    "{{ ('\\n' * 10**6) | indent(10**6) }}",
    "{{ ('\\n' * 10**6) | indent('x' * 10**6) }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "{{ ('a' * 10**6).replace('a', 'b' * 10**6) }}",
    "{{ ('a b ' * 10**6) | wordwrap(1, wrapstring='x' * 10**6) }}",
    "{{ range(10**5) | join('x' * 10**6) }}",
    "{{ ('x' * 10**6).join('y' * 10**6) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%(a)1000000000d' % {'a': 1} }}",
    "{{ '%.1000000000f' % 1 }}",
    "{{ ('%9999d' * 10**5) % ((1,) * 10**5) }}",
    "{{ ('%(a)s' * 1000) % {'a': 'x' * 10**6} }}",
    "{{ ('{0}' * 1000).format('x' * 10**6) }}",
    "{{ ('{a}' * 1000).format_map({'a': 'x' * 10**6}) }}",
    "{{ ('%s' * 1000) | format(*[['x' * 10**4] * 10] * 1000) }}",
    "{{ ('x' * 10**6).join(range(10**5) | map('string')) }}",
    "{{ 1 | round(16000000, 'floor') }}",
    "{% set n = namespace(x=range(10**5) | list) %}{% for i in range(200) %}{% set n.x = [n.x] %}{% endfor %}"
    "{{ n.x | tojson(indent=64) }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 10**9) }}",
    "{{ ('\t' * 10**6).expandtabs(10**6) }}",
    "{{ 'aa'.translate({97: 'b' * 10**6}) }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ messages | batch(10**9, 'x') | list }}",
    "{{ strftime_now('%1000000000d') }}",
    "{{ lipsum(10**9) }}",
    "{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
    "{% for i in range(10**5) %}{% for j in range(10**5) if false %}{% endfor %}{% endfor %}",
    "{% for i in range(10**5) %}" + "x" * 10_000 + "{% endfor %}",
    "{% set x %}{% for i in range(10**5) %}" + "x" * 10_000 + "{% endfor %}{% endset %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='x') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = {1: n.x, 2: n.x} %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{{ ('a' * 10**6) | wordwrap(1) }}",
    "{{ ('a' * 10**6) | list }}",
    "{{ ('a' * 10**6) | select | list }}",
    "{{ ('a' * 10**6).split('a') }}",
    "{{ ('a ' * 10**6).split() }}",
    "{{ ('\\n' * 10**6).splitlines() }}",
    "{{ ('a' * 10**6).strip('b' * 10**5 + 'a') }}",
    "{{ ('a' * 10**6) | trim('b' * 10**5 + 'a') }}",
    "{{ ('a' * 10**7).rfind('b' + 'a' * 10**6) }}",
    "{{ (('<!---->' * 10**6) | safe).striptags() }}",
    "{{ ([[1]] * 10**5) | sum(start=[]) }}",
    "{{ ('a' * 10**7) | replace('a', 'b' * 60) }}",
    "{{ [10**4000] * 10**5 }}",
    "{{ ('a ' * 10**6) | title }}",
    "{{ ('a ' * 10**6) | wordcount }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
]


@pytest.mark.parametrize("source", GREEDY_TEMPLATES, ids=range(len(GREEDY_TEMPLATES)))
def test_a_template_that_wants_too_much_is_stopped(source, monkeypatch):
    monkeypatch.setattr(template_limits, "MAX_STEPS", 100_000)
    with pytest.raises(kit.TemplateError, match="greedy"):
        kit.ChatTemplate(source, name="greedy").render(HI)


def test_a_template_that_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setattr(template_limits, "MAX_SECONDS", -1.0)
    with pytest.raises(kit.TemplateError, match=r"line 2: it takes more than -1 seconds"):
        kit.ChatTemplate("\n{{ 1 + 1 }}").render(HI)


@pytest.mark.parametrize(
    "source",
    ["{{ ('ab ' * 9000) | wordwrap(40) | length > 9000 }}", "{{ ('a\\n' * 9000).splitlines() | length == 9000 }}",
     "{{ ('a b ' * 10**6).rsplit(' ', 1) | length == 2 }}", "{{ [1, 2] | map('string') | join == '12' }}",
     "{{ [3, 1] | select | sort | first == 1 }}", "{{ messages | map(attribute='content') | sum(start=0) }}"],
)  # fmt: skip
def test_what_is_short_is_not_limited(source):
    assert kit.ChatTemplate(source).render([{"role": "user", "content": True}]) in ("True", "1")


def test_a_long_conversation_is_no_runaway():
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 200} for i in range(1000)]
    assert len(kit.ChatTemplate("chatml").render(messages)) > 1_000_000


@pytest.mark.parametrize(
    ("source", "line"),
    [("\n\n{% if %}", 3), ("{% endfor %}", 1), ("a\n{{ 'b' | nothing }}", 2), ("a\n{{ 1 +", 2)],
)
def test_a_template_that_is_none_is_refused_with_its_line(source, line):
    with pytest.raises(kit.TemplateError, match=rf"^odd, line {line}: ") as caught:
        kit.ChatTemplate(source, name="odd")
    assert isinstance(caught.value, kit.KitError) and isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("typed", "meant"), [("chatlm", "chatml"), ("llama-3", "llama3"), ("ChatML", "chatml")])
def test_a_mistyped_form_is_no_prompt(typed, meant):
    with pytest.raises(kit.TemplateError, match=f"no form '{typed}'; did you mean '{meant}'"):
        kit.ChatTemplate(typed)


def test_a_text_that_writes_no_message_is_no_template():
    keys = vocabulary() | {"tokenizer.chat_template": "Hello!"}
    with pytest.raises(kit.TemplateError, match=r"tokenizer\.chat_template of f\.gguf: there is no form 'Hello!'"):
        kit.ChatTemplate.from_metadata(keys, Tokenizer.from_metadata(keys, "f.gguf"), "f.gguf")


@pytest.mark.parametrize(
    "source", ["{{ " + "(" * 100_000 + ")" * 100_000 + " }}", "x" * (2 << 20), "{{ 1" + "+1" * 50_000]
)
def test_a_monstrous_source_is_refused(source):
    with pytest.raises(kit.TemplateError):
        kit.ChatTemplate(source).render(HI)


def test_the_line_of_an_error_inside_a_macro_is_named():
    template = kit.ChatTemplate("{% macro m(x) %}\n{{ x.a.b }}\n{% endmacro %}\n\n{{ m(1) }}")
    with pytest.raises(kit.TemplateError, match="line 2: "):
        template.render(HI)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "no messages"),
        (["Hi"], r"messages\[0\] is 'Hi'"),
        ([{"content": "Hi"}], r"messages\[0\]"),
        ([{"role": 1}], r"messages\[0\]"),
        ([{"role": "user", "content": object}], r"messages\[0\]\['content'\] is <class"),
        ([{"role": "user", "content": [{"x": open}]}], r"messages\[0\]\['content'\]\[0\]\['x'\]"),
    ],
)
def test_messages_that_are_none_are_refused(messages, words):
    with pytest.raises(kit.ArgumentError, match=words):
        kit.ChatTemplate("chatml").render(messages)


def test_a_message_that_holds_itself_is_refused():
    message = {"role": "user"}
    message["content"] = message
    with pytest.raises(kit.ArgumentError, match="32 deep"):
        kit.ChatTemplate("chatml").render([message])


def vocabulary(*names, kind="gpt2", **more):
    tokens = ["a", "b", *names]
    keys = {
        "model": kind,
        "tokens": tokens,
        "merges": [],
        "token_type": np.array([1, 1, *[3] * len(names)], np.int32),
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pre": "tekken",
    }
    return {f"tokenizer.ggml.{key}": value for key, value in keys.items()} | more


@pytest.mark.parametrize(
    ("names", "kind", "form"),
    [
        (["<|im_start|>", "<|im_end|>"], "gpt2", "chatml"),
        (["<|start_header_id|>", "<|eot_id|>"], "gpt2", "llama3"),
        (["[INST]", "[/INST]"], "llama", "mistral-v3"),
        (["[INST]", "[/INST]"], "gpt2", "mistral-v3-tekken"),
        (["[INST]", "[/INST]", "[SYSTEM_PROMPT]"], "gpt2", "mistral-v7-tekken"),
    ],
)
def test_a_file_without_a_template_gets_the_form_of_its_special_tokens(names, kind, form):
    keys = vocabulary(*names, kind=kind)
    template = kit.ChatTemplate.from_metadata(keys, Tokenizer.from_metadata(keys, "f.gguf"), "f.gguf")
    assert template.source == FORMS[form] and form in template.name and "f.gguf" in template.name
    assert (template.bos_token, template.eos_token) == ("a", "b")


def test_a_file_with_neither_is_refused_with_what_there_is():
    keys = vocabulary()
    tokenizer = Tokenizer.from_metadata(keys, "f.gguf")
    with pytest.raises(kit.TemplateError, match=r"tokenizer\.chat_template of f\.gguf is missing.*chatml"):
        kit.ChatTemplate.from_metadata(keys, tokenizer, "f.gguf")
    with pytest.raises(kit.TemplateError, match=r"tokenizer\.chat_template\.tools of f\.gguf is missing"):
        kit.ChatTemplate.from_metadata(keys, tokenizer, "f.gguf", "tools")
    with pytest.raises(kit.TemplateError, match="is a int"):
        kit.ChatTemplate.from_metadata(keys | {"tokenizer.chat_template": 5}, tokenizer, "f.gguf")


def test_the_template_of_a_file_is_its_own_text_or_a_name():
    keys = vocabulary() | {"tokenizer.chat_template": "{{ eos_token }}", "tokenizer.chat_template.tools": "mistral-v1"}
    tokenizer = Tokenizer.from_metadata(keys, "f.gguf")
    assert kit.ChatTemplate.from_metadata(keys, tokenizer, "f.gguf").render(HI) == "b"
    assert kit.ChatTemplate.from_metadata(keys, tokenizer, "f.gguf", "tools").render(HI) == " [INST] Hi [/INST]"


@pytest.mark.model
def test_demo_model_brings_its_template(demo_model_path):
    template = kit.ChatTemplate.from_gguf(demo_model_path)
    text = template.render(HI)
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n") and "SmolLM" in text
