// The whole fleet at a glance beside the 3D picture: every TP group a cell, by the rarest state of its ranks.
"use strict";
(function () {
  const M = window.megascope;
  const INNER = "tp", MOST_WIDE = 13, GAP = 5;

  M.SceneOverview = class {
    constructor(parent, choose) {
      this.canvas = M.canvas(parent, "All groups of ranks, by state");
      this.canvas.className = "scene-overview";
      this.choose = choose;
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("click", (event) => {
        const cell = this.cellAt(event);
        if (cell) this.choose(cell.culprits[0] ?? cell.ranks[0]);
      });
    }
    show(model) {
      this.model = model;
      const long = model.axes.filter((_, number) => model.sizes[number] > 1);
      this.inner = long.includes(INNER) ? INNER : long.at(-1);
      const others = long.filter((axis) => axis !== this.inner);
      // The longest axis runs across, the others down.
      const size = (axis) => model.sizes[model.axes.indexOf(axis)];
      this.across = others.reduce((one, axis) => (one === undefined || size(axis) > size(one) ? axis : one), undefined);
      this.down = others.filter((axis) => axis !== this.across);
      this.columns = this.across ? size(this.across) : 1;
      this.rows = this.down.reduce((product, axis) => product * size(axis), 1);
      this.group();
      this.moved();
    }
    group() {
      const model = this.model, column = (axis) => model.coordinates[model.axes.indexOf(axis)];
      const found = new Map();
      model.ranks.forEach((rank, at) => {
        const x = this.across ? column(this.across)[at] : 0;
        const y = this.down.reduce((row, axis) => (row === null || column(axis)[at] === null ? null : row * model.sizes[model.axes.indexOf(axis)] + column(axis)[at]), 0);
        if (x === null || y === null) return;
        const key = y * this.columns + x;
        if (!found.has(key)) found.set(key, { x, y, ranks: [], at: [] });
        found.get(key).ranks.push(rank);
        found.get(key).at.push(at);
      });
      this.cells = [...found.values()];
    }
    // States have changed: which one a cell shows is told by how rare it is among all ranks.
    moved() {
      const model = this.model, counts = {};
      const kind = (at) => model.doing[at] + (model.waits[at] ? "+" : "");
      model.ranks.forEach((_, at) => (counts[kind(at)] = (counts[kind(at)] || 0) + 1));
      for (const cell of this.cells) {
        cell.culprits = cell.ranks.filter((rank) => model.culprits.has(rank));
        cell.doing = model.doing[cell.at.reduce((one, other) => (counts[kind(other)] < counts[kind(one)] ? other : one))];
      }
    }
    layout(width) {
      const bands = Math.max(1, Math.ceil((this.columns * 7) / width)), wide = Math.ceil(this.columns / bands);
      const size = Math.max(2, Math.min(MOST_WIDE, Math.floor((width - 2) / wide)));
      Object.assign(this, { bands, wide, size });
      return bands * (this.rows * size + GAP) + 2;
    }
    corner(cell) {
      const band = Math.floor(cell.x / this.wide);
      return [1 + (cell.x - band * this.wide) * this.size, 1 + band * (this.rows * this.size + GAP) + cell.y * this.size];
    }
    draw(width, chosen) {
      const height = this.layout(width), context = M.fit(this.canvas, width, height), size = this.size;
      const ink = Object.fromEntries([...Object.values(M.LOOKS).map(([colour]) => colour), "missing", "surface", "fault", "select"].map((name) => [name, M.colour(name)]));
      context.fillStyle = ink.surface;
      context.fillRect(0, 0, width, height);
      const shown = this.model.shown.length && this.model.data.shown ? new Set(this.model.shown) : null;
      const loud = [];
      for (const cell of this.cells) {
        const [x, y] = this.corner(cell), [colour, shape] = M.LOOKS[cell.doing];
        context.globalAlpha = shown && !cell.ranks.some((rank) => shown.has(rank)) ? 0.55 : 1;
        context.fillStyle = cell.doing === "missing" ? ink.missing : ink[colour];
        context.fillRect(x, y, size - 1, size - 1);
        context.globalAlpha = 1;
        if (["dead", "stopped", "missing"].includes(cell.doing) && size >= 6) {
          context.fillStyle = context.strokeStyle = cell.doing === "missing" ? ink[colour] : ink.surface;
          M.drawShape(context, shape, x + (size - 1) / 2, y + (size - 1) / 2, size / 4);
        }
        if (cell.culprits.length || cell.ranks.includes(chosen)) loud.push(cell);
      }
      for (const cell of loud) {
        const [x, y] = this.corner(cell), isRoot = cell.culprits.length > 0;
        if (isRoot) {
          context.fillStyle = ink.fault;
          context.fillRect(x - 2, y - 2, size + 3, size + 3);
        }
        context.strokeStyle = cell.ranks.includes(chosen) ? ink.select : ink.fault;
        context.lineWidth = 2;
        context.strokeRect(x - 3, y - 3, size + 5, size + 5);
      }
      context.lineWidth = 1;
    }
    cellAt(event) {
      if (!this.cells || !this.size) return null;
      const [px, py] = M.place(event, this.canvas);
      return this.cells.find((cell) => {
        const [x, y] = this.corner(cell);
        return px >= x && px < x + this.size && py >= y && py < y + this.size;
      }) || null;
    }
    text() {
      const rows = this.down.length ? `, ${this.down.join(" × ")} downwards` : "";
      const folded = this.bands > 1 ? ` in ${this.bands} bands` : "";
      return this.across ? `All ${this.model.ranks.length.toLocaleString("en-US")} ranks: a cell is a ${this.inner} group, ${this.across} to the right${folded}${rows}` : `All ranks`;
    }
    hover(event) {
      const cell = this.cellAt(event);
      if (!cell) return M.tipOff();
      const model = this.model, counts = {};
      for (const at of cell.at) counts[M.DOING[model.doing[at]][1]] = (counts[M.DOING[model.doing[at]][1]] || 0) + 1;
      const others = [this.across, ...this.down].filter(Boolean).map((axis) => `${axis} ${model.coordinates[model.axes.indexOf(axis)][cell.at[0]]}`);
      M.tip(event, others.join(", ") || "all ranks", [
        ["ranks", cell.ranks.length > 8 ? `${cell.ranks[0]} to ${cell.ranks.at(-1)}` : cell.ranks.join(", ")],
        ["hosts", [...new Set(cell.at.map((at) => model.hosts[at]))].slice(0, 4).join(", ")],
        ...Object.entries(counts).map(([word, many]) => [word, String(many)]),
        ["at the root", cell.culprits.join(", ")],
      ], "Click: show them");
      return undefined;
    }
  };
})();
