"""``megascope ablate``: what each of the trainer's techniques does to its speed here."""

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
    from ..trainer.ablation.switches import Plan


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
    the control, shows what no change looks like.

    Example: megascope ablate my.toml --only dp-overlap --only ring --json
    """
    from ..trainer.ablation.running import run_variants  # noqa: PLC0415
    from ..trainer.ablation.switches import plan  # noqa: PLC0415

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
    from ..trainer.ablation.estimating import effects  # noqa: PLC0415
    from ..trainer.ablation.switches import BASE  # noqa: PLC0415

    wall, cpu = (effects(runs, BASE, what) for what in ("wall_ns", "cpu_ns"))
    variants = []
    for variant in plan.variants:
        own = [run for run in runs if run.variant == variant.name]
        measured: dict[str, Any] = {}
        if own:
            measured = {
                "step_ms": median(run.wall_ns for run in own) / 1e6,
                "tokens_per_second": median(run.tokens * 1e9 / run.wall_ns for run in own),
                "messages_per_step": median(run.messages for run in own),
                "bytes_per_step": median(run.size_bytes for run in own),
            }
        for name, found in (("speed", wall), ("cpu", cpu)):
            effect = found.get(variant.name)
            if effect is not None:
                measured[f"{name}_percent"] = effect.percent
                measured[f"{name}_interval_percent"] = [effect.low, effect.high]
                measured[f"{name}_visible"] = effect.is_visible
        variants.append(
            {"name": variant.name, "meaning": variant.meaning, "settings": dict(variant.settings), **measured}
        )
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


def _print(result: dict[str, Any]) -> None:
    layout = " x ".join(f"{axis} {size}" for axis, size in result["layout"].items())
    is_measured = "step_ms" in result["variants"][0]
    ran = f"{result['repeats']} interleaved repeats of {result['steps']} steps; " if is_measured else ""
    print_report(f"{layout}; {ran}in the base: {_settings(result['base'])}")
    print_report(_table(result) if is_measured else _list(result))
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


def _table(result: dict[str, Any]) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("variant")
    for name in ("step ms", "tokens/s", "speed", "95 % interval", "", "CPU of rank 0", "messages", "kB a step"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result["variants"]:
        speed, interval, word = _effect(one, "speed")
        cpu, _, cpu_word = _effect(one, "cpu")
        table.add_row(
            one["name"], f"{one['step_ms']:.1f}", f"{one['tokens_per_second']:,.0f}", speed, interval, word,
            cpu if one.get("cpu_visible") else cpu_word, f"{one['messages_per_step']:.0f}",
            f"{one['bytes_per_step'] / 1e3:,.0f}",
        )  # fmt: skip
    return table


def _effect(one: dict[str, Any], name: str) -> tuple[str, str, str]:
    """An effect, its interval, and what it is, in words; empty for the base."""
    if f"{name}_percent" not in one:
        return "", "", ""
    low, high = one[f"{name}_interval_percent"]
    percent = one[f"{name}_percent"]
    word = "not visible here" if not one[f"{name}_visible"] else "more" if percent > 0 else "less"
    return f"{percent:+.1f} %", f"{low:+.1f} to {high:+.1f}", word
