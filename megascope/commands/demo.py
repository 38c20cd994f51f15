"""``megascope demo``: the whole tool on one machine, from training to dashboards."""

from __future__ import annotations

import dataclasses
import socket
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ..profiler.errors import MegascopeError
from ..profiler.identity import mint_run
from .serve import PORT, require_dashboards
from .serve import serve as serve_dashboards
from .stragglers import stragglers
from .train import load_training, run_job, with_place


def demo(
    *overrides: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Settings that win over the demo's, such as --train.steps 60.")
    ],
    folder: Annotated[Path, Parameter(help="Each demo gets a fresh folder in here.")] = Path("runs"),
    healthy: Annotated[bool, Parameter(negative="", help="Slow nobody down: no rank should be named.")] = False,
    serve: Annotated[bool, Parameter(help="Serve the dashboards at the end.")] = True,
    port: Annotated[int, Parameter(help="Port of the dashboards; a free one if it is taken.", validator=PORT)] = 8321,
) -> int:
    """Train a small model with tensor, pipeline and data parallelism here, say who was slow, serve the dashboards.

    Eight processes train on Python's own standard-library sources for about three minutes, and one rank is slowed
    down on purpose. Ctrl-C ends everything.

    Example: megascope demo --no-serve
    """
    if serve:
        require_dashboards()  # said before the training, not after it
    run = mint_run("demo")
    place = folder / run
    path = resources.files("megascope.trainer") / "configs" / "demo.toml"
    with resources.as_file(path) as file:
        config = load_training(file, overrides)
    record = dataclasses.replace(config.record, run=run, store=place / "store")
    config = dataclasses.replace(config, record=record, fault=() if healthy else config.fault)
    place.mkdir(parents=True)
    for line in config.fault:
        sys.stdout.write(f"put in on purpose, to be found: {line}\n")
    sys.stdout.write(f"watch it while it trains: megascope serve {place / 'store'}\n")
    # On CPUs, also where there are GPUs: eight small ranks are to run anywhere, and alike.
    code = run_job(with_place(config, "demo"), None, {"CUDA_VISIBLE_DEVICES": ""})
    if code != 0:
        raise_for(code, place)
    stragglers(place / "store")
    if serve:
        serve_dashboards(place / "store", port=_free_port(port))
    return 0


def raise_for(code: int, place: Path) -> None:
    """KeyboardInterrupt after Ctrl-C, else one sentence that says where to look."""
    if code in {130, 143}:
        raise KeyboardInterrupt
    raise MegascopeError(
        f"The training ended with exit code {code}: see its messages above, and `megascope hang {place / 'store'}`."
    )


def _free_port(wanted: int) -> int:
    """The port that was asked for, or 0 (any free one) where somebody has it: a demo should not fail over that."""
    try:
        with socket.create_server(("127.0.0.1", wanted)):
            return wanted
    except OSError:
        return 0
