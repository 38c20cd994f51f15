"""``megascope ablate``: what each of the trainer's techniques does to its speed, waits, messages and memory here."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.validators import Number

from .common import Json, print_json, print_report, progress_of
from .train import load_training

if TYPE_CHECKING:
    from rich.table import Table

    from ..trainer.ablation.estimating import Run
    from ..trainer.ablation.planning import Plan


def ablate(
    config: Annotated[Path, Parameter(help="Configuration in TOML, as for megascope train.")],
    /,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True, help="Settings that win over the file.")],
    only: Annotated[
        tuple[str, ...], Parameter(negative="", help="A switch to measure, such as dp-overlap; may be given often.")
    ] = (),
    repeats: Annotated[int, Parameter(help="Repeats of every variant.", validator=Number(gte=10))] = 10,
    steps: Annotated[int, Parameter(help="Steps of each run that are counted.", validator=Number(gte=1))] = 8,
    seed: Annotated[int, Parameter(help="Of the order in which variants run.", validator=Number(gte=0))] = 0,
    list_switches: Annotated[
        bool, Parameter(name="--list", negative="", help="Say what would be measured, and run nothing.")
    ] = False,
    json: Json = False,
) -> int:
    """Train with every technique off, each alone, and all together, in turns, and tell the effects with intervals.

    One set of processes on this host trains all variants in random order, repeat after repeat; each is compared with
    the base of its own repeat. An effect whose interval holds 0 is not visible here. The base runs twice: the second,
    the control, shows what no change looks like. Beside the speed stand the exposed waits of a rank for communication
    and data, the messages and bytes of rank 0, and the most memory that a rank needs.

    Example: megascope ablate my.toml --only dp-overlap --only ring --json
    """
    from ..trainer.ablation.planning import plan  # noqa: PLC0415
    from ..trainer.ablation.running import run_variants  # noqa: PLC0415

    planned = plan(load_training(config, overrides), only)
    runs: list[Run] = []
    if not list_switches:
        with progress_of("training") as progress:
            runs = run_variants(planned.variants, repeats=repeats, steps=steps, seed=seed, progress=progress)
    result = _result(planned, runs, repeats, steps)
    if json:
        print_json(result)
    else:
        _print(result)
    return 0


def _result(plan: Plan, runs: list[Run], repeats: int, steps: int) -> dict[str, Any]:
    from ..trainer.ablation.estimating import effects, wait_changes  # noqa: PLC0415

    against = plan.against()
    wall, cpu = (effects(runs, against, what) for what in ("wall_ns", "cpu_ns"))
    waits = wait_changes(runs, against)
    variants = []
    for variant in plan.variants:
        own = [run for run in runs if run.variant == variant.name]
        measured: dict[str, Any] = {}
        if own:
            measured = _measured(own)
        for name, found in (("speed", wall), ("cpu", cpu)):
            effect = found.get(variant.name)
            if effect is not None:
                measured[f"{name}_percent"] = effect.percent
                measured[f"{name}_interval_percent"] = [effect.low, effect.high]
                measured[f"{name}_visible"] = effect.is_visible
        change = waits.get(variant.name)
        if change is not None:
            measured["exposed_wait_change_ms"] = change.milliseconds
            measured["exposed_wait_interval_ms"] = [change.low, change.high]
            measured["exposed_wait_visible"] = change.is_visible
        named = {"name": variant.name, "meaning": variant.meaning, "settings": dict(variant.settings)}
        variants.append({**named, "against": against.get(variant.name), **measured})
    topology = plan.variants[0].config.topology()
    return {
        "schema": 1,
        "layout": dict(topology.axes),
        "world_size": topology.world_size,
        "repeats": repeats,
        "steps": steps,
        "base": dict(plan.base),
        "variants": variants,
        "skipped": dict(plan.skipped),
    }


def _measured(runs: list[Run]) -> dict[str, Any]:
    """The medians of a variant's runs; None for what could not be measured."""
    waits = [run.wait_ns for run in runs if run.wait_ns is not None]
    sizes = [run.memory_bytes for run in runs if run.memory_bytes is not None]
    shares = [run.mfu for run in runs if run.mfu is not None]
    axes = sorted({axis for one in waits for axis in one})
    return {
        "step_ms": median(run.wall_ns for run in runs) / 1e6,
        "tokens_per_second": median(run.tokens * 1e9 / run.wall_ns for run in runs),
        "messages_per_step": median(run.messages for run in runs),
        "bytes_per_step": median(run.size_bytes for run in runs),
        "exposed_wait_ms": median(sum(one.values()) for one in waits) / 1e6 if waits else None,
        "exposed_wait_ms_by_axis": {axis: median(one.get(axis, 0.0) for one in waits) / 1e6 for axis in axes},
        "memory_bytes": median(sizes) if sizes else None,
        "mfu": median(shares) if shares else None,
    }


def _print(result: dict[str, Any]) -> None:
    layout = " x ".join(f"{axis} {size}" for axis, size in result["layout"].items())
    is_measured = "step_ms" in result["variants"][0]
    ran = f"{result['repeats']} interleaved repeats of {result['steps']} steps; " if is_measured else ""
    print_report(f"{layout}; {ran}in the base: {_settings(result['base'])}")
    if is_measured:
        print_report(_speeds(result))
        print_report("")
        print_report(_needs(result))
    else:
        print_report(_list(result))
    for name, reason in result["skipped"].items():
        print_report(f"Not measured: {name}: {reason}")


def _settings(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in settings.items())


def _list(result: dict[str, Any]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table("variant", "what it is", "settings", box=None, pad_edge=False)
    for one in result["variants"]:
        table.add_row(one["name"], one["meaning"], _settings(one["settings"]))
    return table


def _speeds(result: dict[str, Any]) -> Table:
    """How fast each variant is."""
    table = _columns("step ms", "tokens/s", "MFU", "speed", "95 % interval", "", "CPU of rank 0")
    for one in result["variants"]:
        cpu, _, cpu_word = _effect(one, "cpu")
        table.add_row(
            one["name"], f"{one['step_ms']:.1f}", f"{one['tokens_per_second']:,.0f}", _shown(one["mfu"], 100, "%"),
            *_effect(one, "speed"), cpu if one.get("cpu_visible") else cpu_word,
        )  # fmt: skip
    return table


def _needs(result: dict[str, Any]) -> Table:
    """What a rank waits for in a step of each variant, sends and keeps."""
    axes = sorted({axis for one in result["variants"] for axis in one["exposed_wait_ms_by_axis"]})
    table = _columns("wait ms", "change", "95 % interval", *axes, "messages", "kB", "memory MB")
    for one in result["variants"]:
        waits = one["exposed_wait_ms_by_axis"]
        table.add_row(
            one["name"], _shown(one["exposed_wait_ms"]), *_change(one), *(_shown(waits.get(axis)) for axis in axes),
            f"{one['messages_per_step']:.0f}", f"{one['bytes_per_step'] / 1e3:,.0f}", _shown(one["memory_bytes"], 1e-6),
        )  # fmt: skip
    return table


def _columns(*names: str) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _shown(value: float | None, factor: float = 1, unit: str = "") -> str:
    return "n/a" if value is None else f"{value * factor:,.1f}{unit}"


def _effect(one: dict[str, Any], name: str) -> tuple[str, str, str]:
    """An effect, its interval, and what it is, in words; empty for the base."""
    if f"{name}_percent" not in one:
        return "", "", ""
    low, high = one[f"{name}_interval_percent"]
    percent = one[f"{name}_percent"]
    word = "not visible here" if not one[f"{name}_visible"] else "more" if percent > 0 else "less"
    return f"{percent:+.1f} %", f"{low:+.1f} to {high:+.1f}", word


def _change(one: dict[str, Any]) -> tuple[str, str]:
    """How much longer a rank waits, and the interval; empty for the base."""
    if "exposed_wait_change_ms" not in one:
        return "", ""
    low, high = one["exposed_wait_interval_ms"]
    change = f"{one['exposed_wait_change_ms']:+.1f}" if one["exposed_wait_visible"] else "not visible"
    return change, f"{low:+.1f} to {high:+.1f}"
