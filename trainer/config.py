"""The training configuration: one set of dataclasses for TOML files, command-line flags and code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter, Token
from cyclopts.config import Toml
from rich.console import Console

from ..profiler.errors import UsageError
from ..profiler.identity import ATTEMPT_VARIABLE
from ..profiler.topology import Topology
from .validation import check_config

AXES = ("pp", "dp", "tp")


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number, also as 1_000 or 0xff; the library's own conversion rounds 10.5."""
    try:
        return int(tokens[0].value, 0)
    except ValueError:
        raise ValueError(f"{tokens[0].value!r} is not a whole number.") from None


Whole = Annotated[int, Parameter(converter=_whole)]


class Precision(StrEnum):
    """Number format of parameters and activations. Optimizer state is float32, float64 for fp64."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP64 = "fp64"


class Tokenizer(StrEnum):
    """How text becomes tokens: each byte is one, or byte-pair encoding trained on the text."""

    BYTES = "bytes"
    BPE = "bpe"


class Backend(StrEnum):
    """What carries communication: NCCL on GPUs and gloo on CPUs (auto), or gloo through the host's memory on both."""

    AUTO = "auto"
    NCCL = "nccl"
    GLOO = "gloo"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The decoder."""

    layers: Whole = 8
    "Decoder layers."
    width: Whole = 64
    "Width of the residual stream."
    heads: Whole = 4
    "Attention heads."
    feed_forward: Whole = 4
    "Inner width of the feed-forward part, in multiples of the width."
    vocabulary: Whole = 256
    "Tokens in the vocabulary; 256 suits bytes."
    sequence: Whole = 64
    "Tokens in a sequence."
    parallel_block: bool = False
    "Compute attention and feed-forward from the same input, with half the tensor-parallel communication."
    window: Whole | None = None
    "Sliding attention window in tokens; all earlier tokens if absent."
    rotary_base: float = 10000.0
    "Base of the rotary position angles."
    init_std: float = 0.02
    "Standard deviation of the initial weights."
    precision: Precision = Precision.FP32
    "Number format of parameters and activations."


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelConfig:
    """How the model and the batch are laid out over processes."""

    tp: Whole = 1
    "Tensor-parallel ranks, with the sequence split too."
    pp: Whole = 1
    "Pipeline stages."
    dp: Whole = 1
    "Data-parallel replicas, which share the optimizer's state (ZeRO-1)."
    chunks: Whole = 1
    "Virtual stages on each pipeline rank (interleaved 1F1B above 1)."
    order: tuple[str, ...] = AXES
    "Axes from the outermost to the innermost, whose ranks are neighbours."
    recv_ahead: Whole = 2
    "Compute actions ahead of their use at which receives are posted."
    overlap: bool = True
    "Run data-parallel communication beside compute."
    bucket_bytes: Whole = 4 * 2**20
    "Gradient bytes that are reduced together."
    timeout_s: Whole = 600
    "Seconds after which torch gives up on a collective."
    backend: Annotated[Backend, Parameter(alias="--backend")] = Backend.AUTO
    "auto: NCCL on GPUs, gloo on CPUs; with gloo several ranks can share a GPU, through the host's memory."


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationConfig:
    """Steps, batch and optimizer."""

    steps: Whole = 100
    "Optimizer steps in all, including those of earlier attempts."
    batch: Whole = 16
    "Sequences in a step, over the whole job."
    microbatches: Whole = 4
    "Micro-batches that each replica's part of the batch is cut into."
    learning_rate: float = 1e-3
    "Peak learning rate."
    min_learning_rate: float = 1e-4
    "Learning rate at the end of the cosine."
    warmup_steps: Whole = 10
    "Steps over which the learning rate rises from zero."
    weight_decay: float = 0.1
    "Decoupled weight decay of matrices."
    beta1: float = 0.9
    "Decay of AdamW's first moment."
    beta2: float = 0.95
    "Decay of AdamW's second moment."
    epsilon: float = 1e-8
    "AdamW's epsilon."
    clip: float = 1.0
    "Largest gradient norm over all parameters."
    seed: Whole = 0
    "Seed of the initial weights and of the order of the data."
    log_every: Whole = 10
    "Steps between progress lines."
    eval_every: Whole = 0
    "Steps between evaluations; 0 for none."
    eval_batches: Whole = 2
    "Batches in an evaluation."


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The text to train on."""

    text: Annotated[Path | None, Parameter(alias="--text")] = None
    "A text file; Python's own standard-library sources if absent."
    tokenizer: Tokenizer = Tokenizer.BYTES
    "bytes, or bpe (needs the extra megascope[bpe])."
    limit_bytes: Whole | None = None
    "Read only this much of the text."
    eval_share: float = 0.05
    "Share of the text, at its end, that is kept for evaluation."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Saving and resuming."""

    folder: Path | None = None
    "Where checkpoints go, on a file system that all ranks share; none are written if absent."
    every: Whole = 0
    "Steps between checkpoints; 0 for none."
    keep: Whole = 2
    "Newest checkpoints that are kept."
    resume: bool = True
    "Go on from the newest intact checkpoint in the folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordConfig:
    """What is recorded about the run, and where."""

    enabled: bool = True
    "Record spans, steps and metadata."
    run: str | None = None
    "Name of the run; taken from the launcher, or made up, if absent."
    attempt: Whole | None = None
    "Incarnation of the run; taken from the launcher if absent."
    store: Path = Path("megascope-store")
    "Folder of the Parquet store."
    spool: Path | None = None
    "Folder of the black boxes on each host; one in shared memory that belongs to the store if absent."


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """All of a training job's configuration."""

    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    train: OptimizationConfig = field(default_factory=OptimizationConfig)
    data: DataConfig = field(default_factory=DataConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    record: RecordConfig = field(default_factory=RecordConfig)
    fault: tuple[str, ...] = ()
    'Faults to put in, such as "slow rank=5 factor=1.5 segment=forward from=20 to=100"; may be given several times.'

    def topology(self) -> Topology:
        """The mesh of ranks, its axes in the configured order."""
        return Topology.from_mapping({name: getattr(self.parallel, name) for name in self.parallel.order})

    def validate(self, world_size: int) -> None:
        """Refuse what cannot run on ``world_size`` processes; UsageError names the setting and the remedy."""
        check_config(self, world_size)

    def attempt(self, environment: Mapping[str, str]) -> int:
        """Number of this incarnation: as configured, or as the launcher counts, from 0; words are passed over."""
        if self.record.attempt is not None:
            return self.record.attempt
        counts = (environment.get(name, "") for name in (ATTEMPT_VARIABLE, "TORCHELASTIC_RESTART_COUNT"))
        return next((int(text) for text in counts if text.strip().isdecimal()), 0)

    @property
    def microbatch_sequences(self) -> int:
        """Sequences in one micro-batch of one replica."""
        return self.train.batch // (self.parallel.dp * self.train.microbatches)


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a TOML file (none: the defaults) and flags such as ``--model.layers 8``, which win over it.

    Raises UsageError for a file that is missing or is not TOML, an unknown key or flag, and a value of the wrong type.
    """
    if path is not None and not path.is_file():
        raise UsageError(f"There is no configuration file {path}. Give the path of a TOML file.")
    where = f"the configuration {path} and its flags" if path is not None else "the flags of the configuration"
    try:
        if path is not None:
            _check_sections(tomllib.loads(path.read_text(encoding="utf-8")))
        _check_sections({token[2:].partition("=")[0]: None for token in overrides if token.startswith("--")})
        config = _settings_app(path)(list(overrides), exit_on_error=False, print_error=False)
    except (CycloptsError, OSError, ValueError) as error:
        raise UsageError(f"Cannot read {where}: {' '.join(str(error).split())}") from error
    assert isinstance(config, TrainConfig)
    return config


def print_settings(console: Console | None = None) -> None:
    """Show every setting with its type, meaning and default, on standard output or another console."""
    _settings_app(None).help_print([], console=console or Console())


def _settings_app(path: Path | None) -> App:
    """Turns flags, over the settings of a file, into a TrainConfig."""
    app = App(
        name="megascope train CONFIG.toml",
        help="Settings: flags as shown; in CONFIG.toml, keys such as `layers` in a section such as `[model]`.",
        config=Toml(path, must_exist=True) if path is not None else None,
        result_action="return_value",
        help_flags=[],
        version_flags=[],
    )

    @app.default
    def run(config: Annotated[TrainConfig | None, Parameter(name="*")] = None) -> TrainConfig:
        return config or TrainConfig()

    return app


def _check_sections(given: Mapping[str, object]) -> None:
    """Raise ValueError where the name of a section has a value of its own, which the library passes over."""
    for section in fields(TrainConfig):
        if section.name != "fault" and not isinstance(given.get(section.name, {}), dict):
            raise ValueError(f"{section.name} is a section, not a setting, such as {section.name}.{_first(section)}.")


def _first(section: Field[Any]) -> str:
    """The first setting of a section."""
    return fields(section.default_factory)[0].name  # type: ignore[arg-type]
