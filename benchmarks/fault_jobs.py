"""One supervised training for `faults`: simulated hosts and a spare, forked from a parent that imported torch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from megascope.collectors.hardware.kernel_log import LOG_VARIABLE
from megascope.trainer.children import die_with
from megascope.trainer.config import TrainConfig, load_config
from megascope.trainer.supervisor.hub import Hub, open_listener
from megascope.trainer.supervisor.job import Job
from megascope.trainer.supervisor.local import environment_of, names, spool_folder
from megascope.trainer.supervisor.reporting import as_json
from megascope.trainer.supervisor.resolved import write_resolved
from megascope.trainer.supervisor.supervisor import Supervisor
from megascope.trainer.supervisor.wire import new_token

from .fault_prods import Prod, small_disk
from .fault_settings import PRODUCT, Settings
from .fault_trials import EVERY, FILL, LAYOUTS, RANKS_PER_HOST, STEPS, Trial

RUN = "trial"


class CannotBeMadeError(Exception):
    """A trial that this machine does not allow: it is left out, and told of."""


class ProddedSupervisor(Supervisor):
    """A supervisor beside which something is broken from outside; it knows nothing of it."""

    prod: Prod

    def turn(self, patience_s: float) -> None:
        """Let a moment pass; break things when it is time."""
        super().turn(patience_s)
        self.prod.poll(self.state, self.shared.observer.seen.last_step)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a trial left: the supervisor's report, losses by step, when the fault acted (UTC ns), what is not stored."""

    report: dict[str, Any]
    losses: dict[int, float]
    fault_ns: int | None
    lost: dict[str, int]


def run_trial(trial: Trial, folder: Path, say: Callable[[str], None], settings: Settings = PRODUCT) -> Ran:
    """Train under a supervisor with the trial's fault, in a process of its own.

    RuntimeError where that fails, CannotBeMadeError where it cannot be tried here.
    """
    answer = folder / "answer.json"
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            die_with(parent)
            answer.write_text(json.dumps(_in_child(trial, folder, say, settings)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    deadline = time.monotonic() + settings.limit_s
    while os.waitpid(pid, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            _kill_nodes(folder)
            raise RuntimeError(f"{trial.name} did not end within {settings.limit_s:g} s")
        time.sleep(0.1)
    _kill_nodes(folder)
    if not answer.exists():
        raise RuntimeError(f"{trial.name} failed")
    value = json.loads(answer.read_text())
    if "cannot" in value:
        raise CannotBeMadeError(value["cannot"])
    losses = {int(step): loss for step, loss in value["losses"].items()}
    return Ran(value["report"], losses, value["fault_ns"], value["lost"])


def _in_child(trial: Trial, folder: Path, say: Callable[[str], None], settings: Settings) -> dict[str, Any]:
    store, checkpoints = folder / "store", folder / "checkpoints"
    store.mkdir(parents=True)
    token = new_token()
    hub = Hub(open_listener("127.0.0.1", 0), token)
    config = config_of(trial, folder)
    world_size, slots = config.topology().world_size, RANKS_PER_HOST[trial.layout]
    hosts = world_size // slots
    disk = small_disk(checkpoints) if trial.prod == FILL else contextlib.nullcontext(True)
    with disk as is_small, spool_folder() as spools:
        if not is_small:
            return {"cannot": "no small file system can be mounted here, and a real disk is not to be filled"}
        nodes = {name: _fork_node(hub, token, name, spools, folder, slots) for name in names(hosts + trial.spares)}
        (folder / "pids").write_text(" ".join(map(str, nodes.values())))
        job = Job(
            config=write_resolved(config, store / "config.toml"),
            run=RUN,
            store=store,
            hosts=hosts,
            spares=trial.spares,
            world_size=world_size,
            steps=config.train.steps,
            checkpoints=config.checkpoint.folder,
            environment={"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"},
            self_check=settings.self_check,
            limits=replace(settings.limits, roll_back=trial.rolls_back),
            patience=settings.patience,
        )
        supervisor = ProddedSupervisor(job, hub, say)
        logs = {name: _kernel_log(folder, name) for name in nodes}
        supervisor.prod = Prod(trial.prod, checkpoints, nodes, logs, trial.at, trial.victim, trial.host)
        outcome = supervisor.run()
        supervisor.prod.mend()
        hub.close()
        for pid in nodes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        _reap(list(nodes.values()))
    report = as_json(RUN, outcome)
    return {"report": report, **_from_store(store, supervisor.prod)}


def config_of(trial: Trial, folder: Path) -> TrainConfig:
    """The configuration of a trial's training. One that goes back keeps all checkpoints: how far is for it to see."""
    layout, keep = trial.layout, STEPS[trial.layout] // EVERY if trial.rolls_back else 2
    sizes = {f"parallel.{axis}": size for axis, size in LAYOUTS[layout].items()}
    chunks, dp, pp = (LAYOUTS[layout].get(name, 1) for name in ("chunks", "dp", "pp"))
    layers, batch, microbatches = (4, 8, 8 // dp) if chunks == 1 else (chunks * pp, 2 * pp, pp)
    settings = {
        "model.layers": layers, "model.width": 32, "model.heads": 4, "model.sequence": 32,
        **sizes, "parallel.bucket-bytes": 32768, "parallel.timeout-s": 300,
        "train.steps": STEPS[layout], "train.batch": batch, "train.microbatches": microbatches,
        "train.log-every": 10,
        "data.limit-bytes": 100_000, "checkpoint.folder": folder / "checkpoints", "checkpoint.every": EVERY,
        "checkpoint.keep": keep,
        "record.store": folder / "store", "record.run": RUN,
    }  # fmt: skip
    config = load_config(None, [part for name, value in settings.items() for part in (f"--{name}", str(value))])
    data = replace(config.data, skip=trial.skip)
    return replace(config, data=data, fault=(trial.fault,) if trial.fault else ())


def _kernel_log(folder: Path, name: str) -> Path:
    return folder / f"{name}.kernel"


def _fork_node(hub: Hub, token: str, name: str, spools: Path, folder: Path, slots: int) -> int:
    _kernel_log(folder, name).touch()
    parent, pid = os.getpid(), os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        os.setsid()
        die_with(parent)
        log = os.open(folder / f"{name}.log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(environment_of(name, spools))
        os.environ[LOG_VARIABLE] = str(_kernel_log(folder, name))  # the machine's own tells of no simulated host
        from megascope.trainer.supervisor.node import NodeSettings, run_node

        port = hub.port
        hub.close()
        code = run_node(NodeSettings(supervisor=("127.0.0.1", port), token=token, slots=slots))
    except BaseException:
        traceback.print_exc(file=sys.stderr)
    finally:
        os._exit(code)


def _reap(pids: list[int]) -> None:
    """Wait for the nodes, which write what is left; those that do not end are killed with all that they started."""
    deadline = time.monotonic() + 40
    left = set(pids)
    while left and time.monotonic() < deadline:
        for pid in list(left):
            if os.waitpid(pid, os.WNOHANG)[0]:
                left.discard(pid)
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _kill_nodes(folder: Path) -> None:
    """Kill the sessions of nodes that a trial left; a session's id is that of the process that began it."""
    path = folder / "pids"
    for pid in map(int, path.read_text().split()) if path.exists() else ():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


LOST = """
    WITH told AS (
      SELECT attempt, rank, max(spans) AS spans, max(lost_spans) AS overwritten FROM heartbeats GROUP BY ALL),
    stored AS (SELECT attempt, rank, count(*) AS spans, max(step) AS step FROM events GROUP BY ALL),
    behind AS (
      SELECT attempt, rank, greatest(max(step) OVER (PARTITION BY attempt) - step - 1, 0) AS steps FROM stored)
    SELECT
      coalesce(sum(greatest(told.spans - coalesce(stored.spans, 0), 0) + told.overwritten), 0)::BIGINT AS spans,
      coalesce(sum(behind.steps), 0)::BIGINT AS steps
    FROM told LEFT JOIN stored USING (attempt, rank) LEFT JOIN behind USING (attempt, rank)
"""
"""Spans that heartbeats told of and the store has not, or that a ring lost unread; last steps that it has not of a rank
and has of others, beyond the one that ranks are apart."""


def _from_store(root: Path, prod: Prod) -> dict[str, Any]:
    from megascope.collectors.reading.store import Store

    with Store(root) as store:
        acted = store.query("SELECT min(first_ns) AS first_ns FROM faults").to_pylist()[0]["first_ns"]
        rows = store.query("SELECT step, min(loss) AS loss FROM steps WHERE loss IS NOT NULL GROUP BY step").to_pylist()
        lost = store.query(LOST).to_pylist()[0]
    losses = {row["step"]: row["loss"] for row in rows}
    is_awaited = bool(prod.name) and prod.acted_ns is None
    return {"losses": losses, "fault_ns": None if is_awaited else acted or prod.acted_ns, "lost": lost}


def remove(folder: Path) -> None:
    """Remove what a trial left on disk."""
    shutil.rmtree(folder, ignore_errors=True)
