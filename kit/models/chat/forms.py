"""Chat formats by name, for files that carry no template; names and results are those of llama.cpp.

Sources of the formats: OpenAI's ChatML, Meta's model cards of Llama 2 and 3, Mistral's tokenizer documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kit.models.text.tokenizer import Tokenizer

_CHATML = """\
{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

_LLAMA3 = """\
{% macro head(role) %}{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' }}{% endmacro %}
{% for m in messages %}{{ head(m.role) ~ m.content | trim ~ '<|eot_id|>' }}{% endfor %}
{% if add_generation_prompt %}{{ head('assistant') }}{% endif %}"""

# A turn opens with the first message after an answer, so that a system message shares it with the user's.
_LLAMA2 = """\
{%% set turn = namespace(open=true) %%}{{ '[INST] ' }}
{%%- for m in messages %%}
{%%- set content = %(content)s %%}
{%%- if not turn.open %%}{{ %(again)s ~ '[INST] ' }}{%% set turn.open = true %%}{%% endif %%}
{%%- if m.role == 'system' %%}{{ %(system)s }}
{%%- elif m.role == 'user' %%}{{ content ~ ' [/INST]' }}
{%%- else %%}{{ content ~ (eos_token or '</s>') }}{%% set turn.open = false %%}{%% endif %%}
{%%- endfor %%}"""

_MISTRAL = """\
{%% set turn = namespace(open=false) %%}
{%%- for m in messages %%}
{%%- if not turn.open %%}{{ '%(before)s[INST]%(after)s' }}{%% set turn.open = true %%}{%% endif %%}
{%%- if m.role == 'system' %%}{{ m.content ~ '\\n\\n' }}
{%%- elif m.role == 'user' %%}{{ m.content ~ '%(before)s[/INST]' }}
{%%- else %%}{{ '%(after)s' ~ %(answer)s ~ (eos_token or '</s>') }}{%% set turn.open = false %%}{%% endif %%}
{%%- endfor %%}"""

_MISTRAL_V7 = """\
{%% for m in messages %%}
{%%- if m.role == 'system' %%}{{ '[SYSTEM_PROMPT]%(after)s' ~ m.content ~ '[/SYSTEM_PROMPT]' }}
{%%- elif m.role == 'user' %%}{{ '[INST]%(after)s' ~ m.content ~ '[/INST]' }}
{%%- else %%}{{ '%(after)s' ~ m.content ~ (eos_token or '</s>') }}{%% endif %%}
{%%- endfor %%}"""


def _llama2(*, system: bool = True, bos: bool = False, strip: bool = False) -> str:
    return _LLAMA2 % {
        "content": "m.content | trim" if strip else "m.content",
        "again": "(bos_token or '<s>')" if bos else "''",
        "system": "'<<SYS>>\\n' ~ content ~ '\\n<</SYS>>\\n\\n'" if system else "content ~ '\\n'",
    }


def _mistral(before: str, after: str, *, trim: bool = False) -> str:
    return _MISTRAL % {"before": before, "after": after, "answer": "(m.content | trim)" if trim else "m.content"}


FORMS: dict[str, str] = {
    "chatml": _CHATML,
    "llama2": _llama2(system=False),
    "llama2-sys": _llama2(),
    "llama2-sys-bos": _llama2(bos=True),
    "llama2-sys-strip": _llama2(strip=True),
    "llama3": _LLAMA3,
    "mistral-v1": _mistral(" ", " "),
    "mistral-v3": _mistral("", " ", trim=True),
    "mistral-v3-tekken": _mistral("", ""),
    "mistral-v7": _MISTRAL_V7 % {"after": " "},
    "mistral-v7-tekken": _MISTRAL_V7 % {"after": ""},
}
"""Name -> jinja2 text."""


def form_for(tokenizer: Tokenizer) -> str | None:
    """The name of the form whose special tokens a vocabulary has, if it has those of one."""
    tekken = "-tekken" if tokenizer.is_bpe else ""
    for token, name in (
        ("<|im_start|>", "chatml"),
        ("<|start_header_id|>", "llama3"),
        ("[SYSTEM_PROMPT]", f"mistral-v7{tekken}"),
        ("[INST]", f"mistral-v3{tekken}"),
    ):
        if tokenizer.special_id(token) is not None:
            return name
    return None
