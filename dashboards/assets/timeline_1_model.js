// The timeline's data: lanes, rows inside a lane, look-up by time, search, and what is said about a span.
"use strict";
(function () {
  const M = window.megascope;

  M.segmentColour = ({ name, kind }) => {
    if (kind === "compute") return /backward/.test(name) ? "backward" : "compute";
    return ["collective", "p2p", "data", "optimizer"].includes(kind) ? kind : "other";
  };
  const MOST_DRIFT = 1e-4; // 100 ppm
  const NUMBERS = ["start", "duration", "self", "exposed", "step", "microbatch", "chunk", "peer", "sequence", "size"];

  class TimelineModel {
    // Times are ns from `anchor`, the base of what was loaded first: what is loaded later is moved to it.
    constructor({ meta, arrays }, anchor = null) {
      this.meta = meta;
      this.base = anchor ?? BigInt(meta.base_ns);
      this.count = arrays.start.length;
      const shift = Number(BigInt(meta.base_ns) - this.base);
      // A copy: the loader keeps what it was sent, and may give it again.
      this.arrays = shift ? { ...arrays, start: arrays.start.map((start) => start + shift) } : arrays;
      this.origin = meta.origin + shift;
      this.steps = meta.steps.map(([rank, step, start]) => [rank, step, start + shift]);
      this.range = meta.range.split(":").map(Number);
      this.lanes = meta.lanes.map(([rank, label], at) => ({
        rank, label, rows: [], first: at === 0 || meta.lanes[at - 1][0] !== rank, waits: [], empty: true,
      }));
      this.kinds = meta.segments.map(({ kind }) => kind);
      this.stack();
      this.measure();
      this.waits();
    }
    // Spans come sorted by lane, start, longest first: each goes to the first row that is free, so that what is
    // nested stands below what encloses it, and what overlaps is never hidden. Starts are aligned, lengths are as the
    // host's clock counted them: what follows may seem to begin too early by as much as clocks drift.
    stack() {
      const { lane, start, duration } = this.arrays;
      this.rowOf = new Int32Array(this.count);
      let ends = [], free = [], current = -1;
      for (let span = 0; span < this.count; span++) {
        if (lane[span] !== current) {
          current = lane[span];
          [ends, free] = [[], []];
        }
        const begin = start[span], length = duration[span] || 0, end = begin + length;
        let row = 0;
        while (row < ends.length && (free[row] > begin || ends[row] > end)) row++;
        ends[row] = end;
        free[row] = end - length * MOST_DRIFT;
        this.rowOf[span] = row;
        (this.lanes[current].rows[row] ||= []).push(span);
      }
      for (const each of this.lanes) {
        each.empty = !each.rows.length;
        if (each.empty) each.rows.push([]);
        each.rows = each.rows.map((row) => Int32Array.from(row));
      }
    }
    measure() {
      const { start, duration } = this.arrays;
      this.ends = new Float64Array(this.count);
      this.first = this.count ? Infinity : this.origin;
      this.last = this.first === Infinity ? -Infinity : this.origin;
      for (let span = 0; span < this.count; span++) {
        const length = duration[span], end = start[span] + (length === length ? length : 0);
        this.ends[span] = end;
        if (start[span] < this.first) this.first = start[span];
        if (end > this.last) this.last = end;
      }
    }
    // Where each rank's work stood still for communication: the last `exposed` ns of what it waited for.
    waits() {
      const { lane, exposed } = this.arrays, works = new Map();
      for (const each of this.lanes) if (each.first) works.set(each.rank, each);
      for (let span = 0; span < this.count; span++) {
        if (exposed[span] > 0) works.get(this.lanes[lane[span]].rank).waits.push([this.ends[span] - exposed[span], this.ends[span]]);
      }
      for (const each of works.values()) each.waits.sort((one, other) => one[0] - other[0]);
    }
    // What comes after the first painting: waiting inside communication, who caused it, the critical path.
    attach({ meta, arrays }) {
      if (meta.key !== this.meta.key) return false;
      const shift = Number(BigInt(this.meta.base_ns) - this.base);
      this.links = arrays; // of the same spans, by index
      this.path = {
        span: arrays.path_span, begin: arrays.path_begin.map((at) => at + shift), end: arrays.path_end.map((at) => at + shift),
        leaves: meta.leaves,
      };
      this.onPath = new Uint8Array(this.count);
      for (const span of this.path.span) this.onPath[span] = 1;
      this.meetings = arrays.cause.reduce((found, cause, span) => {
        if (cause >= 0 && this.kinds[this.arrays.segment[span]] !== "p2p") found.push(span);
        return found;
      }, []);
      return true;
    }
    // Position in a row of the first span that ends after a time (spans of a row do not overlap).
    firstIn(row, time) {
      let low = 0, high = row.length;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.ends[row[middle]] < time) low = middle + 1;
        else high = middle;
      }
      return low;
    }
    at(row, time, slack) {
      const { start } = this.arrays;
      let best = -1, distance = slack;
      for (let place = this.firstIn(row, time - slack); place < row.length && start[row[place]] <= time + slack; place++) {
        const span = row[place];
        const away = time < start[span] ? start[span] - time : Math.max(0, time - this.ends[span]);
        if (away <= distance) [best, distance] = [span, away];
        if (away === 0) break;
      }
      return best;
    }
    // Words of the name, the kind or the axis; rank:5, step:7, mb:3 and peer:2 narrow it down.
    find(text) {
      const words = text.trim().toLowerCase().split(/\s+/).filter(Boolean), found = [];
      if (!words.length) return found;
      const numbers = words.map((word) => /^(rank|step|mb|peer):(\d+)$/.exec(word)).filter(Boolean);
      const wanted = words.filter((word) => !/^(rank|step|mb|peer):\d+$/.test(word));
      const hits = this.meta.segments.map(({ name, kind, axis }) => {
        const told = `${name} ${kind} ${axis || ""}`.toLowerCase();
        return wanted.every((word) => told.includes(word));
      });
      const { lane, segment, step, microbatch, peer } = this.arrays;
      const value = { rank: (span) => this.lanes[lane[span]].rank, step: (span) => step[span], mb: (span) => microbatch[span], peer: (span) => peer[span] };
      for (let span = 0; span < this.count; span++) {
        if (hits[segment[span]] && numbers.every(([, key, number]) => value[key](span) === Number(number))) found.push(span);
      }
      return found.sort((one, other) => this.arrays.start[one] - this.arrays.start[other]);
    }
    // What a span is called by in any model that holds it: see `same`.
    identity(span) {
      const lane = this.lanes[this.arrays.lane[span]], segment = this.meta.segments[this.arrays.segment[span]].name;
      return { rank: lane.rank, label: lane.label, segment, at: this.base + BigInt(Math.round(this.arrays.start[span])) };
    }
    // The place among some spans of the one with an identity; -1 where it is not among them.
    same({ rank, label, segment, at }, spans) {
      const start = Number(at - this.base);
      return spans.findIndex((span) => {
        const lane = this.lanes[this.arrays.lane[span]];
        return Math.abs(this.arrays.start[span] - start) < 1 && lane.rank === rank && lane.label === label
          && this.meta.segments[this.arrays.segment[span]].name === segment;
      });
    }
    number(name, span) {
      const value = this.arrays[name][span];
      return Number.isNaN(value) ? null : value;
    }
    title(span) {
      const microbatch = this.number("microbatch", span);
      return this.meta.segments[this.arrays.segment[span]].name + (microbatch === null ? "" : " " + microbatch);
    }
    waiting(span) {
      const value = this.links ? this.links.waiting[span] : NaN;
      return Number.isNaN(value) ? null : value;
    }
    describe(span) {
      const { arrays, meta } = this, segment = meta.segments[arrays.segment[span]], lane = this.lanes[arrays.lane[span]];
      const step = this.number("step", span), start = arrays.start[span], unsure = meta.uncertainty[lane.rank];
      const waiting = this.waiting(span), length = this.number("duration", span);
      const awaited = this.links && !Number.isNaN(this.links.awaited[span]) ? this.links.awaited[span] : null;
      const rows = [
        ["duration", M.duration(length) || "not measured"],
        ["waited for all to arrive", waiting === null ? null : M.duration(waiting) + (awaited === null ? "" : `, rank ${awaited} came last`)],
        ["transfer", waiting === null || length === null ? null : M.duration(length - waiting)],
        ["self time", M.duration(this.number("self", span))],
        ["this rank waited for it", M.duration(this.number("exposed", span))],
        ["start", `${M.number(start / 1e6, 9)} ms from the left`],
        ["UTC", M.utc(this.base, start) + (unsure ? ` ±${M.duration(unsure)}` : "")],
        ["step", step], ["micro-batch", this.number("microbatch", span)], ["chunk", this.number("chunk", span)],
        ["kind", segment.kind + (segment.axis ? ` over ${segment.axis}` : "")],
        ["peer", this.number("peer", span)], ["sequence", this.number("sequence", span)],
        ["size", M.bytes(this.number("size", span))],
        ["where", [meta.hosts[lane.rank], meta.places[lane.rank], lane.label].filter(Boolean).join(", ")],
        ["clock", meta.clocks[arrays.clock[span]]],
      ];
      const status = meta.statuses[arrays.status[span]];
      const notes = [status === "ok" ? "" : `status: ${status}`, this.onPath && this.onPath[span] ? "on the critical path" : ""];
      return [`${segment.name}, rank ${lane.rank}`, rows, notes.filter(Boolean).join("; ")];
    }
    // What is drawn, as plain rows: for tests and for whoever looks from the console.
    rows() {
      return Array.from({ length: this.count }, (_, span) => ({
        rank: this.lanes[this.arrays.lane[span]].rank, lane: this.lanes[this.arrays.lane[span]].label, row: this.rowOf[span],
        segment: this.meta.segments[this.arrays.segment[span]].name, status: this.meta.statuses[this.arrays.status[span]],
        ...Object.fromEntries(NUMBERS.map((name) => [name, this.number(name, span)])),
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
