"""What the trainer records: every operation once, tagged and numbered, at no cost to the result."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megascope.profiler.box.box import ABSENT_I16, ABSENT_I32, ABSENT_I64, ABSENT_INDEX, BoxReader
from megascope.profiler.box.metadata import MetadataKind, read_metadata
from megascope.profiler.opening import RecorderSettings, open_recorder
from megascope.trainer.loop import TrainResult
from megascope.trainer.schedule import as_rows, training_schedule
from megascope.trainer.worker import run_worker
from support.forkrun import run_ranks
from support.training import run_config, small_config

STEPS, WORLD, MICROBATCHES, CHUNKS = 4, 8, 4, 2
CONFIG = small_config(tp=2, pp=2, dp=2, chunks=CHUNKS, steps=STEPS, train={"eval_every": 4, "eval_batches": 1})
COMMUNICATION = ("tp_", "dp_", "world_", "send_", "recv_")

Span = dict[str, Any]
"""One record of a box, with names in place of indices and None for what is absent."""


class Recorded:
    """The metadata and the spans of all ranks, in the order in which the spans began."""

    def __init__(self, folder: Path, results: list[TrainResult]) -> None:
        self.results = results
        self.metadata: list[dict[str, list[dict[str, Any]]]] = []
        self.spans: list[list[Span]] = []
        for rank in range(WORLD):
            path = folder / f"rank-{rank:05d}.box"
            lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
            for part in (".meta.jsonl", ".steps.jsonl"):
                for _, line in read_metadata(path.with_suffix(part)):
                    lines[line["kind"]].append(line)
            self.metadata.append(lines)
            self.spans.append(read_spans(path, lines))


def read_spans(path: Path, lines: dict[str, list[dict[str, Any]]]) -> list[Span]:
    names = {line["index"]: line["name"] for line in lines[MetadataKind.SEGMENT]}
    groups = {line["index"]: (line["group_kind"], *line["ranks"]) for line in lines[MetadataKind.GROUP]}
    reader = BoxReader(path)
    records = np.concatenate([reader.read_ring(ring, 0).records for ring in range(reader.layout.rings)])
    reader.close()
    assert records.dtype.names is not None
    spans = [dict(zip(records.dtype.names, record, strict=True)) for record in np.sort(records).tolist()]
    absent = {"microbatch": ABSENT_I32, "chunk": ABSENT_I16, "peer": ABSENT_I32}
    absent |= dict.fromkeys(("step", "sequence", "size_bytes", "exposed_ns", "duration_ns"), ABSENT_I64)
    for span in spans:
        span |= {name: None for name, value in absent.items() if span[name] == value}
        span["segment"] = names[span["segment"]]
        span["parent"] = None if span["parent"] == ABSENT_INDEX else names[span["parent"]]
        span["group"] = None if span["group"] == ABSENT_INDEX else groups[span["group"]]
    return spans


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    spool = tmp_path_factory.mktemp("spool")

    def work() -> TrainResult:
        import torch.distributed as dist

        settings = RecorderSettings(run="run", attempt=0, rank=dist.get_rank(), world_size=WORLD, spool=spool)
        return run_worker(CONFIG, open_recorder(settings))

    return Recorded(spool / "run" / "0", run_ranks(WORLD, work))


def is_communication(span: Span) -> bool:
    return bool(span["segment"].startswith(COMMUNICATION))


def test_the_result_is_bit_identical_without_a_recorder(recorded: Recorded) -> None:
    plain = run_config(CONFIG)
    for result, expected in zip(recorded.results, plain, strict=True):
        assert result.losses == expected.losses
        assert result.grad_norms == expected.grad_norms
        assert result.eval_losses == expected.eval_losses


def test_every_operation_is_a_span(recorded: Recorded) -> None:
    """In steps without evaluation: as many as the funnel counted, and as many bytes."""
    for result, spans in zip(recorded.results, recorded.spans, strict=True):
        first = [span for span in spans if is_communication(span) and span["step"] == 0]
        assert Counter(span["segment"] for span in first) == {
            name: traffic.count // STEPS for name, traffic in result.traffic.items()
        }
        for name, traffic in result.traffic.items():
            sizes = [span["size_bytes"] for span in first if span["segment"] == name]
            assert sum(sizes) == traffic.size_bytes // STEPS


def test_operations_are_numbered_without_gap_and_timed(recorded: Recorded) -> None:
    for spans in recorded.spans:
        numbers: dict[Any, list[int]] = defaultdict(list)
        for span in filter(is_communication, spans):
            numbers[span["group"]].append(span["sequence"])
            assert span["duration_ns"] > 0
            assert span["exposed_ns"] >= 0
            assert span["status"] == 0
        for sequence in numbers.values():
            assert sequence == list(range(1, len(sequence) + 1))


def test_work_is_tagged_with_microbatch_and_chunk(recorded: Recorded) -> None:
    everything = {(chunk, microbatch) for chunk in range(CHUNKS) for microbatch in range(MICROBATCHES)}
    for spans in recorded.spans:
        for name in ("forward", "backward"):
            found = [
                (span["chunk"], span["microbatch"]) for span in spans if span["segment"] == name and span["step"] == 1
            ]
            assert len(found) == len(everything)
            assert set(found) == everything
        for span in spans:
            if span["segment"].startswith(("tp_all_gather", "tp_reduce_scatter", "send_", "recv_")):
                assert (span["chunk"], span["microbatch"]) in everything
            if span["segment"] in ("tp_all_gather", "tp_reduce_scatter"):
                assert span["parent"] in ("forward", "backward", "loss", "eval_forward", "eval_loss")


def test_evaluation_has_segments_of_its_own(recorded: Recorded) -> None:
    """Its loss is no training work: it belongs to the step after which it was computed, without a backward."""
    for rank, spans in enumerate(recorded.spans):
        counts = Counter((span["segment"], span["step"]) for span in spans)
        is_last_stage = rank >= WORLD // 2
        for step in range(STEPS):
            assert counts["loss", step] == (MICROBATCHES if is_last_stage else 0)
            is_evaluated = is_last_stage and step == STEPS - 1
            assert counts["eval_loss", step] == (MICROBATCHES if is_evaluated else 0)
            assert counts["eval_forward", step] == (MICROBATCHES * CHUNKS if step == STEPS - 1 else 0)


def test_both_ends_of_a_message_carry_the_same_number(recorded: Recorded) -> None:
    """The k-th send of an edge is its k-th receive: same micro-batch, and the other rank as peer."""
    ends: dict[Any, dict[str, tuple[int, int, int]]] = defaultdict(dict)
    for rank, spans in enumerate(recorded.spans):
        for span in spans:
            direction = span["segment"][:5]
            if direction in ("send_", "recv_"):
                pair = (rank, span["peer"]) if direction == "send_" else (span["peer"], rank)
                ends[span["group"], span["sequence"]][direction] = (*pair, span["microbatch"])
    assert len(ends) > 100
    for both in ends.values():
        assert both["send_"] == both["recv_"]


def test_exposed_waiting_is_not_self_time(recorded: Recorded) -> None:
    for spans in recorded.spans:
        for span in spans:
            if span["segment"] in ("forward", "backward"):
                inner = [
                    s
                    for s in spans
                    if s["parent"] == span["segment"]
                    and span["begun_ns"] <= s["begun_ns"]
                    and s["begun_ns"] < span["begun_ns"] + span["duration_ns"]
                    and s["segment"].startswith("tp_")
                ]
                assert span["self_ns"] <= span["duration_ns"] - sum(s["exposed_ns"] for s in inner)


def test_metadata_describes_the_run(recorded: Recorded) -> None:
    rows = as_rows(training_schedule(2, CHUNKS, MICROBATCHES, shards=True))
    assert [line["actions"] for line in recorded.metadata[0][MetadataKind.SCHEDULE]] == [rows]
    for rank, lines in enumerate(recorded.metadata):
        assert rank == 0 or not lines[MetadataKind.SCHEDULE]
        (topology,) = lines[MetadataKind.TOPOLOGY]
        assert list(topology["axes"].items()) == [("pp", 2), ("dp", 2), ("tp", 2)]
        assert topology["coordinates"] == {"pp": rank // 4, "dp": rank // 2 % 2, "tp": rank % 2}
        (configuration,) = lines[MetadataKind.CONFIGURATION]
        assert configuration["value"]["parallel"]["chunks"] == CHUNKS
        assert [line["step"] for line in lines[MetadataKind.STEP]] == list(range(STEPS))
        (end,) = lines[MetadataKind.EXIT]
        assert end["reason"] == "finished"
        kinds = {line["group_kind"] for line in lines[MetadataKind.GROUP]}
        assert {"tp", "dp", "pp", "world", "pp_forward", "pp_backward_wrap"} <= kinds


def test_metrics_of_every_step_are_recorded(recorded: Recorded) -> None:
    for result, lines in zip(recorded.results, recorded.metadata, strict=True):
        metrics: dict[int, dict[str, Any]] = defaultdict(dict)
        for line in lines[MetadataKind.METRICS]:
            metrics[line["step"]] |= line
        assert [metrics[step]["loss"] for step in range(STEPS)] == result.losses
        assert [metrics[step]["grad_norm"] for step in range(STEPS)] == result.grad_norms
        assert metrics[3]["eval_loss"] == result.eval_losses[3]
        assert metrics[0]["tokens"] == 8 * 32
        assert metrics[0]["rank_tokens"] == 8 * 32 // 2, "what its replica was given"
        assert "mfu" not in metrics[0]
