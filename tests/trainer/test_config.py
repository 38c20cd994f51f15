"""The configuration: its flags are frozen, and every refusal is one sentence."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from rich.console import Console

from megascope.profiler.errors import UsageError
from megascope.trainer.config import Precision, TrainConfig, load_config, print_settings

FLAG_NAMES = """
checkpoint.every checkpoint.folder checkpoint.keep checkpoint.on_failure checkpoint.other_text checkpoint.read_once
checkpoint.resume checkpoint.whole_every
data.eval_share data.limit_bytes data.prefetch data.sampling data.skip data.text data.tokenizer data.tokens
fault
model.dropout model.feed_forward model.heads model.init_std model.layers model.parallel_block model.precision
model.rotary_base model.sequence model.tied model.vocabulary model.width model.window
parallel.backend parallel.bucket_bytes parallel.chunks parallel.dp parallel.order parallel.overlap
parallel.overlap_gather parallel.overlap_p2p parallel.overlap_reduce parallel.pod parallel.pp parallel.racks
parallel.recv_ahead parallel.ring parallel.schedule parallel.stage_layers parallel.timeout_s parallel.tp parallel.zero
record.attempt record.enabled record.run record.spool record.store
train.batch train.beta1 train.beta2 train.clip train.clip_factor train.compile train.epsilon train.eval_batches
train.eval_every train.gc_every train.learning_rate train.log_every train.microbatches train.min_learning_rate
train.optimizer train.recompute train.seed train.steps train.warmup_steps train.weight_decay
"""
FLAGS = FLAG_NAMES.split()


def settings(instance: object, prefix: str = "") -> Iterator[str]:
    for field in fields(instance):  # type: ignore[arg-type]
        value = getattr(instance, field.name)
        if is_dataclass(value):
            yield from settings(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def test_the_set_of_flags_is_frozen() -> None:
    assert sorted(settings(TrainConfig())) == FLAGS


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if not flag.startswith("record.")])
def test_every_setting_is_a_flag_of_the_same_name(flag: str) -> None:
    given: dict[str, list[str]] = {
        "fault": ["kill rank=0 step=1"],
        "model.precision": ["bf16"],
        "data.tokenizer": ["bpe"],
        "data.sampling": ["places"],
        "data.text": ["text.txt"],
        "checkpoint.folder": ["folder"],
        "checkpoint.on_failure": ["continue"],
        "parallel.order": ["dp", "tp", "pp"],
        "parallel.backend": ["gloo"],
        "parallel.schedule": ["gpipe"],
        "parallel.stage_layers": ["3", "5"],
        "train.optimizer": ["lamb"],
        "train.recompute": ["full"],
    }
    section, _, name = flag.partition(".")
    default = getattr(TrainConfig(), section)
    before = getattr(default, name) if name else default
    is_switch = isinstance(before, bool)
    option = f"--{section}.{'no-' if before is True else ''}{name.replace('_', '-')}" if name else "--fault"
    values = [] if is_switch else given.get(flag, ["0.25" if isinstance(before, float) else "7"])
    tokens = [option, *values] if len(values) < 2 else [token for value in values for token in (option, value)]
    config = load_config(None, tokens)
    after = getattr(getattr(config, section), name) if name else config.fault
    assert after != before


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'fault = ["slow rank=1 factor=2"]\n[model]\nlayers = 4\nwidth = 96\nprecision = "bf16"\n[parallel]\ntp = 2\n'
        'order = ["tp", "dp", "pp"]\n'
    )
    config = load_config(path, ["--model.layers", "6"])
    assert (config.model.layers, config.model.width, config.model.heads) == (6, 96, 4)
    assert config.model.precision is Precision.BF16
    assert config.topology().axes == (("tp", 2), ("dp", 1), ("pp", 1))
    assert config.fault == ("slow rank=1 factor=2",)


@pytest.mark.parametrize(
    ("content", "flags", "sentence"),
    [
        ("[model]\nlayer = 3\n", [], r"Cannot read the configuration .*run.toml and its flags: .*layer"),
        ("[model\n", [], r"Cannot read the configuration .*run.toml .*line 1"),
        ("[model]\nlayers = 'many'\n", [], r"'many' is not a whole number"),
        ("", ["--model.layer", "3"], r"Unknown option: --model.layer"),
        ("", ["--model.precision", "fp8"], r"fp8"),
        ("", ["stray"], r"stray"),
        ("model = 3\n", [], r"model is a section, not a setting, such as model.layers"),
        ("", ["--train", "3"], r"train is a section, not a setting, such as train.steps"),
        ("[train]\nsteps = 10.5\n", [], r"\[train\]\[steps\]: '10.5' is not a whole number"),
        ("[train]\nsteps = true\n", [], r"'True' is not a whole number"),
        ("[model]\nwindow = 7.5\n", [], r"'7.5' is not a whole number"),
        ("", ["--data.limit-bytes", "1.5"], r"--data.limit-bytes: '1.5' is not a whole number"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, content: str, flags: list[str], sentence: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match=sentence) as caught:
        load_config(path, flags)
    assert "\n" not in str(caught.value)


def test_whole_numbers_may_be_written_as_in_python() -> None:
    config = load_config(None, ["--train.steps", "1_000", "--train.seed", "0x10", "--model.window", "+8"])
    assert (config.train.steps, config.train.seed, config.model.window) == (1000, 16, 8)


def test_every_setting_is_shown_with_its_meaning() -> None:
    console = Console(width=200, file=io.StringIO())
    print_settings(console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    for flag in FLAGS:
        assert f"--{flag.replace('_', '-')} " in shown, flag
    assert re.search(r"--train\.steps INT +Optimizer steps in all, including those of earlier attempts.*100", shown)
    assert "--parallel.no-overlap" in shown


def test_settings_are_shown_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    print_settings()
    assert "Optimizer steps in all" in capsys.readouterr().out


def test_text_has_a_short_flag() -> None:
    assert load_config(None, ["--text", "book.txt"]).data.text == Path("book.txt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no configuration file .*none.toml"):
        load_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("flags", "processes", "sentence"),
    [
        (
            "--parallel.tp 2 --parallel.pp 2 --parallel.dp 2",
            4,
            "pp 2 x dp 2 x tp 2 = 8, but 4 processes were started: start 8 (--nproc, or torchrun's --nproc-per-node x "
            "--nnodes), or change the layout.",
        ),
        ("--parallel.tp 2", 1, "pp 1 x dp 1 x tp 2 = 2, but 1 process was started"),
        ("--parallel.pp 3", 3, "8 layers cannot be cut into pp 3 x chunks 1 = 3 equal parts"),
        ("--parallel.pp 2 --parallel.chunks 3", 2, "8 layers cannot be cut into pp 2 x chunks 3 = 6 equal parts"),
        ("--parallel.chunks 2", 1, "parallel.chunks is 2, but there is one pipeline stage"),
        ("--parallel.tp 8", 8, "model.heads is 4, which tp 8 does not divide: make it a multiple of 8."),
        ("--parallel.tp 2 --model.sequence 63", 2, "model.sequence is 63, which tp 2 does not divide"),
        ("--parallel.tp 2 --model.vocabulary 257", 2, "model.vocabulary is 257, which tp 2 does not divide"),
        ("--model.width 68 --model.heads 4", 1, "a multiple of 8"),
        ("--parallel.dp 3", 3, "A batch of 16 sequences cannot be cut into dp 3 x 4 micro-batches"),
        (
            "--parallel.pp 4 --parallel.chunks 2 --train.microbatches 2",
            4,
            "train.microbatches is 2, make it a multiple of 4",
        ),
        ("--parallel.order pp --parallel.order dp", 1, "parallel.order is pp, dp: name pp, dp and tp once each"),
        ("--parallel.order pp --parallel.order dp --parallel.order cp", 1, "name pp, dp and tp once each"),
        ("--parallel.tp 0", 1, "parallel.tp is 0, but it must be at least 1"),
        ("--train.clip 0", 1, "train.clip is 0.0, but it must be above 0"),
        ("--train.beta2 1", 1, "train.beta2 is 1.0, but it must lie in [0, 1)"),
        ("--data.eval-share 1", 1, "data.eval_share is 1.0"),
        ("--model.vocabulary 100", 1, "Bytes as tokens need a vocabulary of 256"),
        ("--checkpoint.every 5", 1, "set checkpoint.folder too"),
        ("--record.attempt=-1", 1, "record.attempt is -1"),
        ("--train.seed=-1", 1, "train.seed is -1, but it must be at least 0"),
        ("--train.seed 9223372036854775808", 1, "it must be below 2**63"),
        ("--model.init-std=-1", 1, "model.init_std is -1.0, but it must be at least 0"),
        ("--model.init-std nan", 1, "model.init_std is nan, but it must be at least 0"),
        ("--model.rotary-base 0", 1, "model.rotary_base is 0.0, but it must be above 0"),
        ("--train.learning-rate inf", 1, "train.learning_rate is inf, but it must be above 0, and finite"),
        ("--train.weight-decay=-0.1", 1, "train.weight_decay is -0.1"),
        ("--data.limit-bytes 0", 1, "data.limit_bytes is 0, but it must be at least 1"),
        ("--model.dropout 1", 1, "model.dropout is 1.0, but it must lie in [0, 1)"),
        ("--parallel.zero 4", 1, "parallel.zero is 4, but there are stages 1, 2 and 3"),
        ("--parallel.zero 0", 1, "parallel.zero is 0, but it must be at least 1"),
        ("--train.clip-factor=-1", 1, "train.clip_factor is -1.0, but it must be at least 0"),
        (
            "--parallel.pp 2 --parallel.stage-layers 3 --parallel.stage-layers 4",
            2,
            "parallel.stage_layers is 3, 4: give pp 2 x chunks 1 = 2 numbers that add up to model.layers, 8.",
        ),
        (
            "--parallel.pp 2 --parallel.stage-layers 8",
            2,
            "parallel.stage_layers is 8: give pp 2 x chunks 1 = 2 numbers",
        ),
        ("--parallel.stage-layers 0", 1, "parallel.stage_layers is 0, but it must be at least 1"),
        (
            "--parallel.pp 2 --parallel.chunks 2 --parallel.schedule gpipe",
            2,
            "parallel.chunks is 2, but gpipe has one on a stage: set chunks to 1, or schedule to 1f1b.",
        ),
        (
            "--parallel.pp 2 --parallel.chunks 2 --parallel.no-overlap-p2p",
            2,
            "parallel.overlap_p2p is off, with which interleaved chunks would wait for each other: set chunks to 1.",
        ),
        (
            "--parallel.tp 2 --parallel.ring --train.recompute selective",
            2,
            "train.recompute is selective, which a ring cannot stop short of its messages: choose full, or ring off.",
        ),
        (
            "--parallel.dp 4 --parallel.pod 3",
            4,
            "parallel.pod is 3, which does not divide dp 4: choose a divisor, host, rack, or 0.",
        ),
    ],
)
def test_impossible_layouts_are_refused(flags: str, processes: int, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_config(None, flags.split()).validate(processes)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_faults_are_checked_with_the_rest() -> None:
    with pytest.raises(UsageError, match=r"names rank \[3\], but there are only ranks 0 to 1"):
        load_config(None, ["--fault", "kill rank=3 step=1", "--parallel.dp", "2"]).validate(2)


@pytest.mark.parametrize(
    ("environment", "attempt"),
    [
        ({}, 0),
        ({"TORCHELASTIC_RESTART_COUNT": "3"}, 3),
        ({"MEGASCOPE_ATTEMPT": "2", "TORCHELASTIC_RESTART_COUNT": "3"}, 2),
        ({"MEGASCOPE_ATTEMPT": "second", "TORCHELASTIC_RESTART_COUNT": "3"}, 3),
        ({"MEGASCOPE_ATTEMPT": "second"}, 0),
    ],
)
def test_the_attempt_is_the_launchers_count_and_no_word_stops_training(
    environment: dict[str, str], attempt: int
) -> None:
    assert load_config(None).attempt(environment) == attempt


def test_ranks_of_one_incarnation_agree_whatever_torchrun_counted_on_each() -> None:
    config = load_config(None)
    survivor, spare = ({"TORCHELASTIC_RESTART_COUNT": count} for count in ("1", "0"))
    assert config.incarnation(survivor) == config.incarnation(spare)
    assert config.incarnation({"MEGASCOPE_ATTEMPT": "1"}) != config.incarnation({"MEGASCOPE_ATTEMPT": "2"})
    given = load_config(None, ["--record.attempt", "4"])
    assert given.incarnation({"MEGASCOPE_ATTEMPT": "2"}) == given.incarnation({})


def test_in_a_store_that_outlives_a_restart_two_incarnations_have_keys_of_their_own() -> None:
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    first, second = ({**shared, "TORCHELASTIC_RESTART_COUNT": count} for count in ("0", "1"))
    assert load_config(None).incarnation(first) != load_config(None).incarnation(second)
