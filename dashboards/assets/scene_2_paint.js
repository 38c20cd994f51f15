// The 3D picture on a plain canvas: no WebGL is needed, and every node can be found under the mouse exactly.
"use strict";
(function () {
  const M = window.megascope;
  const STAND_OFF = 0.2, MANY = 3000, LABELS = 12;
  const HOME = { yaw: -0.6, pitch: 0.42, zoomed: 1, panX: 0, panY: 0 };

  M.ScenePaint = class {
    // Fits nodes into a box of equal sides: a long axis is drawn shorter, so that 8 x 192 x 8 ranks are no needle.
    measure(places, titles) {
      const range = [0, 1, 2].map((axis) => {
        let low = Infinity, high = -Infinity;
        for (const place of places) [low, high] = [Math.min(low, place[axis]), Math.max(high, place[axis])];
        return [low, high];
      });
      this.centre = range.map(([low, high]) => (low + high) / 2);
      const lengths = range.map(([low, high]) => Math.max(1, high - low)), shown = lengths.map((length) => length ** 0.45);
      this.spread = lengths.map((length, axis) => (2 * shown[axis]) / length / Math.max(...shown));
      const stand = range.map(([low], axis) => low - STAND_OFF / this.spread[axis]);
      this.axisLines = titles.flatMap((name, axis) => {
        if (!name) return [];
        const to = [...stand];
        to[axis] = range[axis][1] + STAND_OFF / this.spread[axis];
        return [{ name, from: stand, to }];
      });
      this.fitted = null;
    }
    project(at) {
      const [x, y, z] = at.map((value, axis) => (value - this.centre[axis]) * this.spread[axis]);
      const { cosYaw, sinYaw, cosPitch, sinPitch } = this.turned;
      const across = x * cosYaw - y * sinYaw, back = x * sinYaw + y * cosYaw;
      const up = z * cosPitch - back * sinPitch, depth = back * cosPitch + z * sinPitch;
      const near = 4.5 / (4.5 + depth);
      return [this.midX + across * this.scale * near, this.midY - up * this.scale * near, depth, near];
    }
    turn(yaw, pitch) {
      this.turned = { cosYaw: Math.cos(yaw), sinYaw: Math.sin(yaw), cosPitch: Math.cos(pitch), sinPitch: Math.sin(pitch) };
    }
    // Fits the unturned picture into the canvas; turning it does not change its size.
    frame(width, height) {
      if (!this.fitted || this.fitted.width !== width || this.fitted.height !== height) {
        Object.assign(this, { scale: 1, midX: 0, midY: 0 });
        this.turn(HOME.yaw, HOME.pitch);
        let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
        for (const place of [...this.nodes.map((node) => node.at), ...this.axisLines.flatMap((axis) => [axis.from, axis.to])]) {
          const [x, y] = this.project(place);
          [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
        }
        const scale = Math.min((width - 210) / Math.max(0.2, right - left), (height - 64) / Math.max(0.2, bottom - top));
        this.fitted = { width, height, scale, x: (left + right) / 2, y: (top + bottom) / 2 };
      }
      this.scale = this.fitted.scale * this.zoomed;
      this.midX = width / 2 - this.fitted.x * this.scale + this.panX;
      this.midY = height / 2 - this.fitted.y * this.scale + this.panY;
      this.turn(this.yaw, this.pitch);
    }
    paint(width, height) {
      this.context = M.fit(this.canvas, width, height);
      this.ink = Object.fromEntries(["surface", "ink", "quiet", "line", "fault", "select", "raised", ...Object.values(M.LOOKS).map(([colour]) => colour), ...Object.values(this.model.data.colours || {})].map((name) => [name, M.colour(name)]));
      this.context.fillStyle = this.ink.surface;
      this.context.fillRect(0, 0, width, height);
      this.frame(width, height);
      this.places = this.nodes.map((node) => this.project(node.at));
      const room = (this.scale * 2) / Math.max(2, Math.cbrt(this.nodes.length));
      this.size = Math.max(1.6, Math.min(9, room / 9));
      this.drawAxes();
      this.drawHulls();
      this.drawEdges();
      this.nodes.length > MANY && this.size < 4 ? this.drawPoints() : this.drawNodes();
      this.drawWays();
      this.drawFlow();
      this.drawLoud();
    }
    drawAxes() {
      const context = this.context;
      context.fillStyle = this.ink.quiet;
      context.strokeStyle = this.ink.line;
      [context.textAlign, context.textBaseline] = ["center", "middle"];
      for (const axis of this.axisLines) {
        const [x0, y0] = this.project(axis.from), [x1, y1] = this.project(axis.to);
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.stroke();
        const length = Math.hypot(x1 - x0, y1 - y0) || 1, half = context.measureText(axis.name).width / 2;
        context.fillText(axis.name, x1 + ((x1 - x0) / length) * (half + 8), y1 + ((y1 - y0) / length) * 14);
      }
    }
    drawHulls() {
      if (!this.hulls) return;
      const context = this.context;
      context.lineJoin = "round";
      this.hullCount = 0;
      for (const [name, members] of this.model.hull(this.hulls)) {
        const points = members.map((at) => this.drawnAt.get(at)).filter((at) => at !== undefined).map((at) => this.places[at]);
        if (!points.length) continue;
        this.hullCount++;
        const around = outline(points), isHot = name === this.hotHull;
        context.beginPath();
        around.forEach(([x, y], number) => context[number ? "lineTo" : "moveTo"](x, y));
        context.closePath();
        context.globalAlpha = isHot ? 0.5 : 0.16;
        context.fillStyle = context.strokeStyle = isHot ? this.ink.select : this.ink.quiet;
        context.lineWidth = 2.2 * this.size + 8;
        context.stroke();
        context.fill();
        context.globalAlpha = 1;
        if (!isHot && this.nodes.length > 128) continue;
        context.textAlign = "center";
        context.fillText(name, around.reduce((sum, point) => sum + point[0], 0) / around.length, Math.min(...around.map((point) => point[1])) - 14);
      }
      context.lineWidth = 1;
    }
    // Neighbours in the groups of the chosen kind; "chosen": in all groups of the hovered and the selected rank.
    drawEdges() {
      if (this.edges === "none") return;
      const context = this.context, isAll = this.edges === "all", loud = [this.hovered, this.chosen];
      for (const { kind, ranks, size } of this.everyone && this.model.data.shown ? this.model.lines() : this.model.groups.values()) {
        const isAlong = this.model.axes.includes(kind) || size < this.model.ranks.length; // else it is of everyone
        const isHot = isAlong && loud.some((rank) => rank !== null && ranks.includes(rank));
        if (isAll && !isAlong) continue;
        if (!isHot && !isAll && this.edges !== kind) continue;
        context.strokeStyle = this.ink[(this.model.data.colours || {})[kind]] || this.ink.quiet;
        context.globalAlpha = isHot ? 0.9 : this.nodes.length > 2000 ? 0.1 : this.nodes.length > 200 ? 0.22 : 0.4;
        context.lineWidth = isHot ? 1.8 : 1;
        context.beginPath();
        let before = null;
        for (const rank of ranks) {
          const at = this.nodeOf(rank);
          if (at === undefined) continue;
          if (before !== null) context.lineTo(this.places[at][0], this.places[at][1]);
          else context.moveTo(this.places[at][0], this.places[at][1]);
          before = at;
        }
        context.stroke();
      }
      context.globalAlpha = context.lineWidth = 1;
    }
    drawPoints() {
      const context = this.context, size = Math.max(1.5, this.size);
      for (const [doing, [colour]] of Object.entries(M.LOOKS)) {
        context.fillStyle = this.ink[colour];
        context.globalAlpha = doing === "collective" || doing === "compute" ? 0.75 : 1;
        this.nodes.forEach((node, at) => node.doing === doing && context.fillRect(this.places[at][0] - size / 2, this.places[at][1] - size / 2, size, size));
      }
      context.globalAlpha = 1;
    }
    drawNodes() {
      const order = this.nodes.map((_, at) => at).sort((one, other) => this.places[other][2] - this.places[one][2]);
      for (const at of order) if (!this.nodes[at].culprit) this.drawNode(at, 1);
    }
    drawNode(at, larger) {
      const node = this.nodes[at], [x, y, , near] = this.places[at], context = this.context;
      const [colour, shape, factor] = M.LOOKS[node.doing];
      const size = this.size * near * factor * larger;
      context.globalAlpha = larger > 1 ? 1 : Math.max(0.4, Math.min(1, near * 0.9));
      context.fillStyle = context.strokeStyle = node.culprit ? this.ink.fault : this.ink[colour];
      M.drawShape(context, shape, x, y, size);
      context.globalAlpha = context.lineWidth = 1;
    }
    arrow(from, to, width) {
      const context = this.context, [x0, y0] = this.places[from], [x1, y1] = this.places[to];
      const length = Math.hypot(x1 - x0, y1 - y0) || 1, stop = Math.min(length / 2, this.size * (this.nodes[to].culprit ? 2.6 : 1.3) + 2);
      const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length], [tipX, tipY] = [x1 - ux * stop, y1 - uy * stop], head = 5 + 2 * width;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(x0, y0);
      context.lineTo(tipX - ux * head * 0.7, tipY - uy * head * 0.7);
      context.stroke();
      context.beginPath();
      context.moveTo(tipX, tipY);
      context.lineTo(tipX - ux * head + uy * head * 0.45, tipY - uy * head - ux * head * 0.45);
      context.lineTo(tipX - ux * head - uy * head * 0.45, tipY - uy * head + ux * head * 0.45);
      context.fill();
      context.lineWidth = 1;
    }
    // From each who waits to the one it waits for, on its way to a root; the last hop is the strongest.
    drawWays() {
      const context = this.context, near = [], far = [];
      for (const [from, to] of this.model.toward) {
        const [one, other] = [this.nodeOf(from), this.nodeOf(to)];
        if (one !== undefined && other !== undefined) (this.nodes[other].culprit ? near : far).push([one, other]);
      }
      context.strokeStyle = context.fillStyle = this.ink.fault;
      context.globalAlpha = far.length > 60 ? 0.2 : 0.3;
      if (far.length <= 160) for (const [one, other] of far) this.arrow(one, other, 1);
      context.globalAlpha = near.length > 60 ? 0.5 : 0.9;
      for (const [one, other] of near) this.arrow(one, other, near.length > 60 ? 1 : 1.8);
      context.globalAlpha = 1;
    }
    // The data flow of the hovered rank, or of the selected one: what it waits for (full), who waits for it (broken).
    drawFlow() {
      const rank = this.hovered ?? this.chosen, at = this.nodeOf(rank), context = this.context;
      if (at === undefined) return;
      context.strokeStyle = context.fillStyle = this.ink.select;
      for (const other of this.model.waitsFor(rank).slice(0, 64)) this.nodeOf(other) !== undefined && this.arrow(at, this.nodeOf(other), 2.2);
      context.setLineDash([4, 4]);
      for (const other of this.model.waitersOf(rank).slice(0, 128)) this.nodeOf(other) !== undefined && this.arrow(this.nodeOf(other), at, 1.2);
      context.setLineDash([]);
    }
    drawLoud() {
      const context = this.context, taken = [];
      context.textBaseline = "middle";
      context.textAlign = "left";
      this.nodes.forEach((node, at) => node.culprit && this.drawCulprit(at));
      const few = this.nodes.length <= 32;
      const named = this.nodes.map((_, at) => at).filter((at) => this.nodes[at].culprit).slice(0, LABELS);
      for (const rank of [this.chosen, this.hovered]) {
        const at = this.nodeOf(rank);
        if (at === undefined) continue;
        context.strokeStyle = this.ink.select;
        context.lineWidth = 2;
        context.beginPath();
        context.arc(this.places[at][0], this.places[at][1], this.size * (this.nodes[at].culprit ? 2.3 : 1) + 5, 0, 7);
        context.stroke();
        if (!named.includes(at)) named.push(at);
      }
      context.lineWidth = 1;
      if (few) for (const at of this.nodes.keys()) if (!named.includes(at)) named.push(at);
      this.labels = named.map((at) => this.label(at, taken));
    }
    drawCulprit(at) {
      const [x, y] = this.places[at], context = this.context, larger = this.model.culprits.size > 4 ? 1.4 : 2.2;
      const size = Math.max(7, this.size * larger);
      context.strokeStyle = this.ink.fault;
      for (const [radius, alpha, width] of [[size + 4, 0.9, 2], [size + 9, 0.35, 4]]) {
        context.globalAlpha = alpha;
        context.lineWidth = width;
        context.beginPath();
        context.arc(x, y, radius, 0, 7);
        context.stroke();
      }
      context.globalAlpha = 1;
      this.drawNode(at, Math.max(larger, 7 / this.size));
    }
    label(at, taken) {
      const node = this.nodes[at], context = this.context, culprit = this.model.culprits.get(node.rank);
      const loud = Boolean(culprit), asked = node.rank === this.chosen || node.rank === this.hovered;
      const host = loud && culprit.hosts.length ? ` on ${this.model.hosts[node.of]}` : "";
      const where = culprit && culprit.segment ? (culprit.kind === "missing-call" ? `: ${culprit.segment}` : ` in ${culprit.segment}`) : "";
      const isFirst = loud && culprit.ranks[0] === node.rank; // of several at one root the first says what it is
      const text = loud && !isFirst && !asked ? `rank ${node.rank}` : loud ? `rank ${node.rank}${host}: ${culprit.cause}${where}` : asked ? `rank ${node.rank}: ${this.model.word(node.rank)}` : `rank ${node.rank}`;
      context.font = (loud ? "bold 13px " : "12px ") + M.colour("font");
      const width = context.measureText(text).width + 10, [x, y] = this.places[at], height = 19;
      let left = x + this.size + (loud ? 16 : 8), top = y - height / 2;
      if (left + width > this.canvas.clientWidth) { // no room beside it: below, or above at the bottom
        left = Math.max(4, this.canvas.clientWidth - width - 4);
        const below = y + this.size + (loud ? 18 : 6);
        top = below + height < this.canvas.clientHeight ? below : y - this.size - 40;
      }
      if (loud || asked) {
        for (let tries = 0; tries < 20 && taken.some((box) => left < box[0] + box[2] && box[0] < left + width && Math.abs(top - box[1]) < height); tries++) top += height;
        taken.push([left, top, width]);
      }
      context.fillStyle = loud ? this.ink.fault : this.ink.surface;
      context.globalAlpha = loud ? 1 : 0.8;
      context.fillRect(left, top, width, height);
      context.globalAlpha = 1;
      context.fillStyle = loud ? M.inkOn(this.ink.fault) : asked ? this.ink.ink : this.ink.quiet;
      context.fillText(text, left + 5, top + height / 2);
      return { rank: node.rank, text };
    }
  };
  M.ScenePaint.HOME = HOME;

  M.drawShape = (context, shape, x, y, size) => {
    context.lineWidth = shape === "cross" || shape === "bars" ? Math.max(1.5, size / 3) : 1.5;
    context.beginPath();
    if (shape === "circle" || shape === "ring") context.arc(x, y, size, 0, 7);
    else if (shape === "square" || shape === "box") context.rect(x - size, y - size, 2 * size, 2 * size);
    else if (shape === "cross" || shape === "bars") {
      const lines = shape === "cross" ? [[-1, -1, 1, 1], [-1, 1, 1, -1]] : [[-0.6, -1, -0.6, 1], [0.6, -1, 0.6, 1]];
      for (const [x0, y0, x1, y1] of lines) {
        context.moveTo(x + x0 * size, y + y0 * size);
        context.lineTo(x + x1 * size, y + y1 * size);
      }
    } else {
      const points = shape === "diamond" ? [[0, -1], [1, 0], [0, 1], [-1, 0]] : [[0, -1.1], [1, 0.8], [-1, 0.8]];
      points.forEach(([dx, dy], number) => context[number ? "lineTo" : "moveTo"](x + dx * size, y + dy * size));
      context.closePath();
    }
    if (["ring", "box", "cross", "bars"].includes(shape)) context.stroke();
    else context.fill();
  };

  // The convex outline of points (Andrew's monotone chain).
  function outline(points) {
    const sorted = [...points].sort((one, other) => one[0] - other[0] || one[1] - other[1]);
    const cross = (a, b, c) => (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]);
    const half = (list) => {
      const found = [];
      for (const point of list) {
        while (found.length > 1 && cross(found.at(-2), found.at(-1), point) <= 0) found.pop();
        found.push(point);
      }
      return found.slice(0, -1);
    };
    return sorted.length < 3 ? sorted : [...half(sorted), ...half(sorted.reverse())];
  }
})();
