// The timeline's coarse level: what each rank spent its time on, in columns of steps over the whole run.
"use strict";
(function () {
  const M = window.megascope;
  const { LEFT, AXIS } = M.TimelinePainter.SIZES;
  const TALL = 26, TALLEST = 64, GAP = 4;

  class TimelineOutline {
    constructor({ meta, arrays }, anchor) {
      this.meta = meta;
      const shift = Number(BigInt(meta.base_ns) - anchor), count = arrays.start.length;
      const moved = (times) => times.map((time) => time + shift); // a copy: the loader may give the same again
      this.arrays = arrays = { ...arrays, start: moved(arrays.start), end: moved(arrays.end) };
      this.rows = meta.ranks.map(() => []);
      const columns = new Map();
      for (let at = 0; at < count; at++) {
        this.rows[arrays.rank[at]].push(at);
        const step = arrays.first_step[at], known = columns.get(step) || { first: step, last: 0, start: Infinity, end: -Infinity };
        known.last = Math.max(known.last, arrays.last_step[at]);
        known.start = Math.min(known.start, arrays.start[at]);
        known.end = Math.max(known.end, arrays.end[at]);
        columns.set(step, known);
      }
      this.columns = [...columns.values()].sort((one, other) => one.start - other.start);
      this.first = this.columns[0].start;
      this.last = this.columns.reduce((last, each) => Math.max(last, each.end), -Infinity);
    }
    // The steps of which a window of time shows a part; inside a column of many steps, as if they were of one length.
    stepsIn(from, to) {
      let low = Infinity, high = -Infinity;
      for (const { first, last, start, end } of this.columns) {
        if (end < from || start > to) continue;
        const step = (time) => first + Math.floor(((time - start) / (end - start || 1)) * (last - first + 1));
        low = Math.min(low, Math.max(first, Math.min(last, step(from))));
        high = Math.max(high, Math.min(last, Math.max(first, step(to))));
      }
      return low <= high ? [low, high] : null;
    }
    at(row, time) {
      return (this.rows[row] || []).find((at) => this.arrays.start[at] <= time && time <= this.arrays.end[at]) ?? -1;
    }
    describe(at, base) {
      const { meta, arrays } = this, kinds = meta.kinds.length, first = arrays.first_step[at], last = arrays.last_step[at];
      const length = arrays.end[at] - arrays.start[at], steps = last - first + 1;
      const names = { compute: "forward and other compute", collective: "waited for collectives", p2p: "waited for messages" };
      if (Number.isNaN(arrays.share[at * kinds])) return this.unknown(at, base);
      const rows = [["steps", first === last ? first : `${first} to ${last}`], ["time a step", M.duration(length / steps)], ["UTC", M.utc(base, arrays.start[at])]];
      let rest = 1;
      meta.kinds.forEach((kind, number) => {
        const share = arrays.share[at * kinds + number];
        rest -= share;
        if (share > 0.0005) rows.push([names[kind] || kind, `${(100 * share).toFixed(1)} %`]);
      });
      rows.push(["neither", `${(100 * Math.max(0, rest)).toFixed(1)} %`]);
      return [`rank ${meta.ranks[arrays.rank[at]]}`, rows, "Shares of the time, in no order. Double click for its spans"];
    }
    unknown(at, base) {
      const { meta, arrays } = this, first = arrays.first_step[at], last = arrays.last_step[at];
      const rows = [["steps", first === last ? first : `${first} to ${last}`], ["UTC", M.utc(base, arrays.start[at])]];
      return [`rank ${meta.ranks[arrays.rank[at]]}`, rows, "What it spent its time on is not stored"];
    }
  }
  M.TimelineOutline = TimelineOutline;

  Object.assign(M.TimelinePainter.prototype, {
    layOutCoarse() {
      const ranks = this.outlined.meta.ranks.length, room = this.height - AXIS - 8;
      this.coarseRow = Math.max(this.fit ? 4 : TALL, Math.min(TALLEST, room / ranks));
      this.contentHeight = ranks * this.coarseRow + 8;
    },
    coarseTop(row) {
      return AXIS + 4 + row * this.coarseRow - this.scroll;
    },
    drawCoarse() {
      const { meta } = this.outlined, context = this.context, tall = this.coarseRow - (this.coarseRow > 12 ? GAP : 1);
      this.drawn = 0;
      meta.ranks.forEach((rank, row) => {
        const top = this.coarseTop(row);
        if (top + tall < AXIS || top > this.height) return;
        const chosen = rank === meta.rank;
        context.fillStyle = chosen ? this.ink.ink : this.ink.quiet;
        context.textAlign = "left";
        context.textBaseline = "middle";
        context.font = (chosen ? "bold " : "") + (tall < 11 ? "9px " : "12px ") + this.font;
        const twoLines = tall >= 30, middle = top + tall / 2;
        if (tall >= 8) M.fillFitted(context, `${chosen ? "▶ " : ""}rank ${rank}`, 6, twoLines ? middle - 8 : middle, twoLines ? LEFT - 14 : 70);
        context.font = "12px " + this.font;
        context.fillStyle = this.ink.quiet;
        if (twoLines) M.fillFitted(context, meta.places[row], 6, middle + 8, LEFT - 14);
        else if (tall >= 11) M.fillFitted(context, meta.places[row], 80, middle, LEFT - 86);
        context.save();
        context.beginPath();
        context.rect(LEFT, AXIS, this.plotWidth, this.height - AXIS);
        context.clip();
        this.drawCoarseRow(row, top, tall);
        context.restore();
      });
      this.labelColumns();
    },
    // Stacked from the top: work solid, waiting hatched, what was neither is left empty.
    drawCoarseRow(row, top, tall) {
      const { meta, arrays } = this.outlined, context = this.context, kinds = meta.kinds.length;
      const paints = this.coarsePaints();
      for (const at of this.outlined.rows[row]) {
        const left = this.x(arrays.start[at]), right = this.x(arrays.end[at]);
        if (right < LEFT || left > LEFT + this.plotWidth) continue;
        const wide = Math.max(1, right - left - (right - left > 3 ? 1 : 0));
        const isKnown = !Number.isNaN(arrays.share[at * kinds]);
        context.fillStyle = isKnown ? this.ink.missing : this.noData;
        context.fillRect(left, top, wide, tall);
        let y = top;
        for (let kind = 0; kind < kinds; kind++) {
          const size = arrays.share[at * kinds + kind] * tall;
          if (!(size > 0)) continue;
          context.fillStyle = paints[kind];
          context.fillRect(left, y, wide, size);
          y += size;
        }
        this.drawn += 1;
      }
    },
    coarsePaints() {
      const theme = document.documentElement.dataset.theme;
      if (!this.paints || this.paintsOf !== theme) {
        this.paintsOf = theme;
        this.paints = this.outlined.meta.kinds.map((kind) => {
          const colour = M.colour(kind);
          return ["collective", "p2p"].includes(kind) ? M.waitingHatch(this.context, colour, this.ink.surface) : colour;
        });
      }
      return this.paints;
    },
    labelColumns() {
      let free = 0;
      for (const { first, start } of this.outlined.columns) {
        const x = this.x(start);
        if (x < Math.max(free, LEFT) || x > LEFT + this.plotWidth - 40) continue;
        this.stepLabels.push([first, x]);
        free = x + 70;
      }
    },
  });
})();
