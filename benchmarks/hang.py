"""How long a hang verdict takes: 12,288 ranks from a store and from dump files; and torch's own analyser beside ours.

Store: a simulated job of pp 8 x dp 192 x tp 8 in which one rank's device gets stuck while hosts are 20 operations
ahead. Dumps: a file for each rank of the same world, of 20 operations in flight in groups of 8 and in the world. Each
is judged in a process of its own, imports not counted, so that its peak of memory is its own. ``exact_by_kind`` is the
share of hang verdicts with exactly the right ranks, and of those that also have the right kind, in simulated jobs.
``torchfrtrace`` runs torch's analyser and this one on such dumps of 64 ranks, and on folders of real dumps: those
beside the project, or those given with ``--dumps``. It holds nothing where torch has no analyser.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from megascope.collectors.reading.store import Store
from megascope.scoring.kinds import SeedSet
from megascope.scoring.scoring import as_json, score
from megascope.scoring.trials import COSTS
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.hangs.ahead import Lead
from megascope.trainer.simulator.hangs.gaps import Hardness
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate
from megascope.viz3d.hang import Judged, diagnose_with_graph
from megascope.viz3d.paths import diagnose_paths, sort_paths

from .machine import report
from .score import OF_HANGS

IN_FLIGHT = 20
WIDTH = 8
"""Ranks of the smaller groups that dumps have."""

TRACES = Path(__file__).parents[2] / "shared/traces/flight_recorder"
FEW = 64
"""Ranks of the written dumps on which torch's analyser runs too."""

TRACER = "from torch.distributed.flight_recorder.fr_trace import main; main()"
_MISSING = re.compile(r"missing ranks: \{([\d, ]+)\}")


def write_store(folder: Path, data: int) -> None:
    """A job of which rank 5 is stuck, seen by the heartbeats of all ranks."""
    job = SimulatedJob(
        layout={"pp": 8, "dp": data, "tp": WIDTH}, steps=4, first_step=5, costs=COSTS, noise=load_noise("builtin")
    )
    fault = parse_fault("device-stuck:rank=5:step=9:segment=tp_all_gather")
    recording = Recording(windows=True, span_ranks=(), heartbeat_s=0)
    simulate(job, folder, recording, faults=[fault], hardness=Hardness(lead=Lead(IN_FLIGHT, reads_results=False)))


def write_dumps(folder: Path, ranks: int) -> None:
    """Dumps of a job of which rank 5 has enqueued nothing more: its group waits for it, and the world for them."""
    folder.mkdir(parents=True)
    world = json.dumps(list(range(ranks)))
    for rank in range(ranks):
        first = rank - rank % WIDTH
        members = json.dumps(list(range(first, min(first + WIDTH, ranks))))
        ahead = 0 if rank == 5 else IN_FLIGHT - 1
        entries = [_entry(number, 1, 100 + number, done=number < 2) for number in range(2 + ahead)]
        if rank != 5:
            entries.append(_entry(len(entries), 0, 9, done=False))
        value = {
            "version": "2.10",
            "pg_config": {
                "0": {"name": "0", "desc": "default_pg", "ranks": world},
                "1": {"name": "1", "desc": "tp", "ranks": members},
            },
            "pg_status": {0: _status(8 + (rank != 5), 8), 1: _status(101 + ahead, 101)},
            "entries": entries,
        }
        (folder / f"_dump_{rank}").write_bytes(pickle.dumps(value, protocol=2))


def _status(enqueued: int, completed: int) -> dict[str, int]:
    return {
        "last_enqueued_collective": enqueued,
        "last_started_collective": completed,
        "last_completed_collective": completed,
    }


def _entry(number: int, group: int, sequence: int, *, done: bool) -> dict[str, Any]:
    moment_ns = 1_790_000_000 * 10**9 + number * 10**6
    return {
        "record_id": number, "pg_id": group, "process_group": (str(group), ("default_pg", "tp")[group]),
        "collective_seq_id": sequence, "p2p_seq_id": 0, "op_id": sequence, "profiling_name": "nccl:all_reduce",
        "time_created_ns": moment_ns, "input_sizes": [[4096, 1, 5120]], "input_dtypes": ["BFloat16"],
        "output_sizes": [[4096, 1, 5120]], "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "scheduled", "retired": done, "timeout_ms": 600_000, "is_p2p": False,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": moment_ns + 1 if done else None,
        "frames": [{"name": "step", "filename": "train.py", "line": 10}] * 4,
    }  # fmt: skip


def measured(part: str, path: Path) -> dict[str, Any]:
    """Judge a store or a folder of dumps, here."""
    began = time.perf_counter()
    judged = _of_store(path) if part == "store" else diagnose_paths(sort_paths([path]))
    seconds = time.perf_counter() - began
    assert judged.snapshot is not None
    states = judged.snapshot.states.values()
    return {
        "ranks": len(states),
        "in_flight_per_rank": round(sum(len(one.flights) for one in states) / max(len(states), 1), 1),
        "seconds": round(seconds, 2),
        "peak_rss_mib": peak_rss_mib(),
        "named": _named(judged),
    }


def peak_rss_mib() -> float | None:
    """Largest resident memory since this program began; that of `getrusage` may be the parent's. None if not known."""
    path = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s*(\d+) kB", path.read_text(), re.MULTILINE) if path.exists() else None
    return None if found is None else round(int(found[1]) / 1024, 1)


def _of_store(path: Path) -> Judged:
    with Store(path) as store:
        return diagnose_with_graph(store, store.attempt())


def _named(judged: Judged) -> list[dict[str, Any]]:
    return [{"kind": str(one.kind), "ranks": list(one.ranks)} for one in judged.verdict.culprits]


def in_process_of_its_own(part: str, path: Path) -> dict[str, Any]:
    """Measure in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.hang", "--part", part, "--path", str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def beside(folder: Path) -> dict[str, Any]:
    """What torch's analyser lists as missing, how often, and what this one names."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", TRACER, str(folder), "--prefix", "_dump_"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    listed = Counter(found for found in _MISSING.findall(done.stdout + done.stderr))
    own = measured("dumps", folder)
    return {
        "exit_status": done.returncode,
        "seconds": round(seconds, 2),
        "missing_ranks": {", ".join(sorted(ranks.split(", "), key=int)): count for ranks, count in listed.items()},
        "ours": {"seconds": own["seconds"], "named": own["named"]},
    }


def exact_by_kind(ranks: int, trials: int) -> dict[str, Any]:
    """Shares of verdicts by how exact they were; per kind, in simulated jobs of so many ranks."""
    found = as_json(score(ranks=ranks, trials=trials * len(OF_HANGS), kinds=OF_HANGS, seeds=SeedSet.REPORT))
    return {
        kind: {"trials": one["trials"], "exact": one["exact"], "right_kind_too": one["recall"]}
        for kind, one in found["kinds"].items()
    }


def measure(data: int, dumps: Sequence[Path], ranks: int, trials: int) -> dict[str, Any]:
    """All parts: the keys on top are those of the store."""
    with tempfile.TemporaryDirectory() as folder:
        store, files = Path(folder) / "store", Path(folder) / "dumps"
        write_store(store, data)
        values = in_process_of_its_own("store", store)
        write_dumps(files, 8 * data * WIDTH)
        size = sum(path.stat().st_size for path in files.iterdir())
        of_dumps = in_process_of_its_own("dumps", files)
    values["dumps"] = {"mean_bytes": round(size / (8 * data * WIDTH)), **of_dumps}
    values["exact_by_kind"] = exact_by_kind(ranks, trials) if trials else None
    values["torchfrtrace"] = side_by_side(dumps) if has_tracer() else {}
    return values


def has_tracer() -> bool:
    """Whether torch is installed with its analyser."""
    try:
        return importlib.util.find_spec("torch.distributed.flight_recorder.fr_trace") is not None
    except ModuleNotFoundError:
        return False


def side_by_side(folders: Sequence[Path]) -> dict[str, Any]:
    """Torch's analyser and this one: on written dumps, and on folders of real ones."""
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / f"written-{FEW}"
        write_dumps(written, FEW)
        return {path.name: beside(path) for path in (written, *folders)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Benchmark of the hang verdict.")
    parser.add_argument("--part", choices=["store", "dumps"], help="judge --path only, and print its values alone")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--data", type=int, default=192, help="data-parallel ranks: there are 64 times as many ranks")
    real = sorted({path.parent for path in TRACES.glob("*/_dump_*")})
    parser.add_argument("--dumps", type=Path, nargs="*", default=real, help="folders of real dumps for torchfrtrace")
    parser.add_argument("--trial-ranks", type=int, default=16)
    parser.add_argument("--trials", type=int, default=1, help="of each kind of hang; 0 for none")
    given = parser.parse_args()
    if given.part is not None:
        sys.stdout.write(json.dumps(measured(given.part, given.path)) + "\n")
        return
    report("hang", measure(given.data, given.dumps, given.trial_ranks, given.trials))


if __name__ == "__main__":
    main()
