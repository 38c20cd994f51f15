"""Who this process is in the job: run, attempt, rank; minted once for all ranks of an attempt."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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


def identify(
    run: str | None = None, attempt: int | None = None, environment: Mapping[str, str] | None = None
) -> Identity:
    """Find out who this process is.

    Run and attempt come from the arguments, else from the launcher's environment (``MEGASCOPE_RUN`` and
    ``MEGASCOPE_ATTEMPT``, or torchrun's), else rank 0 mints them and tells the others through the rendezvous store of
    an initialised process group; else from the launcher's own process, which all ranks of a host share.
    """
    env = os.environ if environment is None else environment
    rank, world_size = int(env.get("RANK", 0)), int(env.get("WORLD_SIZE", 1))
    local_rank = int(env.get("LOCAL_RANK", rank))
    run = run or env.get(RUN_VARIABLE)
    if attempt is None and ATTEMPT_VARIABLE in env:
        attempt = int(env[ATTEMPT_VARIABLE])
    torchrun = env.get("TORCHELASTIC_RUN_ID", "none")
    if run is None and torchrun != "none":
        run = torchrun
    if attempt is None and "TORCHELASTIC_RESTART_COUNT" in env:
        attempt = int(env["TORCHELASTIC_RESTART_COUNT"])
    if run is None:
        run = _shared_name(rank) or (_launcher_name() if world_size > 1 else mint_run())
    return Identity(run, attempt or 0, rank, world_size, local_rank)


def mint_run(prefix: str | None = None) -> str:
    """A new run name: what runs, the UTC time, and four letters against collisions."""
    name = prefix or Path(sys.argv[0] or "run").stem or "run"
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return f"{''.join(c if c.isalnum() or c in '-_.' else '-' for c in name)[:80]}-{stamp}-{secrets.token_hex(2)}"


def _shared_name(rank: int) -> str | None:
    """Rank 0's name through the store of the default process group; None where there is none."""
    torch_distributed = sys.modules.get("torch.distributed")  # not imported yet means not initialised
    if torch_distributed is None or not torch_distributed.is_available() or not torch_distributed.is_initialized():
        return None
    store = torch_distributed.distributed_c10d._get_default_store()
    if rank == 0:
        store.set(_STORE_KEY, mint_run())
    return str(store.get(_STORE_KEY).decode())


def _launcher_name() -> str:
    """A name made from the parent process: the same for all ranks that one launcher started on this host."""
    import psutil  # noqa: PLC0415  (a tenth of a second that only this road needs)

    parent = psutil.Process(os.getppid())
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(parent.create_time()))
    return f"{Path(sys.argv[0] or 'run').stem}-{stamp}-{parent.pid}"
