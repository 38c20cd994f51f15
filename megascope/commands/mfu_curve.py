"""What ``megascope simulate --mfu-curve`` prints: MFU over the number of GPUs, with its assumptions."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..profiler.errors import UsageError
from .common import print_json, print_report, progress_of

if TYPE_CHECKING:
    from rich.table import Table

    from ..trainer.simulator.mfu_curve import Curve


def show_mfu_curve(model: str, gpus: str | None, store: Path | None, *, json: bool) -> None:
    """Compute the curve, keep it in the store if there is one, and print it."""
    from ..collectors.result_files import MFU_CURVE, write_result  # noqa: PLC0415
    from ..collectors.verdicts import to_json  # noqa: PLC0415
    from ..trainer.simulator.mfu_curve import mfu_curve  # noqa: PLC0415

    started_ns = time.time_ns()
    with progress_of("simulating") as progress:
        curve = mfu_curve(model, _numbers(gpus), progress)
    result = {"schema": 1, "started_ns": started_ns, **to_json(curve)}
    path = write_result(store, MFU_CURVE, result) if store is not None else None
    if json:
        print_json(result)
        return
    _print(curve)
    if path is not None:
        sys.stdout.write(f"kept in {path}\n")


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--gpus {text} is no list of numbers: give them as 256,1024,12288.") from None


def _print(curve: Curve) -> None:
    print_report(f"MFU of the {curve.model.upper()} model, simulated; {curve.scaling}")
    print_report(_points(curve))
    print_report("\nPoints of MFU, first: a technique alone; second: lost by leaving it out of all")
    print_report(_techniques(curve))
    print_report(f"\nOne after the other, at {curve.ladder_gpus:,} GPUs; published: {curve.source}")
    print_report(_ladder(curve))
    print_report("\nAssumptions")
    for one in curve.assumptions:
        print_report(f"- {one}")


def _points(curve: Curve) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in ("GPUs", "sequences", "step s, none", "step s, all", "MFU none", "MFU all", "published (ours less it)"):
        table.add_column(name, justify="right")
    for one in curve.points:
        published = ", ".join(
            f"{system} {mfu:.1%} ({100 * one.difference[system]:+.1f})" for system, mfu in one.published.items()
        )
        table.add_row(
            f"{one.gpus:,}", f"{one.sequences:,}", f"{one.step_s_none:.2f}", f"{one.step_s_all:.2f}",
            f"{one.mfu_none:.1%}", f"{one.mfu_all:.1%}", published,
        )  # fmt: skip
    return table


def _techniques(curve: Curve) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("technique")
    for point in curve.points:
        table.add_column(f"{point.gpus:,}", justify="right")
    for name in curve.techniques:
        cells = [f"{100 * point.alone[name]:+.1f} {100 * point.without[name]:+.1f}" for point in curve.points]
        table.add_row(name, *cells)
    return table


def _ladder(curve: Curve) -> Table:
    from rich.table import Table  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    for name in ("added", "ours", "published", "ours less published"):
        table.add_column(name, justify="left" if name == "added" else "right")
    for one in curve.ladder:
        theirs = "-" if one.published is None else f"{100 * one.published:+.1f}"
        less = "-" if one.published is None else f"{100 * (one.gain - one.published):+.1f}"
        table.add_row(", ".join(one.techniques), f"{100 * one.gain:+.1f}", theirs, less)
    return table
