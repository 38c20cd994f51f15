// The 3D page's data (dashboards/scene/model.py): ranks with their places, states, operations in flight and waits.
"use strict";
(function () {
  const M = window.megascope, NEAR = 8;
  // State: colour variable, shape, size. Shapes differ too, so that colour is never the only sign.
  M.LOOKS = {
    compute: ["compute", "circle", 1.0], collective: ["collective", "triangle", 1.0], p2p: ["p2p", "diamond", 1.1],
    idle: ["other", "box", 0.8], stopped: ["fault", "bars", 1.1], ended: ["good", "square", 0.8],
    dead: ["fault", "cross", 1.2], missing: ["missing-line", "ring", 0.9],
  };
  M.DOING = {
    compute: ["●", "own work"], collective: ["▲", "in a collective"], p2p: ["◆", "in a send or receive"], idle: ["□", "nothing in flight"],
    stopped: ["‖", "process stopped"], ended: ["■", "ended"], dead: ["✖", "process gone"], missing: ["○", "no data"],
  };
  const LETTERS = { c: "compute", o: "collective", p: "p2p", i: "idle", s: "stopped", e: "ended", d: "dead", m: "missing" };

  const unrolled = (runs) => runs.flatMap(([value, count]) => Array(count).fill(value));
  const summed = (steps) => {
    let at = 0;
    return steps.map((step) => (at += step));
  };

  M.SceneModel = class {
    constructor(data) {
      this.data = data;
      [this.axes, this.sizes] = [data.axes, data.sizes];
      this.ranks = typeof data.ranks === "number" ? Array.from({ length: data.ranks }, (_, rank) => rank) : data.ranks;
      this.index = new Map(this.ranks.map((rank, at) => [rank, at]));
      this.hosts = unrolled(data.hosts);
      this.byHost = new Map();
      this.hosts.forEach((host, at) => this.byHost.has(host) ? this.byHost.get(host).push(at) : this.byHost.set(host, [at]));
      this.coordinates = data.coordinates || this.counted();
      if (this.ranks.length > 1 && !data.sizes.some((size) => size > 1)) this.standInRows();
      this.groups = new Map(Object.entries(data.groups).map(([id, [kind, steps, size]]) => [id, { kind, ranks: summed(steps), size }]));
      this.verdict = data.verdict;
      this.culprits = new Map();
      for (const culprit of (data.verdict && data.verdict.culprits) || []) {
        for (const rank of culprit.ranks) if (!this.culprits.has(rank)) this.culprits.set(rank, culprit);
      }
      this.shown = data.shown || this.ranks;
      this.told = new Set(this.shown);
      this.stacks = data.stacks || {};
      this.moveTo(data);
    }
    counted() {
      let stride = 1;
      const columns = [];
      for (let axis = this.axes.length - 1; axis >= 0; axis--) {
        const by = stride, size = this.sizes[axis];
        columns.unshift(this.ranks.map((rank) => Math.floor(rank / by) % size));
        stride *= size;
      }
      return columns;
    }
    // Of a job whose mesh is not known (dumps, logs) each host is a row; without hosts, rows are of equal length.
    standInRows() {
      const isKnown = this.byHost.size > 1 && this.byHost.size < this.ranks.length && !this.byHost.has(null);
      const wide = isKnown ? 0 : Math.ceil(Math.sqrt(this.ranks.length)), hosts = [...this.byHost.keys()];
      const rows = isKnown ? this.hosts.map((host) => hosts.indexOf(host)) : this.ranks.map((_, at) => Math.floor(at / wide));
      const columns = isKnown ? this.ranks.map((_, at) => this.byHost.get(this.hosts[at]).indexOf(at)) : this.ranks.map((_, at) => at % wide);
      this.axes = isKnown ? ["host", "rank of the host"] : ["row", "column"];
      this.coordinates = [rows, columns];
      this.sizes = this.coordinates.map((column) => 1 + column.reduce((one, other) => Math.max(one, other), 0));
    }
    // What differs from moment to moment.
    moveTo(moment) {
      this.moment = moment;
      this.doing = [...moment.doing].map((letter) => LETTERS[letter.toLowerCase()]);
      this.waits = [...moment.doing].map((letter) => letter !== letter.toLowerCase());
      this.flights = new Map();
      moment.flights.forEach(([rank, name, kind, group, sequence, peer, age, microbatch], order) => {
        if (!this.flights.has(rank)) this.flights.set(rank, []);
        this.flights.get(rank).push({ rank, segment: moment.names[name], kind: moment.names[kind], group, sequence, peer, age, microbatch, order });
      });
      const told = this.shown.filter((rank) => moment.doing[this.index.get(rank)].toLowerCase() !== "m");
      const steps = unrolled(moment.steps), processes = unrolled(moment.processes);
      this.steps = new Map(told.map((rank, at) => [rank, steps[at]]));
      this.processes = new Map(told.map((rank, at) => [rank, processes[at]]));
      this.operations = moment.operations.map(([group, sequence, name, absent, lacks, waiting, many]) => ({
        group, sequence, segment: moment.names[name], absent: summed(absent), lacks, waiting: summed(waiting), many,
      }));
      this.lacked = new Map();
      this.joined = new Map();
      for (const operation of this.operations) {
        for (const [ranks, into] of [[operation.absent, this.lacked], [operation.waiting, this.joined]]) {
          for (const rank of ranks) into.has(rank) ? into.get(rank).push(operation) : into.set(rank, [operation]);
        }
      }
      this.toward = new Map();
      this.shown.forEach((rank, at) => moment.toward[at] !== null && this.toward.set(rank, moment.toward[at]));
    }
    flow(rank, operations, side) {
      return [...new Set((operations.get(rank) || []).flatMap((operation) => operation[side]))].filter((one) => one !== rank).sort((a, b) => a - b);
    }
    // Where the groups of some ranks only are known: those along the axes, by the places of all.
    lines() {
      if (this.alongAxes) return this.alongAxes;
      this.alongAxes = this.axes.flatMap((kind, number) => {
        const found = new Map(), others = this.coordinates.filter((_, axis) => axis !== number);
        this.ranks.forEach((rank, at) => {
          const key = others.map((column) => column[at]).join();
          found.has(key) ? found.get(key).push(rank) : found.set(key, [rank]);
        });
        return [...found.values()].filter((ranks) => ranks.length > 1).map((ranks) => ({ kind, ranks }));
      });
      return this.alongAxes;
    }
    // A rank and those next to it along each axis, as many on either side as the server shows (viz3d/focus.py).
    near(rank) {
      const around = this.lines().map(({ ranks }) => [ranks, ranks.indexOf(rank)]).filter(([, at]) => at >= 0);
      return [...new Set([rank, ...around.flatMap(([ranks, at]) => ranks.slice(Math.max(0, at - NEAR), at + NEAR + 1))])];
    }
    waitsFor(rank) {
      return this.flow(rank, this.joined, "absent");
    }
    waitersOf(rank) {
      return this.flow(rank, this.lacked, "waiting");
    }
    // The most that an operation has of them: some of a large one's are counted and not listed.
    manyWaiters(rank) {
      return Math.max(this.waitersOf(rank).length, ...(this.lacked.get(rank) || []).map((operation) => operation.many));
    }
    isTold(rank) {
      return !this.data.shown || this.told.has(rank);
    }
    groupText(id) {
      const group = this.groups.get(id);
      return group ? `${group.kind} (${group.size} ranks)` : id;
    }
    place(at) {
      return this.axes.map((axis, number) => `${axis} ${this.coordinates[number][at] ?? "?"}`).join(", ");
    }
    word(rank) {
      const at = this.index.get(rank), flights = this.flights.get(rank) || [], last = flights.reduce((one, other) => (one && one.age !== null && one.age <= other.age ? one : other), null);
      return last && !["dead", "ended", "missing"].includes(this.doing[at]) ? `${this.waits[at] ? "waits in" : "in"} ${last.segment}` : M.DOING[this.doing[at]][1];
    }
    rackOf(host) {
      if (this.data.racks) return this.data.racks[host] || null;
      const match = /^(.*\d)\D+\d+$/.exec((host || "").split(".")[0]);
      return match ? match[1] : null;
    }
    hull(kind) {
      const found = new Map();
      for (const [host, members] of this.byHost) {
        const name = kind === "racks" ? this.rackOf(host) : host;
        if (name) found.set(name, [...(found.get(name) || []), ...members]);
      }
      return found;
    }

    // ---- places: three axes along x, y and z, further ones as blocks with a gap (viz3d/placement.py) ---------------------
    along(chosen) {
      const usable = this.axes.filter((_, number) => this.sizes[number] > 1).reverse();
      const first = chosen.filter((axis) => usable.includes(axis));
      return [...first, ...usable.filter((axis) => !first.includes(axis))];
    }
    arrange(chosen, drawn) {
      const used = this.along(chosen), columns = used.map((axis) => this.coordinates[this.axes.indexOf(axis)]);
      // Of a part of a job only the places that are taken are drawn: others would leave it mostly empty.
      const present = columns.map((column) => [...new Set(drawn.map((at) => column[at]).filter((value) => value !== null))].sort((a, b) => a - b));
      const order = present.map((values) => new Map(values.map((value, number) => [value, number])));
      const strides = [];
      used.forEach((_, depth) => strides.push(depth < 3 ? 1 : strides[depth - 3] * present[depth - 3].length + 1));
      let apart = 0;
      const places = drawn.map((at) => {
        const place = [0, 0, 0];
        if (columns.some((column) => column[at] === null) || (!used.length && drawn.length > 1)) return [apart++, -2, 0];
        columns.forEach((column, depth) => (place[depth % 3] += strides[depth] * order[depth].get(column[at])));
        return place;
      });
      const title = (depth) => {
        const values = present[depth], size = this.sizes[this.axes.indexOf(used[depth])];
        return values.length && values.length < size ? `${used[depth]} ${values[0]}–${values.at(-1)} (${values.length} of ${size})` : used[depth];
      };
      const titles = [0, 1, 2].map((dimension) => used.map((_, depth) => depth).filter((depth) => depth % 3 === dimension).reverse().map(title).join(" × "));
      return { places, titles };
    }
  };
})();
