// The heatmap's drawing: cells, culprits' frames, the scale. Where cells exceed pixels, each pixel shows its hottest cell.
// The axes of ranks by steps are in heatmap_3_steps.js, those of hosts by GPUs in heatmap_4_hosts.js. Places are those of
// single cells: rows of `meta.ranks`, columns of `meta.steps`. `layer` is what is drawn from: `arrays` [rows x columns],
// each element the hottest of `bin` cells, from the cell (`row`, `column`) on; heatmap_4_layers.js chooses it.
"use strict";
(function () {
  const M = window.megascope;
  const LEFT = 98, TOP = 8, BOTTOM = 34, RIGHT = 86;
  const GAP = -2, NOTHING = -1;

  class HeatmapPainter {
    draw() {
      const width = this.element.clientWidth, height = this.element.clientHeight || 430;
      const context = (this.context = M.fit(this.canvas, width, height));
      this.plot = { x: LEFT, y: TOP, width: width - LEFT - RIGHT, height: height - TOP - BOTTOM };
      this.bin();
      const { x, y } = this.plot;
      this.drawCells(context);
      this.drawTexts(context);
      this.look.drawAxes(context);
      this.drawMarks(context);
      this.drawScale(context, x + this.plot.width + 12, y);
    }
    // Bins stick out of a window that does not begin and end with one.
    drawCells(context) {
      const { x, y, width, height } = this.plot, { r0, r1, c0, c1 } = this.binned;
      const left = this.xOf(c0), top = this.yOf(r0), place = [left, top, this.xOf(c1) - left, this.yOf(r1) - top];
      const [picture, missing, alone] = this.pictures();
      context.save();
      context.beginPath();
      context.rect(x, y, width, height);
      context.clip();
      context.imageSmoothingEnabled = false;
      this.drawPattern(context, missing, place, M.hatch);
      this.drawPattern(context, (this.alone = alone), place, M.dots);
      context.drawImage(picture, ...place);
      context.restore();
    }
    xOf(column) {
      const { x, width } = this.plot, { c0, c1 } = this.window;
      return x + ((column - c0) * width) / (c1 - c0);
    }
    yOf(row) {
      const { y, height } = this.plot, { r0, r1 } = this.window;
      return y + ((row - r0) * height) / (r1 - r0);
    }
    // A pattern keeps its size, whatever the size of the cells that it fills.
    drawPattern(context, mask, [left, top, wide, high], pattern) {
      if (!mask) return;
      const { x, y, width, height } = this.plot;
      const layer = document.createElement("canvas"), pen = M.fit(layer, width, height);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(mask, left - x, top - y, wide, high);
      pen.globalCompositeOperation = "source-in";
      pen.fillStyle = pattern(pen);
      pen.fillRect(0, 0, width, height);
      context.drawImage(layer, x, y, width, height);
    }
    // Measured, but nobody does the same work: it has no ratio.
    isAlone(cell) {
      return Number.isNaN(this.shown[cell]) && !Number.isNaN(this.arrays.value[cell]);
    }
    passes(cell) {
      return this.above === null || this.arrays.ratio[cell] >= this.above;
    }
    bin() {
      // Each picture element takes the largest value of the elements of its layer, of those from the threshold on if
      // there are any; `winner` remembers which one that was. r0 to c1: the cells that they stand for.
      const { at } = this.arrays, { bin: [high, wide], row: firstRow, column: firstColumn, rows, columns } = this.layer;
      const density = window.devicePixelRatio || 1, shown = this.window;
      const from = Math.floor((shown.r0 - firstRow) / high), to = Math.min(rows, Math.ceil((shown.r1 - firstRow) / high));
      const left = Math.floor((shown.c0 - firstColumn) / wide);
      const right = Math.min(columns, Math.ceil((shown.c1 - firstColumn) / wide));
      const ny = Math.min(to - from, Math.max(1, Math.floor(this.plot.height * density)));
      const nx = Math.min(right - left, Math.max(1, Math.floor(this.plot.width * density)));
      const winner = new Int32Array(nx * ny).fill(at ? GAP : NOTHING);
      for (let row = from; row < to; row++) {
        const py = Math.floor(((row - from) * ny) / (to - from));
        for (let column = left; column < right; column++) {
          const cell = row * columns + column;
          const pixel = py * nx + Math.floor(((column - left) * nx) / (right - left));
          if (at && at[cell] < 0) continue;
          const value = this.shown[cell], old = winner[pixel];
          if (Number.isNaN(value)) {
            if (old < 0) winner[pixel] = this.isAlone(cell) ? cell : NOTHING;
          } else if (old < 0 || this.isHotter(cell, old)) winner[pixel] = cell;
        }
      }
      const [r0, r1, c0, c1] = [firstRow + from * high, firstRow + to * high, firstColumn + left * wide, firstColumn + right * wide];
      this.binned = { nx, ny, winner, r0, r1, c0, c1 };
    }
    // Whether a picture element stands for several cells.
    isPacked() {
      const { nx, ny, r0, r1, c0, c1 } = this.binned;
      return ny < r1 - r0 || nx < c1 - c0;
    }
    isHotter(cell, old) {
      if (this.above !== null) {
        const one = this.passes(cell), other = this.passes(old);
        if (one !== other) return one;
      }
      return this.shown[cell] > this.shown[old] || Number.isNaN(this.shown[old]);
    }
    colourAt(value) {
      return Math.max(0, Math.min(255, Math.round(this.scale.at(value) * 255)));
    }
    // The cells as a picture of one element each, and masks of what is missing and of what has no peers (null: nothing).
    pictures() {
      const { nx, ny, winner } = this.binned;
      const [pen, image, pixels] = blank(nx, ny), [shade, holes, dots] = blank(nx, ny);
      const [veil, lone, ones] = blank(nx, ny);
      const colours = M.heatColours(this.scale.diverging), quiet = M.pixel(M.colour("below"));
      let missing = false, alone = false;
      for (let at = 0; at < pixels.length; at++) {
        const cell = winner[at];
        if (cell >= 0 && Number.isNaN(this.shown[cell])) alone = Boolean((ones[at] = 0xff000000));
        else if (cell >= 0) pixels[at] = this.passes(cell) ? colours[this.colourAt(this.shown[cell])] : quiet;
        else if (cell === NOTHING) missing = Boolean((dots[at] = 0xff000000));
      }
      pen.putImageData(image, 0, 0);
      shade.putImageData(holes, 0, 0);
      veil.putImageData(lone, 0, 0);
      return [pen.canvas, missing ? shade.canvas : null, alone ? veil.canvas : null];
    }
    // Numbers in the cells, where few enough are in view.
    drawTexts(context) {
      const { r0, r1, c0, c1 } = this.window, { x, y, width, height } = this.plot;
      const wide = width / (c1 - c0), high = height / (r1 - r0);
      if (wide < 44 || high < 16 || this.isPacked()) return;
      const colours = M.heatColours(this.scale.diverging), { at } = this.arrays, { row: first, column: left, columns } = this.layer;
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (let row = r0; row < r1; row++) for (let column = c0; column < c1; column++) {
        const cell = (row - first) * columns + column - left, value = this.shown[cell];
        if (at && at[cell] < 0) continue;
        const missing = Number.isNaN(value), ratio = this.meta.show === "ratio";
        if (!missing && !this.passes(cell)) continue;
        const text = missing ? (this.isAlone(cell) ? "no peers" : "no data") : ratio ? value.toFixed(2) + "x" : M.number(value, 3);
        const lines = this.look.texts(cell, text, high), centre = x + (column - c0 + 0.5) * wide;
        const middle = y + (row - r0 + 0.5) * high - (lines.length - 1) * 7;
        if (missing) {
          const size = Math.max(...lines.map((line) => context.measureText(line).width)) + 8;
          context.fillStyle = M.colour("surface");
          context.fillRect(centre - size / 2, middle - 8, size, 14 * lines.length + 2);
        }
        context.fillStyle = missing ? M.colour("ink") : M.inkOn(M.hex(colours[this.colourAt(value)]));
        lines.forEach((line, place) => context.fillText(line, centre, middle + place * 14, wide - 4));
      }
    }
    drawMarks(context) {
      const { x, y, width, height } = this.plot;
      context.save();
      context.beginPath();
      context.rect(x, y, width, height);
      context.clip();
      context.strokeStyle = M.colour("select");
      context.lineWidth = 1.5;
      for (const { row, from, to, least, rows = 1 } of this.look.frames()) {
        const left = this.xOf(from), right = this.xOf(to), top = this.yOf(row), size = this.yOf(row + rows) - top;
        const high = Math.max(least, size), wide = Math.max(least, right - left);
        context.strokeRect(Math.min(left, (left + right - wide) / 2), Math.min(top, top + (size - high) / 2), wide, high);
      }
      context.restore();
    }
    drawScale(context, x, y) {
      const height = Math.min(200, this.plot.height - 60), colours = M.heatColours(this.scale.diverging);
      for (let at = 0; at < height; at++) {
        context.fillStyle = M.hex(colours[Math.round(255 * (1 - at / (height - 1)))]);
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
      const keys = [["no data", M.hatch(context)]];
      if (this.alone) keys.push(["no peers", M.dots(context)]);
      if (this.above !== null) keys.push([`< ${M.number(this.above, 4)}x`, M.colour("below")]);
      keys.forEach(([name, fill], place) => {
        const at = y + height + 42 + 20 * place;
        context.fillStyle = fill;
        context.fillRect(x, at, 14, 14);
        context.strokeStyle = M.colour("quiet");
        context.strokeRect(x + 0.5, at + 0.5, 13, 13);
        context.fillStyle = M.colour("quiet");
        context.fillText(name, x + 19, at);
      });
    }
  }
  function blank(width, height) {
    const canvas = document.createElement("canvas");
    canvas.width = width;
    canvas.height = height;
    const pen = canvas.getContext("2d"), image = pen.createImageData(width, height);
    return [pen, image, new Uint32Array(image.data.buffer)];
  }
  M.HeatmapPainter = HeatmapPainter;
})();
