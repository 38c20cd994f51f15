"""The training configuration: one set of dataclasses for TOML files, command-line flags and code."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter
from cyclopts.config import Toml
from rich.console import Console

from ..profiler.errors import UsageError
from ..profiler.identity import ATTEMPT_VARIABLE, store_restarts
from ..profiler.topology import Topology
from .sections import (
    Backend,
    ModelConfig,
    OptimizationConfig,
    Optimizer,
    Order,
    ParallelConfig,
    Precision,
    Recompute,
    Whole,
)
from .validation import check_config

__all__ = [
    "Backend", "CheckpointConfig", "DataConfig", "ModelConfig", "OnFailure", "OptimizationConfig", "Optimizer",
    "Order", "ParallelConfig", "Precision", "Recompute", "RecordConfig", "Sampling", "Tokenizer", "TrainConfig",
    "Whole", "load_config", "print_settings",
]  # fmt: skip


class Tokenizer(StrEnum):
    """How text becomes tokens: each byte is one, or byte-pair encoding trained on the text."""

    BYTES = "bytes"
    BPE = "bpe"


class Sampling(StrEnum):
    """Which sequences are trained on: all, each once in an epoch and shuffled; or those at random places."""

    EPOCHS = "epochs"
    PLACES = "places"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The text to train on."""

    text: Annotated[Path | None, Parameter(alias="--text")] = None
    "A text file; Python's own standard-library sources if absent."
    tokens: Path | None = None
    "A token file that `megascope tokenize` made, memory-mapped; instead of a text and a tokenizer."
    tokenizer: Tokenizer = Tokenizer.BYTES
    "bytes, or bpe (needs the extra megascope[bpe])."
    limit_bytes: Whole | None = None
    "Read only this much of the text."
    eval_share: float = 0.05
    "Share of the text, at its end, that is kept for evaluation."
    sampling: Sampling = Sampling.EPOCHS
    "epochs: each sequence once before one comes again, shuffled; places: sequences at random places."
    skip: tuple[Whole, ...] = ()
    "Batches that are passed over, by their number from 0; all after them move up."
    prefetch: Whole = 2
    "Batches that a thread draws ahead of training; 0 for none."


class OnFailure(StrEnum):
    """What becomes of the training when a checkpoint cannot be written."""

    STOP = "stop"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointConfig:
    """Saving and resuming."""

    folder: Path | None = None
    "Where checkpoints go, on a file system that all ranks share; none are written if absent."
    every: Whole = 0
    "Steps between checkpoints; 0 for none."
    keep: Whole = 2
    "Newest checkpoints that are kept, beside those that they build upon."
    whole_every: Whole = 1
    "Every so many checkpoints one is whole; those between hold only the blocks that have changed."
    on_failure: OnFailure = OnFailure.STOP
    "When one cannot be written: stop, or continue with a warning; the one before stays valid."
    resume: bool = True
    "Go on from the newest intact checkpoint in the folder, of any layout."
    other_text: bool = False
    "Go on from it with another text than it was trained on."
    read_once: bool = True
    "When resuming, one rank of each data-parallel group reads and broadcasts; if false, each reads what it needs."


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

    def incarnation(self, environment: Mapping[str, str]) -> str:
        """What tells this incarnation's keys in the rendezvous store from those of another, the same on all ranks."""
        given = environment.get(ATTEMPT_VARIABLE, "") if self.record.attempt is None else self.record.attempt
        return f"{given}/{store_restarts(environment)}"

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
