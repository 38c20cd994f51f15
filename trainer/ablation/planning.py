"""The variants of a configuration: the base, each switch alone, and all that are meant for speed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...profiler.errors import UsageError
from ..config import TrainConfig
from .switches import SWITCHES, Settings, Switch

TOGETHER, BASE, CONTROL = "together", "base", "control"


@dataclass(frozen=True, slots=True)
class Variant:
    """A configuration to measure. ``settings`` is what differs from the base, ``against`` what it is compared with."""

    name: str
    meaning: str
    settings: Settings
    config: TrainConfig
    against: str = BASE


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: the base first, then the control (the base again), each switch alone, and all together.

    A switch that does nothing by itself has two variants: with what it needs, and with the technique besides.
    ``skipped``: by switch, why it is left out.
    """

    variants: tuple[Variant, ...]
    base: Settings
    skipped: Mapping[str, str]

    def against(self) -> dict[str, str]:
        """By variant, what it is compared with; the base is compared with nothing."""
        return {variant.name: variant.against for variant in self.variants if variant.name != BASE}


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

    In the base every switch is off, and there are no faults on purpose. A switch that can do nothing here, or that the
    trainer refuses, is skipped with the reason. Raises UsageError for an unknown name, and where the base itself cannot
    be trained.
    """
    known = {switch.name: switch for switch in switches}
    for name in only:
        if name not in known:
            raise UsageError(f"There is no switch {name!r}: choose among {', '.join(known)}.")
    world = config.topology().world_size
    config.validate(world)
    skipped: dict[str, str] = {}
    base, off = replace(config, fault=()), dict[str, Any]()
    for switch in switches:
        tried = with_settings(base, switch.off)
        reason = switch.needs(config) or _refusal(tried, world)
        if reason is None:
            base, off = tried, {**off, **switch.off}
        else:
            skipped[switch.name] = reason
    variants = [Variant(BASE, "every switch off", {}, base), Variant(CONTROL, "the base once more", {}, base)]
    together, joined = dict[str, Any](), 0
    for switch in switches:
        if switch.name in skipped or (only and switch.name not in only):
            continue
        on = {**switch.beside, **switch.on(base)}
        reason = _refusal(with_settings(base, on), world)
        if reason is not None:
            skipped[switch.name] = reason
            continue
        variants += _alone(switch, base, on)
        if switch.is_for_speed and _refusal(with_settings(base, {**together, **on}), world) is None:
            together.update(on)
            joined += 1
    if joined > 1:
        meaning = "all that are meant for speed"
        variants.append(Variant(TOGETHER, meaning, together, with_settings(base, together)))
    shown = {name: reason for name, reason in skipped.items() if not only or name in only}
    return Plan(tuple(variants), off, shown)


def _alone(switch: Switch, base: TrainConfig, on: Settings) -> list[Variant]:
    """The variants of one switch."""
    if not switch.beside:
        return [Variant(switch.name, switch.meaning, on, with_settings(base, on))]
    needed, off = with_settings(base, switch.beside), f"{switch.name}-off"
    return [
        Variant(off, switch.beside_meaning, switch.beside, needed),
        Variant(switch.name, switch.meaning, on, with_settings(base, on), against=off),
    ]


def _refusal(config: TrainConfig, world: int) -> str | None:
    """Why the trainer would not run a configuration; None where it would."""
    try:
        config.validate(world)
    except UsageError as error:
        return str(error)
    return None
