// The heatmap as ranks by steps: where ranks and steps are, the axes, the culprits' frames and labels.
"use strict";
(function () {
  const M = window.megascope;

  class RanksBySteps {
    constructor(heatmap) {
      this.heatmap = heatmap;
    }
    show({ meta, arrays }) {
      const bin = meta.bin || [1, 1], [rows, columns] = [meta.ranks.length, meta.steps.length];
      const layer = { arrays, bin, row: 0, column: 0, rows: Math.ceil(rows / bin[0]), columns: Math.ceil(columns / bin[1]) };
      return { rows, columns, layer };
    }
    rowOf(rank) {
      return this.heatmap.meta.ranks.indexOf(rank);
    }
    columnsIn(first, last) {
      const { steps, step_width } = this.heatmap.meta, inside = [];
      steps.forEach((step, at) => {
        if (step + step_width > first && step <= last) inside.push(at);
      });
      return inside;
    }
    rankAt(row) {
      return this.heatmap.meta.ranks[row];
    }
    stepAt(column) {
      return this.heatmap.meta.steps[column];
    }
    // What stands at a column: its step, or where spans belong to no step, seconds.
    label(column) {
      const { part_s, steps } = this.heatmap.meta;
      if (!part_s) return this.stepAt(column);
      return M.number((steps[0] + column) * part_s, 3);
    }
    lastStepOf(column) {
      return this.stepAt(column) + this.heatmap.meta.step_width - 1;
    }
    // Where in `meta` the rank and the step of a cell are.
    placeOf({ row, column, cell, missing }) {
      const { arrays } = this.heatmap; // of bins they name the cell that stands for each
      return arrays.row && !missing ? [arrays.row[cell], arrays.column[cell]] : [row, column];
    }
    zoomFrom([row0, row1, step0, step1], rows) {
      const inside = this.columnsIn(step0, step1);
      if (!inside.length) return null;
      return { r0: Math.min(row0, rows - 1), r1: Math.min(row1 + 1, rows), c0: inside[0], c1: inside[inside.length - 1] + 1 };
    }
    zoomText({ r0, r1, c0, c1 }) {
      return [r0, r1 - 1, this.stepAt(c0), this.lastStepOf(c1 - 1)].join(":");
    }
    heading(found, packed) {
      const { meta } = this.heatmap, [row, column] = this.placeOf(found), step = meta.steps[column];
      if (meta.part_s) return `rank ${meta.ranks[row]}, ${this.label(column)} to ${this.label(column + 1)} s`;
      const when = meta.step_width > 1 ? `steps ${step} to ${step + meta.step_width - 1}` : `step ${step}`;
      return `rank ${meta.ranks[row]}, ${when}` + (packed ? " (the hottest here)" : "");
    }
    details(found) {
      const ended = this.heatmap.meta.moments[this.placeOf(found)[1]];
      return [[this.heatmap.meta.part_s ? "until" : "step ended", M.moment(ended)]];
    }
    texts(cell, value) {
      return [value];
    }
    frames() {
      const found = [];
      for (const { ranks, steps, stage } of this.heatmap.marks) {
        const columns = this.columnsIn(steps[0], steps[1]);
        if (!columns.length) continue;
        for (const [row, last] of this.rowsOf(stage)) {
          found.push({ row, rows: last - row + 1, from: columns[0], to: columns[columns.length - 1] + 1, least: 5 });
        }
        for (const rank of ranks) {
          const row = this.rowOf(rank);
          if (row >= 0) found.push({ row, from: columns[0], to: columns[columns.length - 1] + 1, least: 5 });
        }
      }
      return found;
    }
    // First and last of rows beside each other that are of a stage, such as "pp2".
    rowsOf(stage) {
      const found = [];
      if (stage) this.heatmap.meta.places.forEach((place, at) => {
        if (!place.split(" ").includes(stage)) return;
        const last = found[found.length - 1];
        if (last && at === last[1] + 1) last[1] = at;
        else found.push([at, at]);
      });
      return found;
    }
    drawAxes(context) {
      const { plot: { x, y, width, height }, window: { r0, r1, c0, c1 }, marks } = this.heatmap;
      context.fillStyle = M.colour("quiet");
      context.textBaseline = "middle";
      context.textAlign = "right";
      const every = Math.max(1, Math.ceil(((r1 - r0) * 15) / height));
      const culprits = new Map(marks.flatMap((mark) => mark.ranks.map((rank) => [this.rowOf(rank), rank])));
      const middle = (row) => y + ((row - r0 + 0.5) * height) / (r1 - r0);
      const shown = [...culprits].filter(([row]) => row >= r0 && row < r1);
      const heads = this.sectionHeads(middle, shown.map(([row]) => middle(row))), named = heads.filter((head) => head.label);
      for (let row = r0; row < r1; row += every) {
        const near = named.some((head) => Math.abs(head.at - middle(row)) < 14);
        if (!near && !nearCulprit(row, every, culprits)) context.fillText("rank " + this.rankAt(row), x - 8, middle(row));
      }
      this.drawSections(context, heads);
      this.drawCulpritLabels(context, shown, middle);
      context.fillStyle = M.colour("quiet");
      context.textAlign = "center";
      context.textBaseline = "top";
      const step = Math.max(1, Math.ceil(((c1 - c0) * 46) / width));
      for (let column = c0; column < c1; column += step) {
        context.fillText(this.label(column), x + ((column - c0 + 0.5) * width) / (c1 - c0), y + height + 4);
      }
      context.fillText(this.heatmap.meta.part_s ? "seconds from the first span" : "step", x + width / 2, y + height + 19);
    }
    // Sections in view with their name in their middle, if it has room beside others and the `taken` places.
    sectionHeads(middle, taken) {
      const { r0, r1 } = this.heatmap.window, heads = [];
      for (const [label, start, last] of this.heatmap.meta.sections) {
        const first = Math.max(r0, start);
        if (last < r0 || first >= r1) continue;
        const at = (middle(first) + middle(Math.min(last, r1 - 1))) / 2;
        const named = heads.length ? heads[heads.length - 1].named : undefined;
        const fits = !(at - named < 15) && !taken.some((other) => Math.abs(at - other) < 14);
        heads.push({ label: fits ? label : "", at, line: first > r0 ? first : null, named: fits ? at : named });
      }
      return heads;
    }
    drawSections(context, heads) {
      const { plot: { x, y, width, height }, window: { r0, r1 } } = this.heatmap;
      context.save();
      context.strokeStyle = M.colour("ink");
      const fits = height / (r1 - r0) >= 4 ? width : 0; // never over a cell that it would hide
      const accused = new Set(this.heatmap.marks.map(({ stage }) => stage));
      for (const { label, at, line } of heads) {
        context.fillStyle = M.colour(accused.has(label.replace(" ", "")) ? "fault" : "ink");
        if (label) context.fillText(label, x - 8, at, 84);
        if (line === null || heads.length * 4 > height) continue;
        context.globalAlpha = 0.55;
        context.strokeRect(x - 8, Math.round(y + ((line - r0) * height) / (r1 - r0)) - 0.5, 8 + fits, 0);
        context.globalAlpha = 1;
      }
      context.restore();
    }
    // Labels of [row, rank]; of several that would lie on each other, the first says how many more there are.
    drawCulpritLabels(context, culprits, middle) {
      const labels = (this.heatmap.labels = []);
      for (const [row, rank] of culprits.sort(([one], [other]) => one - other)) {
        const last = labels[labels.length - 1];
        if (last && middle(row) - last.at < 14) last.more++;
        else labels.push({ at: middle(row), rank, more: 0 });
      }
      context.save();
      context.fillStyle = M.colour("fault");
      context.font = "bold 12px " + M.colour("font");
      for (const { at, rank, more } of labels) {
        const text = more ? `▶ ${rank} +${more}` : "▶ rank " + rank, right = this.heatmap.plot.x - 5;
        const wide = context.measureText(text).width;
        context.clearRect(right - wide - 2, at - 7, wide + 2, 14);
        context.fillText(text, right, at, right);
      }
      context.restore();
    }
  }
  function nearCulprit(row, every, culprits) {
    for (let near = row - every + 1; near < row + every; near++) if (culprits.has(near)) return true;
    return false;
  }
  M.RanksBySteps = RanksBySteps;
})();
