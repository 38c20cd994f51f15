// The heatmap's canvas under a hand: zoom, hover, click, keys. Drawing is in heatmap_2_paint.js.
"use strict";
(function () {
  const M = window.megascope;

  class Heatmap extends M.HeatmapPainter {
    constructor(element) {
      super();
      this.element = element;
      this.canvas = M.canvas(element, "Heatmap of ranks by steps; the table beside it lists the worst cells");
      this.marks = [];
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.canvas.addEventListener("mousedown", (event) => this.press(event));
      this.canvas.addEventListener("dblclick", () => this.setZoom(null));
      this.canvas.addEventListener("keydown", (event) => this.key(event));
    }
    ready() {
      return Boolean(this.meta);
    }
    show({ meta, arrays }) {
      this.meta = meta;
      this.arrays = arrays;
      // Of a large matrix each cell is the hottest of a bin of ranks and steps: `row` and `column` tell which one.
      this.bin_size = meta.bin || [1, 1];
      this.rows = Math.ceil(meta.ranks.length / this.bin_size[0]);
      this.columns = Math.ceil(meta.steps.length / this.bin_size[1]);
      this.shown = arrays[meta.show];
      this.scale = M.heatScale(meta.show, this.shown);
      this.followAddress();
    }
    // The row or column of a rank's or a step's place in `meta`; and what the first cells of one stand for.
    rowOf(rank) {
      return Math.floor(this.meta.ranks.indexOf(rank) / this.bin_size[0]);
    }
    columnsIn(first, last) {
      const inside = [];
      this.meta.steps.forEach((step, at) => {
        if (step >= first && step <= last) inside.push(Math.floor(at / this.bin_size[1]));
      });
      return inside;
    }
    rankAt(row) {
      return this.meta.ranks[row * this.bin_size[0]];
    }
    stepAt(column) {
      return this.meta.steps[column * this.bin_size[1]];
    }
    // Where in `meta` the rank and the step of a cell are.
    placeOf({ row, column, cell, missing }) {
      if (this.arrays.row && !missing) return [this.arrays.row[cell], this.arrays.column[cell]];
      return [row * this.bin_size[0], column * this.bin_size[1]];
    }
    followAddress() {
      this.window = this.zoomFromUrl();
    }
    mark(marks) {
      this.marks = marks;
      if (this.ready()) this.draw();
    }

    // ---- window: rows [r0, r1), columns [c0, c1), whole numbers ------------------------------------------------------
    whole() {
      return { r0: 0, r1: this.rows, c0: 0, c1: this.columns };
    }
    zoomFromUrl() {
      const text = M.parameter("zoom");
      if (!text) return this.whole();
      const [row0, row1, step0, step1] = text.split(":").map(Number);
      const inside = this.columnsIn(step0, step1);
      const window = { r0: Math.min(row0, this.rows - 1), r1: Math.min(row1 + 1, this.rows) };
      if (!inside.length) return this.whole();
      return { ...window, c0: inside[0], c1: inside[inside.length - 1] + 1 };
    }
    setZoom(window) {
      const whole = this.whole();
      const clamp = (low, high, limit) => {
        const size = Math.max(1, Math.min(limit, Math.round(high - low)));
        const start = Math.max(0, Math.min(limit - size, Math.round(low)));
        return [start, start + size];
      };
      if (window) {
        const [r0, r1] = clamp(window.r0, window.r1, this.rows);
        const [c0, c1] = clamp(window.c0, window.c1, this.columns);
        this.window = { r0, r1, c0, c1 };
      } else this.window = whole;
      const all = ["r0", "r1", "c0", "c1"].every((name) => this.window[name] === whole[name]);
      const { r0, r1, c0, c1 } = this.window;
      if (!M.parameter("segment")) {
        M.note({ segment: this.meta.segment }); // the page's own choice may change; who has zoomed in stays
        M.announce();
      }
      M.noteSoon({ zoom: all ? null : [r0, r1 - 1, this.stepAt(c0), this.stepAt(c1 - 1)].join(":") });
      this.draw();
    }

    // ---- interaction -------------------------------------------------------------------------------------------------
    cellAt(event) {
      const [px, py] = M.place(event, this.canvas), { x, y, width, height } = this.plot;
      if (px < x || py < y || px >= x + width || py >= y + height) return null;
      const { nx, ny, winner } = this.binned;
      const pixelX = Math.floor(((px - x) / width) * nx), pixelY = Math.floor(((py - y) / height) * ny);
      const { r0, r1, c0, c1 } = this.window;
      const row = r0 + Math.floor(((pixelY + 0.5) * (r1 - r0)) / ny), column = c0 + Math.floor(((pixelX + 0.5) * (c1 - c0)) / nx);
      const cell = winner[pixelY * nx + pixelX];
      if (cell < 0) return { row, column, cell: row * this.columns + column, missing: true };
      return { row: Math.floor(cell / this.columns), column: cell % this.columns, cell, missing: false };
    }
    hover(event) {
      const found = this.ready() && this.plot && !this.dragging ? this.cellAt(event) : null;
      if (!found) return M.tipOff();
      const { meta, arrays } = this, [row, column] = this.placeOf(found), rank = meta.ranks[row];
      const packed = meta.bin || this.binned.ny < this.window.r1 - this.window.r0 || this.binned.nx < this.window.c1 - this.window.c0;
      const step = meta.steps[column];
      const when = meta.step_width > 1 ? `steps ${step} to ${step + meta.step_width - 1}` : `step ${step}`;
      const heading = `rank ${rank}, ${when}` + (packed ? " (the hottest here)" : "");
      const where = [["host", meta.hosts[row]], ["place", meta.places[row]]];
      if (found.missing) return M.tip(event, heading, where, `No ${meta.segment} was recorded here: not the same as zero.`);
      const ratio = arrays.ratio[found.cell];
      M.tip(event, heading, [
        [meta.metric, `${M.number(arrays.value[found.cell])} ${meta.unit}`],
        ["peers' median", Number.isNaN(ratio) ? "no peers" : `${M.number(arrays.peers[found.cell])} ${meta.unit}`],
        ["ratio", Number.isNaN(ratio) ? null : M.number(ratio, 3) + "x"],
        ["z", M.number(arrays.z[found.cell], 3)],
        ...where,
      ], "Click: this rank, its peers and this step in the timeline");
    }
    wheel(event) {
      if (!this.ready()) return;
      event.preventDefault();
      const [px, py] = M.place(event, this.canvas), { x, y, width, height } = this.plot;
      const factor = event.deltaY > 0 ? 1.3 : 1 / 1.3;
      this.scaleBy(event.shiftKey ? 1 : factor, event.ctrlKey || event.altKey ? 1 : factor, (px - x) / width, (py - y) / height);
    }
    scaleBy(factorX, factorY, atX, atY) {
      const { r0, r1, c0, c1 } = this.window;
      const shrink = (low, high, factor, at) => {
        const share = Math.min(1, Math.max(0, at));
        let size = (high - low) * factor;
        if (factor < 1) size = Math.min(size, high - low - 1);
        if (factor > 1) size = Math.max(size, high - low + 1);
        size = Math.max(1, size);
        const start = low + (high - low - size) * share;
        return [start, start + size];
      };
      const [newR0, newR1] = shrink(r0, r1, factorY, atY), [newC0, newC1] = shrink(c0, c1, factorX, atX);
      this.setZoom({ r0: newR0, r1: newR1, c0: newC0, c1: newC1 });
    }
    press(event) {
      if (event.button !== 0 || !this.ready()) return;
      const start = M.place(event, this.canvas), from = { ...this.window };
      const move = (next) => {
        const [px, py] = M.place(next, this.canvas);
        if (!this.dragging && Math.hypot(px - start[0], py - start[1]) < 4) return;
        this.dragging = true;
        M.tipOff();
        const rows = Math.round(((start[1] - py) * (from.r1 - from.r0)) / this.plot.height);
        const columns = Math.round(((start[0] - px) * (from.c1 - from.c0)) / this.plot.width);
        this.setZoom({ r0: from.r0 + rows, r1: from.r1 + rows, c0: from.c0 + columns, c1: from.c1 + columns });
      };
      const release = (last) => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", release);
        if (!this.dragging) this.open(last);
        this.dragging = false;
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", release);
    }
    open(event) {
      const found = this.cellAt(event);
      if (!found) return;
      const query = new URLSearchParams(this.meta.link);
      const [row, column] = this.placeOf(found);
      query.set("rank", this.meta.ranks[row]);
      query.set("steps", this.meta.steps[column]);
      M.tipOff();
      M.go("/timeline?" + query.toString());
    }
    key(event) {
      const { r0, r1, c0, c1 } = this.window;
      const down = Math.max(1, (r1 - r0) >> 2), across = Math.max(1, (c1 - c0) >> 2);
      const moves = {
        w: () => this.scaleBy(1 / 1.5, 1 / 1.5, 0.5, 0.5), s: () => this.scaleBy(1.5, 1.5, 0.5, 0.5), 0: () => this.setZoom(null),
        ArrowLeft: () => this.setZoom({ r0, r1, c0: c0 - across, c1: c1 - across }), ArrowRight: () => this.setZoom({ r0, r1, c0: c0 + across, c1: c1 + across }),
        ArrowUp: () => this.setZoom({ r0: r0 - down, r1: r1 - down, c0, c1 }), ArrowDown: () => this.setZoom({ r0: r0 + down, r1: r1 + down, c0, c1 }),
      };
      if (!moves[event.key] || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      moves[event.key]();
    }
  }
  M.register("heatmap", (element) => new Heatmap(element));
})();
