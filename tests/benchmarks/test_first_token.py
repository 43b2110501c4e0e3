"""The cold process that is timed does what it is said to do."""

import pathlib

import pytest

import kit
from benchmarks import first_token
from benchmarks.processes import peak_memory, start_to_first_byte
from benchmarks.settings import OURS

pytestmark = pytest.mark.model


def test_the_prompt_has_the_tokens_it_is_said_to_have(demo_model_path: pathlib.Path) -> None:
    with kit.GGUFFile(demo_model_path) as file:
        tokenizer = kit.Tokenizer.from_gguf(file)
    assert len(tokenizer.encode(first_token.PROMPT)) == first_token.N_PROMPT
    n_prompt = first_token.LONG["n_prompt"]
    assert len(tokenizer.encode(first_token._WORD * n_prompt)) == n_prompt


@pytest.mark.parametrize("setting", OURS, ids=lambda setting: setting.name)
def test_a_cold_kit_names_the_capital(demo_model_path: pathlib.Path, setting: first_token.Setting) -> None:
    done = start_to_first_byte(first_token._our_command(demo_model_path, setting, 1), setting.env)
    assert done.text == " Paris\n"


@pytest.mark.parametrize("setting", OURS, ids=lambda setting: setting.name)
def test_the_longer_work_maps_the_weights(demo_model_path: pathlib.Path, setting: first_token.Setting) -> None:
    peak = peak_memory(first_token._our_long_command(demo_model_path, setting, 1, n_prompt=4, n_decode=1), setting.env)
    assert peak.resident_bytes > demo_model_path.stat().st_size
