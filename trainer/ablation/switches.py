"""The techniques that can be switched, each with its settings off and on, and the variants of a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...profiler.errors import UsageError
from ..config import TrainConfig

Settings = Mapping[str, Any]
"""Values by setting, such as ``parallel.overlap``."""

Chosen = Callable[[TrainConfig], Settings]

TOGETHER, BASE, CONTROL = "together", "base", "control"


@dataclass(frozen=True, slots=True)
class Switch:
    """A technique.

    ``is_for_speed``: it is meant to make training faster, and is part of "together"; others save memory. ``needs``: why
    it can do nothing here; None where it can.
    """

    name: str
    meaning: str
    off: Settings
    on: Chosen
    is_for_speed: bool = True
    needs: Callable[[TrainConfig], str | None] = lambda config: None


def _axis(name: str, least: int = 2) -> Callable[[TrainConfig], str | None]:
    def needs(config: TrainConfig) -> str | None:
        size = config.topology().size(name)
        return None if size >= least else f"it needs {name} {least} or more, and {name} is {size}"

    return needs


def _fixed(**settings: Any) -> Chosen:
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return lambda config: named


SWITCHES: tuple[Switch, ...] = (
    Switch(
        "interleaved",
        "two virtual stages on each pipeline rank; they need the p2p-overlap, too",
        {"parallel.chunks": 1},
        _fixed(parallel__chunks=2, parallel__overlap_p2p=True, parallel__recv_ahead=2),
        needs=_axis("pp"),
    ),
    Switch(
        "parallel-block",
        "attention and feed-forward from the same input",
        {"model.parallel_block": False},
        _fixed(model__parallel_block=True),
    ),
    Switch(
        "window",
        "attention over a quarter of the sequence",
        {"model.window": None},
        lambda config: {"model.window": max(1, config.model.sequence // 4)},
    ),
    Switch(
        "ring",
        "tensor-parallel collectives cut into messages beside the multiplication",
        {"parallel.ring": False},
        _fixed(parallel__ring=True),
        needs=_axis("tp"),
    ),
    Switch(
        "p2p-overlap",
        "sends that are not waited for, receives posted two actions ahead",
        {"parallel.overlap_p2p": False, "parallel.recv_ahead": 0},
        _fixed(parallel__overlap_p2p=True, parallel__recv_ahead=2),
        needs=_axis("pp"),
    ),
    Switch(
        "dp-overlap",
        "data-parallel communication beside compute",
        {"parallel.overlap": False},
        _fixed(parallel__overlap=True),
        needs=_axis("dp"),
    ),
    Switch(
        "large-batch",
        "LAMB with four times the micro-batches of a step",
        {"train.optimizer": "adamw"},
        lambda config: {
            "train.optimizer": "lamb",
            "train.batch": 4 * config.train.batch,
            "train.microbatches": 4 * config.train.microbatches,
        },
    ),
    Switch(
        "pods",
        "gradients reduced inside two pods, then across",
        {"parallel.pod": 0},
        lambda config: {"parallel.pod": config.parallel.dp // 2},
        is_for_speed=False,
        needs=_axis("dp", 4),
    ),
    Switch(
        "zero-2",
        "gradients shared by the replicas too",
        {"parallel.zero": 1},
        _fixed(parallel__zero=2),
        is_for_speed=False,
        needs=_axis("dp"),
    ),
    Switch(
        "zero-3",
        "weights shared by the replicas too",
        {"parallel.zero": 1},
        _fixed(parallel__zero=3),
        is_for_speed=False,
        needs=_axis("dp"),
    ),
    Switch(
        "recompute-selective",
        "the insides of attention and activation computed again in the backward",
        {"train.recompute": "none"},
        _fixed(train__recompute="selective"),
        is_for_speed=False,
    ),
    Switch(
        "recompute-full",
        "whole layers computed again in the backward",
        {"train.recompute": "none"},
        _fixed(train__recompute="full"),
        is_for_speed=False,
    ),
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration to measure; ``settings`` is what differs from the base."""

    name: str
    meaning: str
    settings: Settings
    config: TrainConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: the base first, then the control (the base again), each switch alone, and all together.

    ``skipped``: by switch, why it is left out.
    """

    variants: tuple[Variant, ...]
    base: Settings
    skipped: Mapping[str, str]


def with_settings(config: TrainConfig, settings: Settings) -> TrainConfig:
    """The configuration with some settings changed; a text becomes the enumeration that the setting has."""
    for name, value in settings.items():
        section_name, _, key = name.partition(".")
        if not key:
            config = replace(config, **{name: value})
            continue
        section = getattr(config, section_name)
        kind = type(getattr(section, key))
        typed = kind(value) if isinstance(value, str) and kind is not type(None) else value
        config = replace(config, **{section_name: replace(section, **{key: typed})})
    return config


def plan(config: TrainConfig, only: Sequence[str] = (), switches: Sequence[Switch] = SWITCHES) -> Plan:
    """The variants of a configuration. ``only`` names the switches to measure; none: all.

    In the base every switch is off. One that can do nothing here, or that the trainer refuses, is skipped with the
    reason. Raises UsageError for an unknown name, and where the base itself cannot be trained.
    """
    known = {switch.name: switch for switch in switches}
    for name in only:
        if name not in known:
            raise UsageError(f"There is no switch {name!r}: choose among {', '.join(known)}.")
    world = config.topology().world_size
    config.validate(world)
    skipped: dict[str, str] = {}
    base, off = config, dict[str, Any]()
    for switch in switches:
        tried = with_settings(base, switch.off)
        reason = switch.needs(config) or _refusal(tried, world)
        if reason is None:
            base, off = tried, {**off, **switch.off}
        else:
            skipped[switch.name] = reason
    variants = [Variant(BASE, "every switch off", {}, base), Variant(CONTROL, "the base once more", {}, base)]
    together: dict[str, Any] = {}
    for switch in switches:
        if switch.name in skipped or (only and switch.name not in only):
            continue
        on = switch.on(base)
        reason = _refusal(with_settings(base, on), world)
        if reason is not None:
            skipped[switch.name] = reason
            continue
        variants.append(Variant(switch.name, switch.meaning, on, with_settings(base, on)))
        if switch.is_for_speed and _refusal(with_settings(base, {**together, **on}), world) is None:
            together.update(on)
    if len(variants) > 3:
        meaning = "all that are meant for speed"
        variants.append(Variant(TOGETHER, meaning, together, with_settings(base, together)))
    shown = {name: reason for name, reason in skipped.items() if not only or name in only}
    return Plan(tuple(variants), off, shown)


def _refusal(config: TrainConfig, world: int) -> str | None:
    """Why the trainer would not run a configuration; None where it would."""
    try:
        config.validate(world)
    except UsageError as error:
        return str(error)
    return None
