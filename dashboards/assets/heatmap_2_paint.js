// The heatmap's drawing: cells, axes, the culprits' frames, the scale. Where rows or steps exceed pixels, each pixel
// shows its hottest cell.
"use strict";
(function () {
  const M = window.megascope;
  const LEFT = 92, TOP = 8, BOTTOM = 34, RIGHT = 86;

  class HeatmapPainter {
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
      const culprits = new Map(this.marks.flatMap((mark) => mark.ranks.map((rank) => [this.rowOf(rank), rank])));
      const middle = (row) => y + ((row - r0 + 0.5) * height) / (r1 - r0);
      for (let row = r0; row < r1; row += every) {
        if (!this.nearCulprit(row, every, culprits)) context.fillText("rank " + this.rankAt(row), x - 8, middle(row));
      }
      this.drawCulpritLabels(context, [...culprits].filter(([row]) => row >= r0 && row < r1), middle);
      context.strokeStyle = M.colour("ink");
      context.globalAlpha = 0.55;
      for (const [, start] of this.meta.sections) {
        const first = Math.floor(start / this.bin_size[0]);
        if (first <= r0 || first >= r1) continue;
        const line = Math.round(y + ((first - r0) * height) / (r1 - r0)) + 0.5;
        context.strokeRect(x, line, width, 0);
      }
      context.globalAlpha = 1;
      context.textAlign = "center";
      context.textBaseline = "top";
      const step = Math.max(1, Math.ceil(((c1 - c0) * 46) / width));
      for (let column = c0; column < c1; column += step) {
        context.fillText(this.stepAt(column), x + ((column - c0 + 0.5) * width) / (c1 - c0), y + height + 4);
      }
      context.fillText("step", x + width / 2, y + height + 19);
    }
    nearCulprit(row, every, culprits) {
      for (let near = row - every + 1; near < row + every; near++) if (culprits.has(near)) return true;
      return false;
    }
    // Labels of [row, rank]; of several that would lie on each other, the first says how many more there are.
    drawCulpritLabels(context, culprits, middle) {
      this.labels = [];
      for (const [row, rank] of culprits.sort(([one], [other]) => one - other)) {
        const last = this.labels[this.labels.length - 1];
        if (last && middle(row) - last.at < 14) last.more++;
        else this.labels.push({ at: middle(row), rank, more: 0 });
      }
      context.save();
      context.fillStyle = M.colour("fault");
      context.font = "bold 12px " + M.colour("font");
      for (const { at, rank, more } of this.labels) {
        context.fillText(more ? `▶ ${rank} +${more}` : "▶ rank " + rank, this.plot.x - 5, at);
      }
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
        const columns = this.columnsIn(mark.steps[0], mark.steps[1]);
        if (!columns.length) continue;
        const left = x + ((columns[0] - c0) * width) / (c1 - c0);
        const right = x + ((columns[columns.length - 1] + 1 - c0) * width) / (c1 - c0);
        for (const rank of mark.ranks) {
          const row = this.rowOf(rank);
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
  }
  M.HeatmapPainter = HeatmapPainter;
})();
