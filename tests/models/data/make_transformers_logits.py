"""Make transformers_logits.npz: logits of tiny models by transformers, on the very weights of `tests.models.tiny`.

Run from the repository's root where torch and transformers are installed (these were made with torch 2.14.1 and
transformers 5.24.0, float32, eager attention on a CPU)::

    python -m tests.models.data.make_transformers_logits

A kind is left out where transformers has no such model (sizes per block, a longer context on demand).
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import torch
import transformers

from tests.models import tiny

IDS = [1, 100, 7, 42, 42, 250, 3, 99, 180, 12, 5]
EVERY = 8  # of the vocabulary, to keep the file small
KINDS = (
    "grouped",
    "one-kv-head",
    "wide-heads-untied",
    "biased",
    "experts",
    "joined-experts",
    "rope-scaled",
    "yarn",
    "yarn-betas",
    "longrope-beyond-training",
    "longrope-as-trained",
    "mistral3",
    "window",
)


def rope_parameters(model: tiny.Tiny) -> dict[str, Any]:
    """What transformers calls the metadata under ``rope.``."""
    found: dict[str, Any] = {"rope_type": model.rope_scaling or "default", "rope_theta": model.rope_base}
    if model.rope_scaling in ("linear", "yarn"):
        found["factor"] = model.rope_factor
    if model.rope_scaling in ("yarn", "longrope"):
        found["original_max_position_embeddings"] = model.n_ctx_orig
    if model.rope_scaling == "yarn":
        found |= {"beta_fast": model.rope_betas[0], "beta_slow": model.rope_betas[1]}
        if model.rope_log_multiplier:
            found |= {"mscale": 1.0, "mscale_all_dim": model.rope_log_multiplier}
        if model.rope_magnitude != 1:  # transformers takes the product, llama.cpp its last factor
            growth, shrink = (1 + 0.1 * x * np.log(model.rope_factor) for x in (1, model.rope_log_multiplier))
            found["attention_factor"] = float(model.rope_magnitude * growth / shrink)
    if model.rope_scaling == "longrope":
        for table in ("long", "short"):
            found[f"{table}_factor"] = model.weights[f"rope_factors_{table}.weight"].tolist()
        found["attention_factor"] = model.rope_magnitude
    if model.temperature:
        found["llama_4_scaling_beta"] = model.temperature
    return found


def built(model: tiny.Tiny) -> Any:
    """Return a transformers model of these sizes."""
    n_head, n_head_kv, n_ff = model.sizes(0)
    sizes: dict[str, Any] = {
        "vocab_size": model.n_vocab,
        "hidden_size": model.n_embd,
        "intermediate_size": n_ff,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": n_head,
        "num_key_value_heads": n_head_kv,
        "head_dim": model.head_dim,
        "rms_norm_eps": model.eps,
        "max_position_embeddings": 512,
        "tie_word_embeddings": not model.untied,
        "rope_parameters": rope_parameters(model),
        "attn_implementation": "eager",
    }
    if model.n_expert:
        experts = {"num_local_experts": model.n_expert, "num_experts_per_tok": model.n_expert_used}
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **experts, sliding_window=None))
    if model.temperature:
        return transformers.Ministral3ForCausalLM(transformers.Ministral3Config(**sizes))
    if model.window:
        return transformers.MistralForCausalLM(transformers.MistralConfig(**sizes, sliding_window=model.window))
    biases = {"attention_bias": model.biases, "mlp_bias": model.biases}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **biases))


def apart(array: np.ndarray, model: tiny.Tiny) -> np.ndarray:
    """Undo the converter's order of rows in a head: pairs that rotate together lie half a head apart here."""
    heads = array.reshape(-1, model.head_dim // 2, 2, *array.shape[1:])
    return heads.swapaxes(1, 2).reshape(array.shape)


def state(model: tiny.Tiny) -> dict[str, torch.Tensor]:
    """The weights by transformers' names."""
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
    names |= {f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}
    names |= {f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}
    weights = dict(model.weights)
    found = {
        "model.embed_tokens.weight": weights["token_embd.weight"],
        "model.norm.weight": weights["output_norm.weight"],
    }
    found["lm_head.weight"] = weights.get("output.weight", weights["token_embd.weight"])
    for i in range(model.n_layer):
        at, to = f"blk.{i}.", f"model.layers.{i}."
        for name, other in names.items():
            for kind in ("weight", "bias"):
                array = weights.get(f"{at}{name}.{kind}")
                if array is not None:
                    found[f"{to}{other}.{kind}"] = apart(array, model) if name in ("attn_q", "attn_k") else array
        if model.n_expert:
            gate, up, down = (weights[f"{at}ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
            found[to + "mlp.experts.gate_up_proj"] = np.concatenate([gate, up], 1)
            found[to + "mlp.experts.down_proj"] = down
            found[to + "mlp.gate.weight"] = weights[at + "ffn_gate_inp.weight"]
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}


def logits(model: tiny.Tiny) -> np.ndarray:
    """Return transformers' logits (tokens, a part of the vocabulary)."""
    other = built(model).eval()
    missing, unexpected = other.load_state_dict(state(model), strict=False)
    if unexpected or [name for name in missing if "rotary" not in name]:
        raise SystemExit(f"weights do not fit: {missing} {unexpected}")
    with torch.no_grad():
        rows = other(torch.tensor([IDS])).logits[0].float().numpy()
    return np.ascontiguousarray(rows[:, ::EVERY])


def main() -> None:
    """Write the file beside this one."""
    found = {kind: logits(tiny.Tiny(**tiny.KINDS[kind])) for kind in KINDS}
    np.savez_compressed(pathlib.Path(__file__).with_name("transformers_logits.npz"), **found)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
