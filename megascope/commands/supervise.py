"""``megascope supervise``: keeps a training job going through faults, on hosts and spares that join it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from ..profiler.errors import UsageError
from ..profiler.identity import RUN_VARIABLE, mint_run, next_attempt_in
from ..profiler.opening import default_spool
from ..profiler.store_address import store_address, store_url
from .common import Json, print_json
from .node import parse_address
from .train import load_training

if TYPE_CHECKING:
    from ..trainer.supervisor.hub import Hub
    from ..trainer.supervisor.job import Job

POSITIVE = Number(gt=0)
DEFAULT_CHECK = "{python} -P -m megascope preflight --quick --json"


def supervise(
    config: Annotated[Path, Parameter(help="Configuration in TOML.")],
    /,
    *overrides: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Settings that win over the file, such as --model.layers 8.")
    ],
    hosts: Annotated[int, Parameter(help="Hosts that the job trains on; its ranks are spread evenly.")] = 1,
    spares: Annotated[int, Parameter(help="Hosts more, which wait in reserve; any number may join later.")] = 0,
    listen: Annotated[
        str | None, Parameter(help="Where nodes join, as ADDRESS:PORT; then MEGASCOPE_TOKEN has to be set.")
    ] = None,
    local: Annotated[bool, Parameter(negative="", help="Simulate the hosts on this machine.")] = False,
    self_check: Annotated[
        str, Parameter(help="Command that checks a suspected host: exit code 0 sound, 1 not. '' for none.")
    ] = DEFAULT_CHECK,
    max_restarts: Annotated[int, Parameter(help="Restarts in a day; then the run stops.")] = 20,
    max_fences: Annotated[int, Parameter(help="Hosts fenced in a day; then the run stops.")] = 4,
    min_confidence: Annotated[float, Parameter(help="Least confidence of a verdict that fences a host.")] = 0.8,
    min_lost_share: Annotated[
        float,
        Parameter(help="Least share of the step time lost to a host that is replaced without a sign of slowness."),
    ] = 0.05,
    stragglers: Annotated[
        float,
        Parameter(
            help="Seconds from one look for stragglers without a sign of slowness to the next; 0: none.",
            validator=Number(gte=0),
        ),
    ] = 600.0,
    skip_data: Annotated[
        bool, Parameter(negative="", help="Pass over a batch at which the job fails again and again.")
    ] = False,
    roll_back: Annotated[
        bool,
        Parameter(
            negative="",
            help="Where the loss diverges, go back to the checkpoint from before, and pass over the batches since.",
        ),
    ] = False,
    first_step_within: Annotated[
        float, Parameter(help="Seconds for the first step of an attempt, compilation included.", validator=POSITIVE)
    ] = 300.0,
    stalled_after: Annotated[
        float,
        Parameter(help="Seconds without a step, or 20 median steps, that are a stall.", validator=POSITIVE),
    ] = 120.0,
    threshold: Annotated[
        tuple[str, ...],
        Parameter(help="Threshold of a detector as NAME=VALUE, such as grad_factor=5; repeatable.", negative=""),
    ] = (),
    json: Json = False,
) -> int:
    """Train, and recover from faults: diagnose, fence the culprit's host, take a spare, go on from the checkpoint.

    Each host runs `megascope node`; those beyond --hosts wait as spares. With --local they are simulated here.

    Example: megascope supervise my.toml --hosts 2 --spares 1 --local
    """
    from ..trainer.supervisor.history import run_folder  # noqa: PLC0415
    from ..trainer.supervisor.hub import Hub, open_listener  # noqa: PLC0415
    from ..trainer.supervisor.job import Job, Patience, check_job  # noqa: PLC0415
    from ..trainer.supervisor.lease import Lease  # noqa: PLC0415
    from ..trainer.supervisor.limits import Limits  # noqa: PLC0415
    from ..trainer.supervisor.reporting import as_json, lines  # noqa: PLC0415
    from ..trainer.supervisor.resolved import write_resolved  # noqa: PLC0415
    from ..trainer.supervisor.supervisor import Supervisor  # noqa: PLC0415
    from ..trainer.supervisor.thresholds import thresholds_of  # noqa: PLC0415

    chosen = load_training(config, overrides)
    if (url := store_url(chosen.record.store)) is not None:
        raise UsageError(f"A supervised job keeps its journal and fences in its store, not in {url}: name a folder.")
    check_job(chosen, hosts)
    thresholds = thresholds_of(threshold)
    limits = Limits(
        max_restarts=max_restarts,
        max_fences=max_fences,
        min_confidence=min_confidence,
        min_lost_share=min_lost_share,
        skip_data=skip_data,
        roll_back=roll_back,
    )
    address, token = _where(listen, local)
    run = chosen.record.run or os.environ.get(RUN_VARIABLE) or mint_run(config.stem)
    store = store_address(chosen.record.store)
    store.mkdir(parents=True, exist_ok=True)
    say = _say_now if not json else _say_aside
    lease = Lease(run_folder(store, run), run)
    with lease.held(say), contextlib.closing(Hub(open_listener(*address), token)) as hub:
        job = Job(
            config=write_resolved(chosen, run_folder(store, run) / "config.toml"),
            run=run,
            store=store,
            hosts=hosts,
            spares=spares,
            skip=chosen.data.skip,
            checkpoints=chosen.checkpoint.folder,
            world_size=chosen.topology().world_size,
            steps=chosen.train.steps,
            self_check=tuple(shlex.split(self_check)),
            limits=limits,
            thresholds=thresholds,
            patience=Patience(start_s=first_step_within, stall_s=stalled_after, stragglers_s=stragglers),
        )
        unused = next_attempt_in(store, default_spool(store))(run)
        supervisor = Supervisor(job, hub, say, unused, lease)
        signal.signal(signal.SIGTERM, lambda *_: supervisor.ask_to_end())
        with _nodes(job, hub, token, hosts + spares if local else 0):
            say(f"run {run}: store {store}; nodes join at {address[0]}:{hub.port}")
            outcome = supervisor.run()
    if json:
        print_json(as_json(run, outcome))
    else:
        for line in lines(run, outcome):
            _say(line)
    if not outcome.finished:
        sys.stderr.write(f"megascope: {outcome.reason}\n")
    return 0 if outcome.finished else 1


def _where(listen: str | None, local: bool) -> tuple[tuple[str, int], str]:
    """Where to listen, and the token. Nodes of this machine alone get a token made up for them."""
    from ..trainer.supervisor.wire import TOKEN_VARIABLE, new_token  # noqa: PLC0415

    token = os.environ.get(TOKEN_VARIABLE)
    if local:
        return (("127.0.0.1", 0) if listen is None else parse_address(listen)), token or new_token()
    if listen is None:
        raise UsageError(
            "There is nowhere for nodes to join: give --listen ADDRESS:PORT, or --local to simulate the hosts here."
        )
    if not token:
        raise UsageError(f"{TOKEN_VARIABLE} is not set: nodes run what the supervisor says, so both need a secret.")
    return parse_address(listen), token


@contextlib.contextmanager
def _nodes(job: Job, hub: Hub, token: str, count: int) -> Iterator[None]:
    if not count:
        yield
        return
    from ..trainer.supervisor.history import run_folder  # noqa: PLC0415
    from ..trainer.supervisor.local import local_nodes  # noqa: PLC0415

    log = run_folder(job.store, job.run) / "nodes.log"
    with local_nodes(count, hub.port, token, job.ranks_per_host, log):
        yield


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _say_now(line: str) -> None:
    _say(f"{time.strftime('%H:%M:%SZ', time.gmtime())}  {line}")


def _say_aside(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
