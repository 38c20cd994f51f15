"""What to do next, for each kind of root: the steps of an engineer on call, in their order."""

from __future__ import annotations

import signal

from .verdict import CulpritKind, HangCulprit, listed

_RESTART = "end the attempt and start it from its last checkpoint"


def next_steps(culprit: HangCulprit) -> tuple[str, ...]:
    """Sentences without a full stop, the first one first; they name the culprit's ranks and hosts."""
    who = f"rank{'s' if len(culprit.ranks) > 1 else ''} {listed(culprit.ranks)}"
    hosts = ", ".join(culprit.hosts[:4]) or f"the host{'s' if len(culprit.ranks) > 1 else ''} of {who}"
    where = culprit.segment or "the operation"
    group = f"group {culprit.group}" if culprit.group else "the group"
    steps = _STEPS[culprit.kind]
    if culprit.kind == CulpritKind.DEAD and culprit.exit_code is not None:
        steps = _of_death(culprit.exit_code)
    return tuple(step.format(who=who, hosts=hosts, where=where, group=group) for step in steps)


def _of_death(code: int) -> tuple[str, ...]:
    """By how the process ended: from outside, on a fault of its own, or because it chose to."""
    if code == -signal.SIGKILL:
        return _STEPS[CulpritKind.DEAD]
    if code in (-signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP):
        return (
            "find out who sent the signal to {who}: a scheduler (preemption, a time limit), an operator, a launcher",
            f"{_RESTART}: the other ranks only wait",
        )
    if code < 0:
        return (
            "look for the core file of {who} (coredumpctl on {hosts}) and at the last lines of its log: native code "
            "crashed, such as a kernel extension, a library or a driver",
            "look at the kernel log of {hosts} (dmesg -T: segfault, Xid, machine check) at that moment",
            "compare the versions of CUDA, NCCL and extensions on {hosts} with those of others; fence it if nobody "
            "else crashes",
            f"{_RESTART}: the other ranks only wait",
        )
    return (
        f"read the last lines of the log of {{who}}: its own code ended it with {code} (sys.exit, os._exit, a library "
        "that gave up), and no exception was recorded",
        f"mend what it says, then {_RESTART}",
    )


_STEPS: dict[CulpritKind, tuple[str, ...]] = {
    CulpritKind.DEAD: (
        "look at the end of the kernel log of {hosts} (dmesg -T: OOM killer, Xid, machine check) at that moment",
        "fence {hosts} if the log shows a fault of the hardware; if the OOM killer ended it, give it more host memory",
        f"{_RESTART}: the other ranks only wait",
    ),
    CulpritKind.EXCEPTION: (
        "read the traceback of {who} above: it is the first one, those of other ranks came after it",
        f"mend what it says, then {_RESTART}",
    ),
    CulpritKind.HOST_STUCK: (
        "look at the Python stack of {who} (py-spy dump --pid PID on {hosts}; with MEGASCOPE_STACKS=1 the agent has "
        "taken it), and at {where}",
        "if it reads or writes: look at the file system of {hosts} (a process in state D waits for it)",
        "if its process is stopped (state T): kill -CONT it, and find out who stopped it",
        f"if it does not come back: fence {{hosts}}, {_RESTART}",
    ),
    CulpritKind.DEVICE_STUCK: (
        "look for Xid errors and the state of the GPU on {hosts} (dmesg -T, nvidia-smi -q)",
        "run a GPU test and an all-reduce inside {hosts} before it takes part again",
        f"fence {{hosts}}, {_RESTART}: a stuck kernel does not come back",
    ),
    CulpritKind.MISMATCH: (
        "compare the calls of {who} in {where} with those of its peers in {group}: type, size, element type, order",
        "look for a branch on data or rank (uneven batches, an optional layer, a condition on the loss) before it",
        "set TORCH_DISTRIBUTED_DEBUG=DETAIL for a short run: torch then checks every collective",
    ),
    CulpritKind.MISSING_CALL: (
        "look for a branch of {who} that leaves out {where}: a return or continue, an exception that was swallowed, a "
        "shorter loader",
        "set TORCH_DISTRIBUTED_DEBUG=DETAIL for a short run: torch then names the rank that is missing",
    ),
    CulpritKind.ITERATION_DESYNC: (
        "compare the lengths of the loaders and the resumed step of {who} with those of the others",
        "make every rank end its epoch at the same step (drop_last, Join, a length that is agreed on)",
    ),
    CulpritKind.DIVERGED: (
        "find the condition on which {who} took another branch than its peers; conditions on local values (a loss, a "
        "flag, a file) have to be agreed on by all ranks",
    ),
    CulpritKind.ORDER_INVERSION: (
        "make all ranks issue the collectives of these groups in one order; {who} do not",
        "communicators of several groups that run at once need one order on all ranks, or one stream",
    ),
    CulpritKind.P2P_CYCLE: (
        "let every second rank receive before it sends, or give all of them to one batch_isend_irecv",
        "compare the pipeline schedules of {who}: both ends of an edge need the same order of messages",
    ),
    CulpritKind.NETWORK: (
        "look at the links between {hosts}: port counters (perfquery, ethtool -S), switch log, NCCL's warnings",
        "run an all-reduce over {group} alone, halve the ranks until the bad link is found",
        "set NCCL_DEBUG=WARN and NCCL_IB_TIMEOUT as usual for the fabric; dumps of the Flight Recorder tell more",
    ),
    CulpritKind.LIBRARY: (
        "all have joined {where}: compare the versions of NCCL and the driver on {hosts}",
        "set NCCL_DEBUG=INFO for the next run, and try NCCL_ALGO, NCCL_PROTO or NCCL_P2P_DISABLE one at a time",
    ),
    CulpritKind.INIT: (
        "look at the log of {who}: it did not come out of its set-up, the others wait for it at the rendezvous",
        "check MASTER_ADDR, ports and name resolution from {hosts}, and that all ranks have one world size",
    ),
}
