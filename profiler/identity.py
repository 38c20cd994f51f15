"""Who this process is in the job: run, attempt, rank; minted once for all ranks of an attempt."""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .store_address import stored_attempts

log = logging.getLogger(__name__)

RUN_VARIABLE = "MEGASCOPE_RUN"
ATTEMPT_VARIABLE = "MEGASCOPE_ATTEMPT"
_STORE_KEY = "megascope/identity"


@dataclass(frozen=True, slots=True)
class Identity:
    """Run and attempt, and this process's place in the attempt."""

    run: str
    attempt: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int = 1


def identify(
    run: str | None = None,
    attempt: int | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    next_attempt: Callable[[str], int] = lambda run: 0,
    prefix: str | None = None,
) -> Identity:
    """Find out who this process is.

    Run and attempt come from the arguments, else from the launcher's environment (``MEGASCOPE_RUN`` and
    ``MEGASCOPE_ATTEMPT``, or torchrun's). What is then missing rank 0 mints, and tells the others through the
    rendezvous store of an initialised process group; without one, the attempt is torchrun's restart count, and the run
    is named after the launcher's process, which all ranks of a host share. ``next_attempt`` gives the first free
    attempt of a run, ``prefix`` the beginning of a minted name.
    """
    env = os.environ if environment is None else environment
    rank, world_size = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
    local_rank = int(env.get("LOCAL_RANK", rank))
    run = run or _given_run(env.get(RUN_VARIABLE), RUN_VARIABLE)
    if attempt is None and ATTEMPT_VARIABLE in env:
        attempt = _given_attempt(env[ATTEMPT_VARIABLE])
    torchrun = env.get("TORCHELASTIC_RUN_ID", "none")
    if run is None and torchrun != "none":
        run = _given_run(torchrun, "TORCHELASTIC_RUN_ID")
    if run is None or attempt is None:
        run, attempt = _mint(run, attempt, rank, world_size, env, next_attempt, prefix)
    return Identity(run, attempt, rank, world_size, local_rank, int(env.get("LOCAL_WORLD_SIZE", 1)))


def is_run_name(name: str) -> bool:
    """Whether a run can be called so: it names a folder."""
    return bool(name) and name not in {".", ".."} and len(name.encode()) <= 200 and not set(name) & set("/\\\0\n=")


def _given_run(name: str | None, variable: str) -> str | None:
    """A run's name from the environment, which stops no training: what cannot be in a name is replaced by dashes."""
    if not name or is_run_name(name):
        return name or None
    usable = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:50].strip(".") or "run"
    log.warning("$%s is %r, which cannot be a run's name: this run is called %s.", variable, name[:80], usable)
    return usable


def _given_attempt(text: str) -> int | None:
    """The number of an attempt from the environment, which stops no training: None where it is none."""
    if text.strip().isdecimal():
        return int(text)
    log.warning("$%s is %r, which is no number: this attempt gets the next free one.", ATTEMPT_VARIABLE, text[:40])
    return None


def _mint(
    run: str | None,
    attempt: int | None,
    rank: int,
    world_size: int,
    env: Mapping[str, str],
    next_attempt: Callable[[str], int],
    prefix: str | None,
) -> tuple[str, int]:
    """What is missing of run and attempt, the same on all ranks."""
    store = rendezvous_store()
    if store is None and world_size > 1:
        restarts = int(env.get("TORCHELASTIC_RESTART_COUNT", 0))
        return run or _launcher_name(prefix), restarts if attempt is None else attempt
    if store is None or rank == 0:
        run = run or mint_run(prefix)
        attempt = next_attempt(run) if attempt is None else attempt
    if store is not None:
        key = f"{_STORE_KEY}/{store_restarts(env)}"
        if rank == 0:
            store.set(key, json.dumps([run, attempt]))
        run, attempt = json.loads(store.get(key))
    assert run is not None
    assert attempt is not None
    return run, attempt


def store_restarts(env: Mapping[str, str]) -> str:
    """What keeps the keys of two incarnations apart in a store that outlives a restart: torchrun's count, if the ranks
    use its agents' store. Else each has a store of its own; then a spare, which counts anew, has the same keys."""
    return env.get("TORCHELASTIC_RESTART_COUNT", "0") if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "0"


def next_attempt_in(store: Path, spool: Path) -> Callable[[str], int]:
    """A function from a run to its first attempt that neither the store nor the spool holds."""

    def find(run: str) -> int:
        taken = [folder.name for folder in (spool / run).glob("*")]
        taken += stored_attempts(store, run)
        return max((int(number) for number in taken if number.isdigit()), default=-1) + 1

    return find


def mint_run(prefix: str | None = None) -> str:
    """A new run name: what runs, the UTC time, and four letters against collisions."""
    name = prefix or _script_name()
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{''.join(c if c.isalnum() or c in '-_.' else '-' for c in name)[:80]}-{stamp}-{secrets.token_hex(2)}"


def _script_name() -> str:
    """The name of what runs; of the package for ``python -m package``."""
    path = Path(sys.argv[0] or "run")
    return (path.parent.name if path.stem == "__main__" else path.stem) or "run"


def rendezvous_store() -> Any:
    """The store of the default process group; None where there is none."""
    torch_distributed = sys.modules.get("torch.distributed")  # not imported yet means not initialised
    if torch_distributed is None or not torch_distributed.is_available() or not torch_distributed.is_initialized():
        return None
    return torch_distributed.distributed_c10d._get_default_store()


def _launcher_name(prefix: str | None) -> str:
    """A name made from the parent process: the same for all ranks that one launcher started on this host."""
    import psutil  # noqa: PLC0415  (a tenth of a second that only this road needs)

    parent = psutil.Process(os.getppid())
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(parent.create_time()))
    return f"{prefix or _script_name()}-{stamp}-{parent.pid}"
