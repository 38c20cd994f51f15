"""Weights to Hugging Face's safetensors and back, bit for bit, and what a GPT-NeoX model computes with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from megascope.profiler.errors import MegascopeError, UsageError
from megascope.profiler.null import NullRecorder
from megascope.trainer.checkpoints.exporting import export_checkpoint
from megascope.trainer.checkpoints.files import shard_path
from megascope.trainer.checkpoints.importing import import_checkpoint
from megascope.trainer.checkpoints.listing import list_checkpoints, verify_checkpoints
from megascope.trainer.config import CheckpointConfig, Precision, TrainConfig
from megascope.trainer.data.batches import Split
from megascope.trainer.loop import Trainer
from support.forkrun import run_ranks
from support.training import run_config, small_config

STEPS = 3


def job(folder: Path, *, parallel_block: bool = False, tied: bool = False, **layout: Any) -> TrainConfig:
    checkpoint = CheckpointConfig(folder=folder, every=STEPS)
    config = small_config(**layout, steps=STEPS, parallel_block=parallel_block, checkpoint=checkpoint)
    return replace(config, model=replace(config.model, tied=tied))


@pytest.fixture(scope="module", params=[False, True], ids=["serial", "parallel-tied"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("saved")
    config = job(folder, parallel_block=request.param, tied=request.param, tp=2, pp=2)
    run_config(config)
    return config


def folder_of(config: TrainConfig) -> Path:
    assert config.checkpoint.folder is not None
    return config.checkpoint.folder


def neox_logits(folder: Path, tokens: Tensor) -> Tensor:
    """[batch, sequence] to [batch, sequence, vocabulary], as transformers' GPTNeoXForCausalLM computes it."""
    config, held = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    heads, width = config["num_attention_heads"], config["hidden_size"]

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = held[f"{name}.weight"], held[f"{name}.bias"]
        return functional.layer_norm(x, (width,), weight, bias, config["layer_norm_eps"])

    def turn(x: Tensor) -> Tensor:
        size = x.shape[-1]
        rate = config["rotary_emb_base"] ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), rate).repeat(1, 2)
        low, high = x.chunk(2, dim=-1)
        return x * angle.cos().to(x.dtype) + torch.cat((-high, low), dim=-1) * angle.sin().to(x.dtype)

    def attention(x: Tensor, name: str) -> Tensor:
        qkv = functional.linear(x, held[f"{name}.query_key_value.weight"])
        query, key, value = qkv.view(*x.shape[:2], heads, -1).transpose(1, 2).chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(turn(query), turn(key), value, is_causal=True)
        return functional.linear(mixed.transpose(1, 2).reshape(x.shape), held[f"{name}.dense.weight"])

    def feed(x: Tensor, name: str) -> Tensor:
        inner = functional.linear(x, held[f"{name}.dense_h_to_4h.weight"], held[f"{name}.dense_h_to_4h.bias"])
        return functional.linear(
            functional.gelu(inner), held[f"{name}.dense_4h_to_h.weight"], held[f"{name}.dense_4h_to_h.bias"]
        )

    x = functional.embedding(tokens, held["gpt_neox.embed_in.weight"])
    for number in range(config["num_hidden_layers"]):
        layer = f"gpt_neox.layers.{number}"
        attended = x + attention(norm(x, f"{layer}.input_layernorm"), f"{layer}.attention")
        second = norm(x if config["use_parallel_residual"] else attended, f"{layer}.post_attention_layernorm")
        x = attended + feed(second, f"{layer}.mlp")
    output = "gpt_neox.embed_in" if config["tie_word_embeddings"] else "embed_out"
    return functional.linear(norm(x, "gpt_neox.final_layer_norm"), held[f"{output}.weight"])


def loss_of_trainer(config: TrainConfig) -> tuple[float, np.ndarray[Any, Any]]:
    """The evaluation loss of the checkpoint in our trainer, and the sequences that it is of."""

    def work() -> tuple[float, np.ndarray[Any, Any]]:
        trainer = Trainer(config, NullRecorder(), torch.device("cpu"))
        assert trainer._checkpointer is not None
        trainer._loader.position = trainer._checkpointer.begin().position
        batch = trainer._loader.load(Split.EVAL, 0)
        assert batch is not None
        loss = trainer.pipeline.evaluate(batch)
        assert loss is not None
        return float(loss), batch.numpy()

    return run_ranks(1, work)[0]


def test_an_exported_model_computes_the_trainers_loss(saved: TrainConfig, tmp_path: Path) -> None:
    done = export_checkpoint(folder_of(saved), tmp_path / "model")
    assert (done.step, done.number_format, done.is_exact) == (STEPS, "float32", True)
    single = replace(saved, parallel=replace(saved.parallel, tp=1, pp=1), checkpoint=replace(saved.checkpoint, every=0))
    expected, rows = loss_of_trainer(single)
    tokens = torch.from_numpy(rows)
    logits = neox_logits(tmp_path / "model", tokens[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss) == pytest.approx(expected, abs=2e-6)
    assert expected < 5.5


def test_transformers_loads_an_export_and_computes_the_trainers_loss(saved: TrainConfig, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    export_checkpoint(folder_of(saved), tmp_path / "model")
    model, told = transformers.GPTNeoXForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    single = replace(saved, parallel=replace(saved.parallel, tp=1, pp=1), checkpoint=replace(saved.checkpoint, every=0))
    expected, rows = loss_of_trainer(single)
    tokens = torch.from_numpy(rows)
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss) == pytest.approx(expected, abs=2e-6)


def test_there_and_back_again_is_bit_identical(saved: TrainConfig, tmp_path: Path) -> None:
    first, made, second = tmp_path / "first", tmp_path / "made", tmp_path / "second"
    export_checkpoint(folder_of(saved), first)
    done = import_checkpoint(first, made)
    assert done.model == saved.model
    assert [one.problems for one in verify_checkpoints(made)] == [()]
    (summary,) = list_checkpoints(made).checkpoints
    assert (summary.step, summary.ranks) == (0, saved.model.layers)
    export_checkpoint(made, second, max_file_bytes=30_000)
    index = json.loads((second / "model.safetensors.index.json").read_text())
    names = sorted(set(index["weight_map"].values()))
    assert len(names) > 3
    assert all((second / name).stat().st_size < 60_000 for name in names)
    before = load_file(first / "model.safetensors")
    after = {name: tensor for file in names for name, tensor in load_file(second / file).items()}
    assert before.keys() == after.keys() == index["weight_map"].keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()
    again = tmp_path / "again"
    assert import_checkpoint(second, again).parameters == done.parameters
    for rank in range(saved.model.layers):
        assert shard_path(again, 0, rank).read_bytes() == shard_path(made, 0, rank).read_bytes()


@pytest.mark.timeout(60)
def test_training_starts_from_an_import_in_any_layout(saved: TrainConfig, tmp_path: Path) -> None:
    export_checkpoint(folder_of(saved), tmp_path / "model")
    made = tmp_path / "made"
    import_checkpoint(tmp_path / "model", made)
    losses = []
    layouts: list[dict[str, Any]] = [{}, {"tp": 2}, {"pp": 2}]
    for layout in layouts:
        config = replace(job(made, **layout), model=saved.model, checkpoint=CheckpointConfig(folder=made))
        result = run_config(config)[0]
        assert result.start_step == 0
        losses.append(result.losses)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-6)
    scratch = replace(job(made), model=saved.model, checkpoint=CheckpointConfig())
    assert losses[0][0] < run_config(scratch)[0].losses[0] - 0.05


def test_bf16_is_rounded_and_said_so(saved: TrainConfig, tmp_path: Path) -> None:
    done = export_checkpoint(folder_of(saved), tmp_path / "model", step=STEPS, number_format="bfloat16")
    assert not done.is_exact
    exact = export_checkpoint(folder_of(saved), tmp_path / "exact")
    rounded, weights = (load_file(one.folder / "model.safetensors") for one in (done, exact))
    assert all(torch.equal(rounded[name], weights[name].bfloat16()) for name in weights)
    import_checkpoint(tmp_path / "model", tmp_path / "made")
    again = export_checkpoint(tmp_path / "made", tmp_path / "again")
    held = load_file(again.folder / "model.safetensors")
    assert all(torch.equal(held[name], rounded[name].float()) for name in held)


def test_what_does_not_fit_is_refused(saved: TrainConfig, tmp_path: Path) -> None:
    folder, model = folder_of(saved), tmp_path / "model"
    export_checkpoint(folder, model)
    with pytest.raises(UsageError, match="is not empty: give a folder that is not there yet"):
        export_checkpoint(folder, model)
    with pytest.raises(UsageError, match="int8 is no format for weights: use float32, bfloat16, float64"):
        export_checkpoint(folder, tmp_path / "other", number_format="int8")
    with pytest.raises(MegascopeError, match=r"can be exported \(there is none\): look"):
        export_checkpoint(tmp_path / "nothing", tmp_path / "other")
    with pytest.raises(UsageError, match="holds the checkpoint of step 3: give a folder without checkpoints"):
        import_checkpoint(model, folder)
    with pytest.raises(MegascopeError, match=r"nothing/config.json cannot be read \(No such file"):
        import_checkpoint(tmp_path / "nothing", tmp_path / "made")
    config = json.loads((model / "config.json").read_text())
    for change, sentence in (
        ({"model_type": "llama"}, "since model_type is llama: choose another"),
        ({"hidden_act": "relu"}, "since hidden_act is relu"),
        ({"rotary_pct": 0.25}, "since its rotary positions turn 0.25 of each head"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, r"since its rotary positions are scaled \(linear\)"),
        ({"rope_scaling": {"factor": 4.0}}, "since its rotary positions are scaled: choose"),
        (
            {"rope_parameters": {"rope_type": "yarn", "partial_rotary_factor": 1.0}},
            r"since its rotary positions are scaled \(yarn\)",
        ),
        ({"intermediate_size": 100}, "intermediate_size 100 is no multiple of hidden_size 32"),
        (
            {"hidden_size": 64, "intermediate_size": 256},
            r"is \[256, 32\], but \[256, 64\] follows from its config.json: they do not belong",
        ),
        ({"num_hidden_layers": 5}, r"lacks gpt_neox.layers.4\.\S+ \(and \d+ more\): give a GPT-NeoX model"),
        ({"num_hidden_layers": 3}, r"has gpt_neox.layers.3\.\S+, which our decoder does not"),
        ({"vocab_size": None}, "config.json lacks what a GPT-NeoX model has"),
    ):
        (model / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(MegascopeError, match=sentence):
            import_checkpoint(model, tmp_path / "made")
    (model / "config.json").write_text(json.dumps(config))
    held = load_file(model / "model.safetensors")
    biased = {**held, "gpt_neox.layers.1.mlp.dense_h_to_4h.bias": torch.ones(128)}
    save_file(biased, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MegascopeError, match=r"layers.1.mlp.dense_h_to_4h.bias is not zero, and our decoder has no"):
        import_checkpoint(model, tmp_path / "made")
    if saved.model.parallel_block:
        other = {**held, "gpt_neox.layers.2.post_attention_layernorm.bias": torch.ones(32)}
        save_file(other, model / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(MegascopeError, match=r"differs from gpt_neox.layers.2.input_layernorm.bias, and our paral"):
            import_checkpoint(model, tmp_path / "made")
    (model / "model.safetensors").write_bytes(b"\x10" + bytes(40))
    with pytest.raises(MegascopeError, match=r"model.safetensors cannot be read \(.*\): fetch it again"):
        import_checkpoint(model, tmp_path / "made")
    assert not (tmp_path / "made").exists() or not list_checkpoints(tmp_path / "made").checkpoints


def test_a_model_of_another_author_is_imported(tmp_path: Path) -> None:
    """As transformers 5 writes it: rope_parameters, no section of ours, float64."""
    config = {
        "model_type": "gpt_neox",
        "hidden_act": "gelu",
        "hidden_size": 8,
        "intermediate_size": 16,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 32,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "rope_parameters": {"rope_theta": 5000.0, "partial_rotary_factor": 1.0, "rope_type": "default"},
        "dtype": "float64",
        "use_parallel_residual": False,
        "vocab_size": 300,
    }
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    layer = "gpt_neox.layers.0"
    shapes = {
        "gpt_neox.embed_in.weight": (300, 8),
        f"{layer}.attention.query_key_value.weight": (24, 8),
        f"{layer}.attention.dense.weight": (8, 8),
        f"{layer}.mlp.dense_h_to_4h.weight": (16, 8),
        f"{layer}.mlp.dense_4h_to_h.weight": (8, 16),
        **{
            f"{name}.{part}": (8,)
            for name in (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", "gpt_neox.final_layer_norm")
            for part in ("weight", "bias")
        },
        "embed_out.weight": (300, 8),
        f"{layer}.attention.bias": (1, 1, 4, 4),  # a mask that older versions wrote
    }
    tensors = {name: torch.rand(shape, dtype=torch.float64) for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    done = import_checkpoint(tmp_path, tmp_path / "made")
    assert (done.model.precision, done.model.rotary_base, done.model.feed_forward) == (Precision.FP64, 5000.0, 2)
    export_checkpoint(tmp_path / "made", tmp_path / "again")
    held = load_file(tmp_path / "again" / "model.safetensors")
    assert all(torch.equal(held[name], tensor) for name, tensor in tensors.items() if name in held)
    assert set(tensors) - set(held) == {f"{layer}.attention.bias"}
