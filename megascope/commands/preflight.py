"""``megascope preflight``: checks of the machines before a job."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import MegascopeError, UsageError
from .common import Json, print_json, print_report, progress_of

if TYPE_CHECKING:
    from ..trainer.preflight.measurements import Report
    from ..trainer.preflight.starting import Settings


def preflight(
    config: Annotated[
        Path | None, Parameter(help="The job's configuration in TOML: layout, checkpoints, store.")
    ] = None,
    /,
    *overrides: Annotated[str, Parameter(allow_leading_hyphen=True, help="Settings that win over the file.")],
    quick: Annotated[
        bool, Parameter(negative="", help="Small sizes and short measurements: under half a minute.")
    ] = False,
    nproc: Annotated[
        int | None,
        Parameter(help="Processes on this host: the layout's size, or one a GPU, or 4.", validator=Number(gte=1)),
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="What to measure.")] = "auto",
    folder: Annotated[Path | None, Parameter(help="Folder for checkpoints, to write to and read back.")] = None,
    floor: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", help="Least value (most, of a latency), as matmul.rate=600; may be given several times."
        ),
    ] = (),
    timeout_s: Annotated[
        float | None, Parameter(help="Seconds after which a check counts as hung: 10 if quick, else 120.")
    ] = None,
    store: Annotated[Path | None, Parameter(help="Store to keep the result in, for the page Preflight.")] = None,
    json: Json = False,
) -> int:
    """Check the machines before a job: compute, memory, every pair that will talk, storage, clocks, network ports.

    Names the rank, host or pair that is worse than its peers or than a floor. On one host it starts the processes
    itself. On several, start it under torchrun:
    torchrun --nnodes 2 --nproc-per-node 8 ... -m megascope preflight CONFIG

    Example: megascope preflight my.toml --quick --floor matmul.rate=600 --json
    """
    floors = _floors(floor)
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError:
        raise MegascopeError(
            "Preflight needs torch, which is not installed: pip install 'megascope[trainer]'."
        ) from None
    from ..trainer.preflight.starting import run_preflight  # noqa: PLC0415

    settings, kept = _settings(config, overrides, quick, nproc, device, folder, timeout_s, floors)
    with progress_of("checking") as bar:
        report = run_preflight(settings, progress=lambda _, done, total: bar(done, total))
    if report is not None:
        _tell(report, store or kept, json=json)
    return 0


def _settings(
    path: Path | None,
    overrides: tuple[str, ...],
    quick: bool,
    nproc: int | None,
    device: str,
    folder: Path | None,
    timeout_s: float | None,
    floors: dict[str, float],
) -> tuple[Settings, Path | None]:
    """What to check, and the store that the configuration names."""
    from ..trainer.config import load_config  # noqa: PLC0415
    from ..trainer.preflight.starting import Settings  # noqa: PLC0415

    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise UsageError(f"--timeout-s {timeout_s} is no time limit: give seconds above 0.")
    common: dict[str, Any] = {
        "quick": quick, "nproc": nproc, "device": device, "timeout_s": timeout_s, "floors": floors,
    }  # fmt: skip
    if path is None and not overrides:
        return Settings(folder=folder, **common), None
    config = load_config(path, overrides)
    chosen = Settings(
        topology=config.topology(), chunks=config.parallel.chunks, folder=folder or config.checkpoint.folder, **common
    )
    return chosen, config.record.store if path is not None else None


def _floors(texts: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for text in texts:
        name, equals, number = text.partition("=")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not equals or not math.isfinite(value):
            raise UsageError(f"--floor {text} is not CHECK.METRIC=NUMBER: give it as matmul.rate=600.")
        found[name.strip()] = value
    return found


def _tell(report: Report, store: Path | None, *, json: bool) -> None:
    from ..collectors.result_files import PREFLIGHT, write_result  # noqa: PLC0415
    from ..collectors.verdicts import to_json  # noqa: PLC0415
    from ..trainer.preflight.report import render  # noqa: PLC0415

    result = to_json(report)
    path = write_result(store, PREFLIGHT, result) if store is not None else None
    if json:
        print_json(result)
        return
    print_report(render(report))
    if path is not None:
        print_report(f"kept in {path}")
