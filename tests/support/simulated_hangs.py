"""Simulated jobs that hang, one for each kind of hang, with all that the judge may know of their past."""

from __future__ import annotations

from pathlib import Path

from megascope.collectors.reading.store import Store
from megascope.scoring.trials import COSTS, RECV_AHEAD
from megascope.trainer.simulator.faults import parse_fault
from megascope.trainer.simulator.hangs.ahead import Lead
from megascope.trainer.simulator.hangs.gaps import Hardness
from megascope.trainer.simulator.job import SimulatedJob
from megascope.trainer.simulator.noise import load_noise
from megascope.trainer.simulator.session import Recording
from megascope.trainer.simulator.writing import simulate

LAYOUT = {"pp": 2, "dp": 2, "tp": 2}
WORLD, HOSTS = 8, ("node0000", "node0001")
PAST_STEPS = 4

FAULTS = (
    "dead:rank=5:step=9:segment=backward",
    "dead:host=1:step=9:segment=forward",
    "exception:rank=2:step=9:segment=forward",
    "host-stuck:rank=5:step=9:segment=forward",
    "device-stuck:rank=5:step=9:segment=tp_all_gather",
    "mismatch:rank=1:step=9:segment=tp_reduce_scatter",
    "mismatch:rank=6:step=9:segment=tp_all_gather:differs=size",
    "missing-call:rank=5:step=9:segment=dp_reduce_scatter",
    "missing-call:rank=2:step=9:segment=send_forward:microbatch=2",
    "iteration-desync:rank=5:step=9",
    "diverged:rank=5:step=9",
    "order-inversion:rank=5:step=9",
    "p2p-cycle:rank=1:step=9",
    "network:rank=5:step=9:segment=tp_all_gather",
    "library:rank=5:step=9:segment=dp_all_gather",
    "init:rank=5:step=0",
    "init:rank=5:step=0:segment=setup",
)


def hung_store(root: Path, fault: str, in_flight: int = 1) -> Store:
    """The store of a job of eight ranks on two hosts with a fault; hosts are up to ``in_flight`` operations ahead."""
    parsed = parse_fault(fault)
    job = SimulatedJob(
        layout=LAYOUT, microbatches=4, steps=PAST_STEPS, first_step=max(parsed.first_step - PAST_STEPS, 0), costs=COSTS,
        noise=load_noise("builtin"), gpus_per_host=WORLD // len(HOSTS), recv_ahead=RECV_AHEAD if in_flight == 1 else 0,
    )  # fmt: skip
    recording = Recording(windows=False, span_ranks=None, heartbeat_s=0, clock_offsets=True)
    simulate(job, root, recording, faults=[parsed], hardness=Hardness(lead=Lead(in_flight)))
    return Store(root)
