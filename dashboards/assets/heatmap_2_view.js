// The heatmap: rank x step on a canvas. Where rows or steps exceed pixels, each pixel shows its hottest cell.
"use strict";
(function () {
  const M = window.megascope;
  const LEFT = 92, TOP = 8, BOTTOM = 34, RIGHT = 86;

  class Heatmap {
    constructor(element) {
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
      this.rows = meta.ranks.length;
      this.columns = meta.steps.length;
      this.shown = arrays[meta.show];
      this.scale = M.heatScale(meta.show, this.shown);
      this.followAddress();
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
      const inside = this.meta.steps.map((step, at) => [step, at]).filter(([step]) => step >= step0 && step <= step1);
      const window = { r0: Math.min(row0, this.rows - 1), r1: Math.min(row1 + 1, this.rows) };
      if (!inside.length) return this.whole();
      return { ...window, c0: inside[0][1], c1: inside[inside.length - 1][1] + 1 };
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
      M.note({ zoom: all ? null : [r0, r1 - 1, this.meta.steps[c0], this.meta.steps[c1 - 1]].join(":") });
      this.draw();
    }

    // ---- drawing -----------------------------------------------------------------------------------------------------
    draw() {
      const width = this.element.clientWidth, height = this.element.clientHeight || 430;
      const context = (this.context = M.fit(this.canvas, width, height));
      this.plot = { x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
      this.bin();
      const { x, y } = this.plot;
      context.fillStyle = M.hatch(context);
      context.fillRect(x, y, this.plot.width, this.plot.height);
      context.imageSmoothingEnabled = false;
      context.drawImage(this.picture(), x, y, this.plot.width, this.plot.height);
      this.drawAxes(context);
      this.drawMarks(context);
      this.drawScale(context, x + this.plot.width + 12, y);
    }
    bin() {
      // Each picture element takes the largest value of its cells; `winner` remembers which cell that was.
      const { r0, r1, c0, c1 } = this.window;
      const density = window.devicePixelRatio || 1;
      const ny = Math.min(r1 - r0, Math.max(1, Math.floor(this.plot.height * density)));
      const nx = Math.min(c1 - c0, Math.max(1, Math.floor(this.plot.width * density)));
      const winner = new Int32Array(nx * ny).fill(-1);
      for (let row = r0; row < r1; row++) {
        const py = Math.floor(((row - r0) * ny) / (r1 - r0));
        for (let column = c0; column < c1; column++) {
          const cell = row * this.columns + column;
          const value = this.shown[cell];
          if (Number.isNaN(value)) continue;
          const pixel = py * nx + Math.floor(((column - c0) * nx) / (c1 - c0));
          if (winner[pixel] < 0 || value > this.shown[winner[pixel]]) winner[pixel] = cell;
        }
      }
      this.binned = { nx, ny, winner };
    }
    colourAt(value) {
      return Math.max(0, Math.min(255, Math.round(this.scale.at(value) * 255)));
    }
    picture() {
      const { nx, ny, winner } = this.binned;
      const picture = document.createElement("canvas");
      picture.width = nx;
      picture.height = ny;
      const pen = picture.getContext("2d");
      const image = pen.createImageData(nx, ny);
      const pixels = new Uint32Array(image.data.buffer);
      const colours = M.heatColours(this.scale.diverging);
      for (let at = 0; at < pixels.length; at++) {
        if (winner[at] >= 0) pixels[at] = colours[this.colourAt(this.shown[winner[at]])];
      }
      pen.putImageData(image, 0, 0);
      return picture;
    }
    drawAxes(context) {
      const { x, y, width, height } = this.plot, { r0, r1, c0, c1 } = this.window;
      context.fillStyle = M.colour("quiet");
      context.textBaseline = "middle";
      context.textAlign = "right";
      const every = Math.max(1, Math.ceil(((r1 - r0) * 15) / height));
      const culprits = new Set(this.marks.flatMap((mark) => mark.ranks));
      for (let row = r0; row < r1; row++) {
        const culprit = culprits.has(this.meta.ranks[row]);
        if ((row - r0) % every !== 0 && !culprit) continue;
        const middle = y + ((row - r0 + 0.5) * height) / (r1 - r0);
        if (culprit) this.drawCulpritLabel(context, row, middle);
        else if (!this.nearCulprit(row, every, culprits)) context.fillText("rank " + this.meta.ranks[row], x - 8, middle);
      }
      context.strokeStyle = M.colour("ink");
      context.globalAlpha = 0.55;
      for (const [, first] of this.meta.sections) {
        if (first <= r0 || first >= r1) continue;
        const line = Math.round(y + ((first - r0) * height) / (r1 - r0)) + 0.5;
        context.strokeRect(x, line, width, 0);
      }
      context.globalAlpha = 1;
      context.textAlign = "center";
      context.textBaseline = "top";
      const step = Math.max(1, Math.ceil(((c1 - c0) * 46) / width));
      for (let column = c0; column < c1; column += step) {
        context.fillText(this.meta.steps[column], x + ((column - c0 + 0.5) * width) / (c1 - c0), y + height + 4);
      }
      context.fillText("step", x + width / 2, y + height + 19);
    }
    nearCulprit(row, every, culprits) {
      for (let near = row - every + 1; near < row + every; near++) if (culprits.has(this.meta.ranks[near])) return true;
      return false;
    }
    drawCulpritLabel(context, row, middle) {
      context.save();
      context.fillStyle = M.colour("fault");
      context.font = "bold 12px " + M.colour("font");
      context.fillText("▶ rank " + this.meta.ranks[row], this.plot.x - 5, middle);
      context.restore();
    }
    drawMarks(context) {
      const { x, y, width, height } = this.plot, { r0, r1, c0, c1 } = this.window;
      context.save();
      context.beginPath();
      context.rect(x, y, width, height);
      context.clip();
      context.strokeStyle = M.colour("select");
      context.lineWidth = 1.5;
      for (const mark of this.marks) {
        const columns = this.meta.steps.map((step, at) => [step, at]).filter(([step]) => step >= mark.steps[0] && step <= mark.steps[1]);
        if (!columns.length) continue;
        const left = x + ((columns[0][1] - c0) * width) / (c1 - c0);
        const right = x + ((columns[columns.length - 1][1] + 1 - c0) * width) / (c1 - c0);
        for (const rank of mark.ranks) {
          const row = this.meta.ranks.indexOf(rank);
          if (row < 0) continue;
          const top = y + ((row - r0) * height) / (r1 - r0), size = height / (r1 - r0);
          context.strokeRect(left, Math.min(top, top + size / 2 - 2.5), right - left, Math.max(5, size));
        }
      }
      context.restore();
    }
    drawScale(context, x, y) {
      const height = Math.min(200, this.plot.height - 60), colours = M.heatColours(this.scale.diverging);
      for (let at = 0; at < height; at++) {
        const colour = colours[Math.round(255 * (1 - at / (height - 1)))];
        context.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
        context.fillRect(x, y + 18 + at, 14, 1);
      }
      context.fillStyle = M.colour("quiet");
      context.textAlign = "left";
      context.textBaseline = "top";
      context.fillText(this.scale.diverging ? "slower" : this.meta.unit, x, y);
      context.textBaseline = "middle";
      const middle = this.scale.diverging ? (this.meta.show === "ratio" ? 1 : 0) : (this.scale.low + this.scale.high) / 2;
      const text = (value, sign) => sign + M.number(value, 3) + (this.meta.show === "ratio" ? "x" : "");
      context.fillText(text(this.scale.high, "≥"), x + 19, y + 22);
      context.fillText(text(middle, ""), x + 19, y + 18 + height / 2);
      context.fillText(text(this.scale.low, "≤"), x + 19, y + 14 + height);
      context.textBaseline = "top";
      context.fillText(this.scale.diverging ? "faster" : "", x, y + height + 22);
      context.fillStyle = M.hatch(context);
      context.fillRect(x, y + height + 42, 14, 14);
      context.fillStyle = M.colour("quiet");
      context.fillText("no data", x + 19, y + height + 42);
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
      const { meta, arrays } = this, rank = meta.ranks[found.row];
      const packed = this.binned.ny < this.window.r1 - this.window.r0 || this.binned.nx < this.window.c1 - this.window.c0;
      const heading = `rank ${rank}, step ${meta.steps[found.column]}` + (packed ? " (the hottest here)" : "");
      const where = [["host", meta.hosts[found.row]], ["place", meta.places[found.row]]];
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
      query.set("rank", this.meta.ranks[found.row]);
      query.set("steps", this.meta.steps[found.column]);
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
