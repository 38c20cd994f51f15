"""Our decoder under Hugging Face's names: GPT-NeoX, which computes the same but for what `unmapped` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...profiler.errors import MegascopeError
from ..config import ModelConfig, Precision
from ..model import ParameterSpec, chunk_specs

OWN_SECTION = "megascope"
"""Key of config.json under which our own settings stand, for an import without loss."""

NORM_EPSILON = 1e-5

_LAYER = {
    "norm.weight": "input_layernorm.weight",
    "norm.bias": "input_layernorm.bias",
    "feed_norm.weight": "post_attention_layernorm.weight",
    "feed_norm.bias": "post_attention_layernorm.bias",
    "attention.qkv": "attention.query_key_value.weight",
    "attention.out": "attention.dense.weight",
    "feed.up": "mlp.dense_h_to_4h.weight",
    "feed.down": "mlp.dense_4h_to_h.weight",
}
_ENDS = {
    "embedding.weight": "gpt_neox.embed_in.weight",
    "final_norm.weight": "gpt_neox.final_layer_norm.weight",
    "final_norm.bias": "gpt_neox.final_layer_norm.bias",
    "head": "embed_out.weight",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of GPT-NeoX: the parameter that it holds, or (None) zeros, of biases that our decoder does not have."""

    name: str
    parameter: str | None
    shape: tuple[int, ...]


def specs_of(model: ModelConfig) -> list[ParameterSpec]:
    """All parameters of a model, from the first to the last."""
    return chunk_specs(model, 0, 1)


def entries(model: ModelConfig) -> Iterator[Entry]:
    """All tensors of GPT-NeoX for a model.

    The parallel block normalises its input once, GPT-NeoX with parallel residual twice: it gets the same norm twice.
    """
    for spec in specs_of(model):
        name, parameter, shape = _hugging_face_name(spec.name), spec.name, tuple(spec.shape)
        yield Entry(name, parameter, shape)
        if model.parallel_block and ".input_layernorm." in name:
            yield Entry(name.replace("input_layernorm", "post_attention_layernorm"), parameter, shape)
        if ".mlp." in name:
            yield Entry(name.replace("weight", "bias"), None, shape[:1])


def config_json(model: ModelConfig, number_format: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of an exported model; ``own`` is the model as its checkpoint's commit file has it."""
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "attention_bias": False,
        "hidden_act": "gelu",
        "hidden_dropout": model.dropout,
        "attention_dropout": 0.0,
        "hidden_size": model.width,
        "initializer_range": model.init_std,
        "intermediate_size": model.width * model.feed_forward,
        "layer_norm_eps": NORM_EPSILON,
        "max_position_embeddings": model.sequence,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "rotary_emb_base": model.rotary_base,
        "rotary_pct": 1.0,
        "tie_word_embeddings": model.tied,
        "torch_dtype": number_format,
        "use_parallel_residual": model.parallel_block,
        "vocab_size": model.vocabulary,
        "bos_token_id": None,
        "eos_token_id": None,
        OWN_SECTION: dict(own),
    }


def unmapped(model: ModelConfig) -> list[str]:
    """Sentences about what GPT-NeoX does not have."""
    found = ["the optimizer's moments, the step and the place in the text stay behind"]
    if model.window is not None and model.window < model.sequence:
        found.append(f"the attention window of {model.window} tokens: GPT-NeoX attends to all earlier ones")
    return found


def model_of_json(value: Mapping[str, Any]) -> ModelConfig:
    """The model that a config.json describes; MegascopeError where our decoder cannot compute it."""
    try:
        wrong = [f"{name} is {value.get(name)}" for name, ours in _NEEDED.items() if value.get(name, ours) != ours]
        rope = value.get("rope_parameters") or {}
        share = rope.get("partial_rotary_factor", value.get("rotary_pct", 0.25))
        width, inner = int(value["hidden_size"]), int(value["intermediate_size"])
        scaled = [of.get("rope_type", of.get("type")) for of in (rope, value.get("rope_scaling") or {})]
        wrong += [f"its rotary positions turn {share} of each head"] if share != 1.0 else []
        wrong += [f"its rotary positions are scaled ({kind})" for kind in scaled if kind not in (None, "default")]
        wrong += ["its rotary positions are scaled"] if value.get("rope_scaling") and scaled[1] is None else []
        wrong += [f"intermediate_size {inner} is no multiple of hidden_size {width}"] if inner % width else []
        if wrong:
            raise MegascopeError(f"This model cannot be imported, since {' and '.join(wrong)}: choose another.")
        is_wide = value.get("torch_dtype", value.get("dtype")) == "float64"
        model = ModelConfig(
            layers=int(value["num_hidden_layers"]),
            width=width,
            heads=int(value["num_attention_heads"]),
            feed_forward=inner // width,
            vocabulary=int(value["vocab_size"]),
            sequence=int(value["max_position_embeddings"]),
            parallel_block=bool(value.get("use_parallel_residual", True)),
            tied=bool(value.get("tie_word_embeddings", False)),
            dropout=float(value.get("hidden_dropout", 0.0)),
            rotary_base=float(rope.get("rope_theta", value.get("rotary_emb_base", 10000))),
            init_std=float(value.get("initializer_range", 0.02)),
            precision=Precision.FP64 if is_wide else Precision.FP32,
        )
        own = value.get(OWN_SECTION, {})
        return replace(model, window=own.get("window"), precision=Precision(own.get("precision", model.precision)))
    except (LookupError, TypeError, ValueError) as error:
        if isinstance(error, MegascopeError):
            raise
        raise MegascopeError(f"config.json lacks what a GPT-NeoX model has, or it is no number ({error}).") from error


_NEEDED = {"model_type": "gpt_neox", "hidden_act": "gelu", "layer_norm_eps": NORM_EPSILON}


def _hugging_face_name(parameter: str) -> str:
    if parameter in _ENDS:
        return _ENDS[parameter]
    _, layer, rest = parameter.split(".", 2)
    return f"gpt_neox.layers.{layer}.{_LAYER[rest]}"
