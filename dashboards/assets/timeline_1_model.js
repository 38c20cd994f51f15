// The timeline's data: lanes, rows inside a lane, look-up by time, search, and what is said about a span.
"use strict";
(function () {
  const M = window.megascope;

  M.segmentColour = ({ name, kind }) => {
    if (kind === "compute") return /backward/.test(name) ? "backward" : "compute";
    return ["collective", "p2p", "data", "optimizer"].includes(kind) ? kind : "other";
  };

  class TimelineModel {
    constructor({ meta, arrays }) {
      this.meta = meta;
      this.arrays = arrays;
      this.count = arrays.start.length;
      this.lanes = meta.lanes.map(([rank, label], at) => ({
        rank, label, rows: [], first: at === 0 || meta.lanes[at - 1][0] !== rank,
      }));
      this.rowOf = new Int32Array(this.count);
      this.stack();
      this.first = 0;
      this.last = 0;
      for (let span = 0; span < this.count; span++) {
        this.last = Math.max(this.last, arrays.start[span] + (arrays.duration[span] || 0));
      }
    }
    // Spans come sorted by lane, start, longest first: each goes to the first row that is free, so that what is
    // nested stands below what encloses it, and what overlaps is never hidden.
    stack() {
      const { lane, start, duration } = this.arrays;
      let ends = [], current = -1;
      for (let span = 0; span < this.count; span++) {
        if (lane[span] !== current) {
          current = lane[span];
          ends = [];
        }
        const begin = start[span];
        let row = ends.findIndex((end) => end <= begin);
        if (row < 0) row = ends.length;
        ends[row] = begin + (duration[span] || 0);
        this.rowOf[span] = row;
        (this.lanes[current].rows[row] ||= []).push(span);
      }
      for (const each of this.lanes) if (!each.rows.length) each.rows.push([]);
    }
    // Position in a row of the first span that ends after a time (spans of a row do not overlap).
    firstIn(row, time) {
      const { start, duration } = this.arrays;
      let low = 0, high = row.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (start[row[middle]] + (duration[row[middle]] || 0) < time) low = middle + 1;
        else high = middle;
      }
      return low;
    }
    at(row, time, slack) {
      const { start, duration } = this.arrays;
      let best = -1, distance = slack;
      for (let place = this.firstIn(row, time - slack); place < row.length && start[row[place]] <= time + slack; place++) {
        const span = row[place], end = start[span] + (duration[span] || 0);
        const away = time < start[span] ? start[span] - time : Math.max(0, time - end);
        if (away <= distance) [best, distance] = [span, away];
        if (away === 0) break;
      }
      return best;
    }
    find(text) {
      const wanted = text.trim().toLowerCase(), found = [];
      if (!wanted) return found;
      const hits = this.meta.segments.map(({ name, kind, axis }) => `${name} ${kind} ${axis || ""}`.toLowerCase().includes(wanted));
      for (let span = 0; span < this.count; span++) if (hits[this.arrays.segment[span]]) found.push(span);
      return found.sort((one, other) => this.arrays.start[one] - this.arrays.start[other]);
    }
    number(name, span) {
      const value = this.arrays[name][span];
      return Number.isNaN(value) ? null : value;
    }
    title(span) {
      const microbatch = this.number("microbatch", span);
      return this.meta.segments[this.arrays.segment[span]].name + (microbatch === null ? "" : " " + microbatch);
    }
    describe(span) {
      const { arrays, meta } = this, segment = meta.segments[arrays.segment[span]], lane = this.lanes[arrays.lane[span]];
      const step = this.number("step", span), start = arrays.start[span];
      const rows = [
        ["duration", M.duration(this.number("duration", span)) || "not measured"],
        ["self time", M.duration(this.number("self", span))],
        ["this rank waited for it", M.duration(this.number("exposed", span))],
        ["start", `${M.number(start / 1e6, 9)} ms from the left`],
        ["UTC", M.utc(meta.base_ns, start)],
        ["step", step], ["micro-batch", this.number("microbatch", span)], ["chunk", this.number("chunk", span)],
        ["kind", segment.kind + (segment.axis ? ` over ${segment.axis}` : "")],
        ["peer", this.number("peer", span)], ["sequence", this.number("sequence", span)],
        ["size", M.bytes(this.number("size", span))],
        ["where", [meta.hosts[lane.rank], meta.places[lane.rank], lane.label].filter(Boolean).join(", ")],
        ["clock", meta.clocks[arrays.clock[span]]],
      ];
      const status = meta.statuses[arrays.status[span]];
      return [`${segment.name}, rank ${lane.rank}`, rows, status === "ok" ? "" : `status: ${status}`];
    }
    // What is drawn, as plain rows: for tests and for whoever looks from the console.
    rows() {
      const names = ["start", "duration", "self", "exposed", "step", "microbatch", "chunk", "peer", "sequence", "size"];
      return Array.from({ length: this.count }, (_, span) => ({
        rank: this.lanes[this.arrays.lane[span]].rank, lane: this.lanes[this.arrays.lane[span]].label, row: this.rowOf[span],
        segment: this.meta.segments[this.arrays.segment[span]].name, status: this.meta.statuses[this.arrays.status[span]],
        ...Object.fromEntries(names.map((name) => [name, this.number(name, span)])),
      }));
    }
  }
  M.TimelineModel = TimelineModel;

  M.utc = (base, ns) => {
    const moment = BigInt(base) + BigInt(Math.round(ns));
    const text = new Date(Number(moment / 1000000n)).toISOString().replace("T", " ").replace("Z", "");
    return text + String(moment % 1000000n).padStart(6, "0").slice(0, 3) + " UTC";
  };
})();
