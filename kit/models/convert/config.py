"""A Hugging Face ``config.json`` of the llama family: read, checked, and said in GGUF's keys.

Field names and defaults are those of transformers' LlamaConfig, MistralConfig and MixtralConfig; the GGUF keys are
those llama.cpp's loader reads. A field that could change results and has no place in GGUF is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.errors import ConversionError, ModelNotFound, UnsupportedModel
from kit.models.convert.rope import LARGEST_NUMBER, Rope, read_rope
from kit.models.convert.safetensors import read_json

_LARGEST = 1 << 24
_LARGEST_CONTEXT = (1 << 32) - 1  # 32 bits in GGUF
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Ministral3ForCausalLM": "ministral3",
}
_WITH_IMAGES = "Mistral3ForConditionalGeneration"
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6},
    "mistral": {
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-6,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    },
    "mixtral": {
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "ministral3": {"max_position_embeddings": 262144, "rms_norm_eps": 1e-5, "num_key_value_heads": 8},
}
_READ = """
    architectures model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads
    num_key_value_heads head_dim hidden_act max_position_embeddings rms_norm_eps rope_theta rope_scaling
    rope_parameters partial_rotary_factor tie_word_embeddings sliding_window attention_bias mlp_bias
    num_local_experts num_experts_per_tok quantization_config rope_interleaved original_max_position_embeddings
"""
# Training, bookkeeping and generation settings: they do not change the logits of a prompt.
_HARMLESS = """
    _name_or_path transformers_version torch_dtype dtype use_cache initializer_range pretraining_tp
    attention_dropout attn_pdrop resid_pdrop embd_pdrop hidden_dropout dropout router_aux_loss_coef
    router_jitter_noise output_router_logits is_llama_config transformers.js_config auto_map bos_token_id
    eos_token_id pad_token_id unk_token_id sep_token_id mask_token_id decoder_start_token_id
    task_specific_params problem_type id2label label2id num_labels return_dict return_dict_in_generate
    output_hidden_states output_attentions output_scores torchscript use_bfloat16 _attn_implementation
    attn_implementation _attn_implementation_autoset _flash_attn_2_enabled gradient_checkpointing
    use_return_dict max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences chunk_size_feed_forward
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens forced_bos_token_id
    forced_eos_token_id remove_invalid_values is_encoder_decoder is_decoder add_cross_attention
    tie_encoder_decoder cross_attention_hidden_size finetuning_task tokenizer_class prefix pruned_heads
    tf_legacy_loss unsloth_fixed unsloth_version max_window_layers
"""
_KNOWN = frozenset((_READ + _HARMLESS).split())


@dataclass(frozen=True)
class HfConfig:
    """What a checkpoint's config says, checked. ``n_expert`` is 0 for a dense model, ``window`` None without one.

    ``architecture`` is GGUF's; ``with_images``: the language model is one part of the checkpoint.
    """

    path: Path
    architecture: str
    with_images: bool
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    eps: float
    tied: bool
    attention_bias: bool
    mlp_bias: bool
    window: int | None
    n_expert: int
    n_expert_used: int
    rope: Rope
    token_ids: dict[str, Any]

    @property
    def metadata(self) -> dict[str, Any]:
        """The same as GGUF's keys without the architecture before them; int, float or str values."""
        found: dict[str, Any] = {
            "block_count": self.n_layer,
            "context_length": self.n_ctx_train,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": self.eps,
            "rope.dimension_count": self.head_dim,
            "vocab_size": self.n_vocab,
            **self.rope.metadata,
        }
        if self.window is not None:
            found["attention.sliding_window"] = self.window
        if self.n_expert:
            found |= {"expert_count": self.n_expert, "expert_used_count": self.n_expert_used}
        return found


def read_config(folder: Path, ignore: Iterable[str] = ()) -> HfConfig:
    """Read and check ``folder``'s config.json; fields named in ``ignore`` may be unknown.

    Raises:
        ModelNotFound: no such folder or file.
        UnsupportedModel: another architecture, or a field that could change results; named.
        ConversionError: a field that is missing, of another type, or out of range; named.
    """
    path = folder / "config.json"
    values = read_json(path)
    if values is None:
        raise ModelNotFound(f"{path} is not there; give the folder of a Hugging Face checkpoint")
    if not isinstance(values, dict):
        raise ConversionError(f"{path} holds no table of fields")
    with_images = values.get("architectures") == [_WITH_IMAGES]
    if with_images:
        values = _language_part(path, values)
    fields = _Fields(path, values, _model_type(path, values))
    ignored = frozenset(ignore)
    fields.refuse_unsupported(ignored)
    n_embd, n_head = fields.count("hidden_size"), fields.count("num_attention_heads")
    head_dim = fields.count("head_dim", n_embd // n_head)
    n_ctx = fields.count("max_position_embeddings", largest=_LARGEST_CONTEXT)
    mixture = fields.model_type == "mixtral"
    window = fields.get("sliding_window")
    config = HfConfig(
        path=path,
        architecture="mistral3" if with_images or fields.model_type == "ministral3" else "llama",
        with_images=with_images,
        n_layer=fields.count("num_hidden_layers", largest=1 << 16),
        n_embd=n_embd,
        n_ff=fields.count("intermediate_size"),
        n_head=n_head,
        n_head_kv=fields.count("num_key_value_heads", n_head),
        head_dim=head_dim,
        n_vocab=fields.count("vocab_size"),
        n_ctx_train=n_ctx,
        eps=fields.number("rms_norm_eps"),
        tied=fields.flag("tie_word_embeddings"),
        attention_bias=fields.flag("attention_bias"),
        mlp_bias=fields.flag("mlp_bias"),
        window=None if window is None else fields.count("sliding_window", largest=_LARGEST_CONTEXT),
        n_expert=fields.count("num_local_experts", largest=1 << 16) if mixture else 0,
        n_expert_used=fields.count("num_experts_per_tok", largest=1 << 16) if mixture else 0,
        rope=read_rope(
            path,
            values,
            _DEFAULTS[fields.model_type].get("rope_theta", 10000.0),
            head_dim,
            n_ctx,
            scales_queries=fields.model_type == "ministral3",
        ),
        token_ids={key: values[key] for key in values if key.endswith("_token_id") and key not in ignored},
    )
    _check(config)
    return config


def _language_part(path: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Return the config of the language model of a checkpoint that reads images too."""
    text = values.get("text_config")
    if not isinstance(text, dict):
        raise ConversionError(f"{path}: {_WITH_IMAGES} without a text_config")
    if text.get("model_type") not in ("mistral", "ministral3"):
        raise UnsupportedModel(
            f"{path}: text_config.model_type is {text.get('model_type')!r}, which kit cannot convert"
        )
    shared = {key: value for key, value in values.items() if key.endswith("_token_id") or key == "tie_word_embeddings"}
    return {**shared, **text, "architectures": None}


def _model_type(path: Path, values: dict[str, Any]) -> str:
    names = values.get("architectures")
    known = ", ".join([*_MODEL_TYPES, _WITH_IMAGES])
    if isinstance(names, list) and len(names) == 1 and str(names[0]) in _MODEL_TYPES:
        expected = _MODEL_TYPES[str(names[0])]
    elif not names and str(values.get("model_type")) in _DEFAULTS:
        expected = values["model_type"]
    else:
        raise UnsupportedModel(f"{path}: architectures is {names!r}; kit converts {known}")
    if values.get("model_type", expected) != expected:
        raise UnsupportedModel(f"{path}: model_type is {values['model_type']!r} for {names!r}; expected {expected!r}")
    return str(expected)


def _check(config: HfConfig) -> None:
    if config.n_head % config.n_head_kv:
        raise ConversionError(
            f"{config.path}: num_key_value_heads is {config.n_head_kv}, which does not divide {config.n_head} heads"
        )
    if config.head_dim % 2:
        raise ConversionError(f"{config.path}: head_dim is {config.head_dim}; rotation needs an even number")
    if config.n_expert_used > config.n_expert:
        raise ConversionError(
            f"{config.path}: num_experts_per_tok is {config.n_expert_used} of {config.n_expert} experts"
        )


class _Fields:
    """Typed access to config.json; errors name file and field."""

    def __init__(self, path: Path, values: dict[str, Any], model_type: str) -> None:
        self._path, self._values, self.model_type = path, values, model_type

    def get(self, name: str) -> Any:
        return self._values.get(name, _DEFAULTS[self.model_type].get(name))

    def count(self, name: str, default: int | None = None, largest: int = _LARGEST) -> int:
        value = self.get(name)
        value = default if value is None else value
        if type(value) is not int or not 1 <= value <= largest:
            raise ConversionError(f"{self._path}: {name} is {value!r}; expected a whole number from 1 to {largest}")
        return value

    def number(self, name: str) -> float:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < LARGEST_NUMBER:
            raise ConversionError(f"{self._path}: {name} is {value!r}; expected a positive number")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value not in (True, False, None):
            raise ConversionError(f"{self._path}: {name} is {value!r}; expected true or false")
        return bool(value)

    def refuse_unsupported(self, ignore: frozenset[str]) -> None:
        """Name what GGUF's llama cannot express, or kit does not know."""
        allowed = {
            "hidden_act": ("silu", "swish", None),
            "partial_rotary_factor": (1, None),
            "rope_interleaved": (False, None),
            "quantization_config": (None,),
        }
        for name, expected in allowed.items():
            if self.get(name) not in expected:
                raise UnsupportedModel(f"{self._path}: {name} is {self.get(name)!r}, which kit cannot convert")
        for name, value in self._values.items():
            if name not in _KNOWN | ignore and value not in (None, False, 0, "", [], {}):
                raise UnsupportedModel(
                    f"{self._path}: field {name!r} ({value!r:.80}) is unknown and might change results; "
                    f"if it does not, convert with ignore=[{name!r}] (kit convert --ignore {name})"
                )
