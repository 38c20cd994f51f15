// The heatmap's canvas under a hand: zoom, hover, click, brush, keys, picture. Drawing is in heatmap_2_paint.js, what is
// drawn from in heatmap_4_layers.js.
"use strict";
(function () {
  const M = window.megascope;

  class Heatmap extends M.HeatmapPainter {
    constructor(element) {
      super();
      this.element = element;
      this.canvas = M.canvas(element, "Heatmap of ranks by steps; the table beside it lists the worst cells");
      this.marks = [];
      this.layers = new M.HeatmapLayers(this);
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.canvas.addEventListener("mousedown", (event) => this.press(event));
      this.canvas.addEventListener("dblclick", () => this.setZoom(null));
      this.brush = element.appendChild(document.createElement("div"));
      this.brush.className = "brush";
      this.brush.hidden = true;
      // Of the whole page: a canvas that moves to a new element loses the focus.
      const onKey = (event) => this.key(event);
      document.addEventListener("keydown", onKey);
      const silence = M.onAction("heatmap-png", () => this.save());
      this.end = () => {
        document.removeEventListener("keydown", onKey);
        silence();
        this.layers.end();
      };
    }
    ready() {
      return Boolean(this.meta);
    }
    show({ meta, arrays }) {
      this.meta = meta;
      this.look = meta.shape === "hosts" ? new M.HostsByGpus(this) : new M.RanksBySteps(this);
      const { rows, columns, layer } = this.look.show({ meta, arrays });
      Object.assign(this, { rows, columns });
      this.scale = M.heatScale(meta.show, arrays[meta.show]);
      this.layers.show(layer);
      this.followAddress();
    }
    drawFrom(layer) {
      Object.assign(this, { layer, arrays: layer.arrays, shown: layer.arrays[this.meta.show] });
    }
    rowOf(rank) {
      return this.look.rowOf(rank);
    }
    followAddress() {
      this.above = Number(M.parameter("above")) || null;
      this.window = this.zoomFromUrl();
      this.layers.choose();
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
      return (text && this.look.zoomFrom(text.split(":").map(Number), this.rows, this.columns)) || this.whole();
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
      if (!M.parameter("segment")) {
        M.note({ segment: this.meta.segment }); // the page's own choice may change; who has zoomed in stays
        M.announce();
      }
      M.noteSoon({ zoom: all ? null : this.look.zoomText(this.window) });
      this.layers.choose();
      this.draw();
    }

    // ---- interaction -------------------------------------------------------------------------------------------------
    cellAt(event) {
      const [px, py] = M.place(event, this.canvas), { x, y, width, height } = this.plot;
      if (px < x || py < y || px >= x + width || py >= y + height) return null;
      const { nx, ny, winner, r0, r1, c0, c1 } = this.binned;
      const pixelX = Math.floor(((px - this.xOf(c0)) / (this.xOf(c1) - this.xOf(c0))) * nx);
      const pixelY = Math.floor(((py - this.yOf(r0)) / (this.yOf(r1) - this.yOf(r0))) * ny);
      const { bin, columns, row: first, column: left } = this.layer, cell = winner[pixelY * nx + pixelX];
      if (cell >= 0) {
        const row = first + Math.floor(cell / columns) * bin[0], column = left + (cell % columns) * bin[1];
        return { row, column, cell, missing: false };
      }
      const row = r0 + Math.floor(((pixelY + 0.5) * (r1 - r0)) / ny), column = c0 + Math.floor(((pixelX + 0.5) * (c1 - c0)) / nx);
      const place = Math.floor((row - first) / bin[0]) * columns + Math.floor((column - left) / bin[1]);
      return this.arrays.at && this.arrays.at[place] < 0 ? null : { row, column, cell: place, missing: true };
    }
    hover(event) {
      const found = this.ready() && this.plot && !this.dragging ? this.cellAt(event) : null;
      this.canvas.style.cursor = found ? "pointer" : "default";
      if (!found) return M.tipOff();
      const { meta, arrays } = this, [row] = this.look.placeOf(found);
      const heading = this.look.heading(found, this.isPacked());
      const where = [["host", meta.hosts[row]], ["place", meta.places[row]]];
      if (found.missing) return M.tip(event, heading, where, `No ${meta.segment} was recorded here: not the same as zero.`);
      const ratio = arrays.ratio[found.cell];
      M.tip(event, heading, [
        [meta.metric, `${M.number(arrays.value[found.cell])} ${meta.unit}`],
        ["peers' median", Number.isNaN(ratio) ? "no peers" : `${M.number(arrays.peers[found.cell])} ${meta.unit}`],
        ["ratio", Number.isNaN(ratio) ? null : M.number(ratio, 3) + "x"],
        ["z", M.number(arrays.z[found.cell], 3)],
        ...this.look.details(found),
        ...where,
      ], "Click: this rank, its peers and this step in the timeline. Shift+click: the rank in 3D");
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
      const moves = event.shiftKey || this.meta.shape === "hosts" || this.meta.part_s;
      let chosen = null;
      const move = (next) => {
        const [px, py] = M.place(next, this.canvas);
        if (!this.dragging && Math.hypot(px - start[0], py - start[1]) < 4) return;
        this.dragging = true;
        M.tipOff();
        if (moves) this.moveBy(from, start[0] - px, start[1] - py);
        else chosen = this.drawBrush(start[0], px);
      };
      const release = (last) => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", release);
        this.brush.hidden = true;
        if (!this.dragging) this.open(last);
        else if (chosen) this.chooseSteps(chosen);
        this.dragging = false;
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", release);
    }
    moveBy(from, x, y) {
      const rows = Math.round((y * (from.r1 - from.r0)) / this.plot.height);
      const columns = Math.round((x * (from.c1 - from.c0)) / this.plot.width);
      this.setZoom({ r0: from.r0 + rows, r1: from.r1 + rows, c0: from.c0 + columns, c1: from.c1 + columns });
    }
    // The brush over whole columns between two places; returns the first and the last of them.
    drawBrush(one, other) {
      const { c0, c1 } = this.window, { x, y, width, height } = this.plot, wide = width / (c1 - c0);
      const columns = [Math.min(one, other), Math.max(one, other)].map((at) => {
        return Math.max(c0, Math.min(c1 - 1, c0 + Math.floor((at - x) / wide)));
      });
      const left = x + (columns[0] - c0) * wide, size = (columns[1] - columns[0] + 1) * wide;
      Object.assign(this.brush.style, { left: left + "px", top: y + "px", width: size + "px", height: height + "px" });
      this.brush.textContent = `steps ${this.look.stepAt(columns[0])} to ${this.look.lastStepOf(columns[1])}`;
      this.brush.hidden = false;
      return columns;
    }
    chooseSteps([first, last]) {
      const steps = `${this.look.stepAt(first)}:${this.look.lastStepOf(last)}`;
      M.change({ segment: this.meta.segment, steps, since: null, until: null, zoom: null });
    }
    allSteps() {
      const chosen = ["steps", "since", "until"].some((name) => M.parameter(name));
      if (chosen) M.change({ steps: null, since: null, until: null, zoom: null });
    }
    open(event) {
      const found = this.cellAt(event);
      if (!found) return;
      const { meta } = this, [row, column] = this.look.placeOf(found);
      M.tipOff();
      const query = new URLSearchParams(event.shiftKey ? meta.job : meta.link);
      query.set("rank", meta.ranks[row]);
      if (event.shiftKey) {
        if (meta.moments[column]) query.set("moment", meta.moments[column]);
        return M.go("/3d?" + query.toString());
      }
      if (meta.steps[column] !== undefined && !meta.part_s) query.set("steps", meta.steps[column]);
      return M.go("/timeline?" + query.toString());
    }
    // The canvas below the verdict and what is shown, as a PNG file.
    save() {
      const { canvas, meta } = this, density = window.devicePixelRatio || 1, head = 44;
      const sheet = document.createElement("canvas");
      const pen = M.fit(sheet, canvas.width / density, canvas.height / density + head);
      pen.fillStyle = M.colour("surface");
      pen.fillRect(0, 0, sheet.width, sheet.height);
      pen.fillStyle = M.colour("ink");
      const verdict = document.querySelector(".banner .sentence");
      pen.fillText(verdict ? verdict.textContent : "", 8, 16, canvas.width / density - 16);
      const last = this.look.lastStepOf ? this.look.lastStepOf(this.columns - 1) : meta.steps[meta.steps.length - 1];
      const what = `${new URLSearchParams(meta.job).get("run")}: ${meta.segment}, ${meta.metric}, ${meta.show}`;
      pen.fillText(`${what}, steps ${meta.steps[0]} to ${last}`, 8, 34, canvas.width / density - 16);
      pen.drawImage(canvas, 0, head, canvas.width / density, canvas.height / density);
      sheet.toBlob((blob) => {
        const link = document.createElement("a");
        link.href = URL.createObjectURL(blob);
        link.download = `heatmap-${meta.segment}.png`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      });
    }
    key(event) {
      if (!this.ready() || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.matches("input, select, textarea")) return;
      const { r0, r1, c0, c1 } = this.window;
      const down = Math.max(1, (r1 - r0) >> 2), across = Math.max(1, (c1 - c0) >> 2);
      const moves = {
        Escape: () => this.allSteps(),
        w: () => this.scaleBy(1 / 1.5, 1 / 1.5, 0.5, 0.5), s: () => this.scaleBy(1.5, 1.5, 0.5, 0.5), 0: () => this.setZoom(null),
        ArrowLeft: () => this.setZoom({ r0, r1, c0: c0 - across, c1: c1 - across }), ArrowRight: () => this.setZoom({ r0, r1, c0: c0 + across, c1: c1 + across }),
        ArrowUp: () => this.setZoom({ r0: r0 - down, r1: r1 - down, c0, c1 }), ArrowDown: () => this.setZoom({ r0: r0 + down, r1: r1 + down, c0, c1 }),
      };
      if (!moves[event.key]) return;
      // Arrows scroll the page as ever where the whole picture is in view.
      const whole = this.whole(), isWhole = Object.keys(whole).every((name) => whole[name] === this.window[name]);
      if (isWhole && event.key.startsWith("Arrow")) return;
      event.preventDefault();
      M.tipOff();
      moves[event.key]();
    }
  }
  M.register("heatmap", (element) => new Heatmap(element));
})();
