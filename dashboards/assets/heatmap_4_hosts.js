// The heatmap as hosts by GPUs: a cell a rank, hosts side by side; axes, the culprits' frames and labels.
"use strict";
(function () {
  const M = window.megascope;

  class HostsByGpus {
    constructor(heatmap) {
      this.heatmap = heatmap;
    }
    show({ meta, arrays }) {
      const { rows, columns } = meta.grid;
      return { rows, columns, layer: { arrays, bin: [1, 1], row: 0, column: 0, rows, columns } };
    }
    // Where in `meta` the rank of a cell and its worst step are.
    placeOf({ cell }) {
      const { at, worst_column } = this.heatmap.arrays;
      return [at[cell], worst_column[cell]];
    }
    zoomFrom([row0, row1, column0, column1], rows, columns) {
      if (row0 >= rows || column0 >= columns) return null;
      return { r0: row0, r1: Math.min(row1 + 1, rows), c0: column0, c1: Math.min(column1 + 1, columns) };
    }
    zoomText({ r0, r1, c0, c1 }) {
      return [r0, r1 - 1, c0, c1 - 1].join(":");
    }
    heading(found, packed) {
      const { meta } = this.heatmap, [place] = this.placeOf(found);
      const steps = meta.part_s ? "the whole run" : `${meta.steps.length * meta.step_width} steps`;
      const of = meta.over === "worst" ? "at its worst" : `mean of ${steps}`;
      return `rank ${meta.ranks[place]}, ${of}` + (packed ? " (the hottest here)" : "");
    }
    details(found) {
      const { arrays, meta } = this.heatmap, [, column] = this.placeOf(found), worst = arrays.worst[found.cell];
      if (Number.isNaN(worst)) return [];
      const at = meta.part_s ? `${M.number(meta.steps[column] * meta.part_s, 3)} s` : `step ${meta.steps[column]}`;
      return [["worst", `${M.number(worst, 3)}x at ${at}`], ["it ended", M.moment(meta.moments[column])]];
    }
    texts(cell, value, high) {
      return high >= 32 ? [`rank ${this.heatmap.meta.ranks[this.heatmap.arrays.at[cell]]}`, value] : [value];
    }
    cellsOf(ranks) {
      const { meta, arrays, columns } = this.heatmap, wanted = new Set(ranks), found = [];
      arrays.at.forEach((place, cell) => {
        if (place < 0 || !wanted.has(meta.ranks[place])) return;
        found.push({ rank: meta.ranks[place], row: Math.floor(cell / columns), column: cell % columns });
      });
      return found;
    }
    frames() {
      const ranks = this.heatmap.marks.flatMap((mark) => mark.ranks);
      const frames = this.cellsOf(ranks).map(({ row, column }) => ({ row, from: column, to: column + 1, least: 9 }));
      return [...frames, ...this.heatmap.marks.flatMap(({ stage }) => this.framesOf(stage))];
    }
    // Frames of a stage, such as "pp2": one of all cells beside each other.
    framesOf(stage) {
      const { meta } = this.heatmap, inside = meta.ranks.filter((_, at) => meta.places[at].split(" ").includes(stage));
      const frames = [];
      for (const { row, column } of stage ? this.cellsOf(inside) : []) {
        const last = frames[frames.length - 1];
        if (last && last.row === row && last.to === column) last.to++;
        else frames.push({ row, from: column, to: column + 1, least: 0 });
      }
      return frames;
    }
    drawAxes(context) {
      const { plot: { x, y, width, height }, window: { r0, r1, c0, c1 }, meta } = this.heatmap;
      const middle = (row) => y + ((row - r0 + 0.5) * height) / (r1 - r0);
      const every = Math.max(1, Math.ceil(((r1 - r0) * 15) / height));
      const heads = meta.sections.map(([label, first]) => [first, label]).filter(([row]) => row >= r0 && row < r1);
      context.textBaseline = "middle";
      context.textAlign = "right";
      context.fillStyle = M.colour("quiet");
      for (let row = r0; row < r1; row += every) {
        if (heads.some(([first]) => first !== row && Math.abs(middle(first) - middle(row)) < 14)) continue;
        if (heads.some(([first]) => first === row)) continue; // with its section's name below
        context.fillText(meta.grid.hosts[row], x - 8, middle(row), 84);
      }
      context.fillStyle = M.colour("ink");
      for (const [row, label] of heads) {
        const host = meta.grid.hosts[row], roomy = height / (r1 - r0) >= 28;
        if (roomy) context.fillText(host, x - 8, middle(row) + 7, 84);
        context.fillText(roomy ? label : `${label} ${host}`, x - 8, middle(row) - (roomy ? 7 : 0), 84);
        if (row > r0) context.fillRect(x - 6, y + ((row - r0) * height) / (r1 - r0) - 0.5, 6, 1);
      }
      context.fillStyle = M.colour("quiet");
      context.textAlign = "center";
      context.textBaseline = "top";
      const slot = meta.grid.gpus + 1, wide = width / (c1 - c0);
      for (let column = c0; column < c1 && wide >= 12; column++) {
        if (column % slot < meta.grid.gpus) context.fillText(column % slot, x + (column - c0 + 0.5) * wide, y + height + 4);
      }
      const across = Math.ceil((meta.grid.columns + 1) / slot);
      const text = across > 1 ? `${across} hosts side by side, ${meta.grid.gpus} GPUs each` : "GPU of the host";
      context.fillText(text, x + width / 2, y + height + 19);
      this.drawLabels(context, middle, wide);
    }
    drawLabels(context, middle, wide) {
      const { plot: { x, width }, window: { r0, r1, c0, c1 }, marks } = this.heatmap;
      const labels = (this.heatmap.labels = []);
      if (wide >= 44) return; // the cells themselves say which rank they are
      context.save();
      context.font = "bold 12px " + M.colour("font");
      context.textBaseline = "middle";
      context.textAlign = "left";
      for (const { rank, row, column } of this.cellsOf(marks.flatMap((mark) => mark.ranks))) {
        if (row < r0 || row >= r1 || column < c0 || column >= c1) continue;
        const size = context.measureText("rank " + rank).width + 8;
        let left = x + (column - c0 + 1) * wide + 5;
        if (left + size > x + width) left = x + (column - c0) * wide - size - 5;
        const at = middle(row);
        if (labels.some((one) => Math.abs(one.at - at) < 15 && Math.abs(one.left - left) < size)) continue;
        labels.push({ at, left, rank, more: 0 });
        context.fillStyle = M.colour("surface");
        context.fillRect(left, at - 8, size, 16);
        context.fillStyle = M.colour("fault");
        context.fillText("rank " + rank, left + 4, at);
      }
      context.restore();
    }
  }
  M.HostsByGpus = HostsByGpus;
})();
