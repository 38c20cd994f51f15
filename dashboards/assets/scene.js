// The 3D page: ranks at their place in the mesh, groups as edges, state by colour and shape, who waits for whom.
// Drawn on a plain canvas: no WebGL is needed, and every node can be found under the mouse exactly.
"use strict";
(function () {
  const M = window.megascope;
  // State: colour variable, shape, size. Shapes differ too, so that colour is never the only sign.
  const LOOKS = {
    culprit: ["fault", "diamond", 2.3], gone: ["fault", "cross", 2.0], missing: ["missing-line", "ring", 1.2],
    waiting: ["collective", "triangle", 1.0], working: ["compute", "circle", 1.0], idle: ["other", "box", 0.8],
    finished: ["good", "square", 0.9],
  };

  const STAND_OFF = 0.2;
  const HOME = { yaw: -0.6, pitch: 0.42, zoomed: 1, panX: 0, panY: 0 };

  class Scene {
    constructor(element) {
      this.element = element;
      this.text = true;
      this.canvas = M.canvas(element, "Ranks at their place in the mesh; the table beside it names who is at the root");
      Object.assign(this, HOME, { hovered: -1 });
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("mousedown", (event) => this.press(event));
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.canvas.addEventListener("dblclick", () => this.reset());
      this.canvas.addEventListener("keydown", (event) => this.key(event));
    }
    ready() {
      return Boolean(this.data);
    }
    show(data) {
      this.data = data;
      this.nodes = data.nodes;
      this.index = new Map(data.nodes.map((node, at) => [node.rank, at]));
      const range = [0, 1, 2].map((axis) => {
        const values = data.nodes.map((node) => node.at[axis]);
        return [Math.min(...values), Math.max(...values)];
      });
      this.centre = range.map(([low, high]) => (low + high) / 2);
      // A long axis is drawn shorter, so that 8 x 192 x 8 ranks do not become a needle.
      const lengths = range.map(([low, high]) => Math.max(1, high - low)), shown = lengths.map((length) => length ** 0.35);
      this.spread = lengths.map((length, axis) => (2 * shown[axis]) / length / Math.max(...shown));
      // The axes' lines stand off the ranks as they are drawn, equally far in each direction.
      const stand = (value, axis) => Math.max(range[axis][0] - STAND_OFF / this.spread[axis], Math.min(range[axis][1] + STAND_OFF / this.spread[axis], value));
      this.axes = data.axes.map((line) => ({ name: line.name, from: line.from.map(stand), to: line.to.map(stand) }));
      if (this.count !== data.nodes.length) this.fitted = null;
      this.count = data.nodes.length;
      this.followAddress();
    }

    // ---- camera: how the picture is turned, enlarged and moved -------------------------------------------------------
    followAddress() {
      const parts = (M.parameter("camera") || "").split(":").map(Number);
      const known = parts.length === 5 && parts.every(Number.isFinite);
      Object.assign(this, HOME);
      if (known) this.setCamera(...parts);
    }
    setCamera(yaw, pitch, zoomed = this.zoomed, panX = this.panX, panY = this.panY) {
      const limit = (value, low, high) => Math.max(low, Math.min(high, value));
      Object.assign(this, { yaw, pitch: limit(pitch, -1.5, 1.5), zoomed: limit(zoomed, 0.4, 12), panX, panY });
    }
    look(...camera) {
      this.setCamera(...camera);
      const { yaw, pitch, zoomed, panX, panY } = this;
      M.noteSoon({ camera: [yaw, pitch, zoomed, panX, panY].map((value) => Number(value.toFixed(3))).join(":") });
      this.draw();
    }

    // ---- projection ---------------------------------------------------------------------------------------------------
    project(at) {
      const [x, y, z] = at.map((value, axis) => (value - this.centre[axis]) * this.spread[axis]);
      const [cosYaw, sinYaw] = [Math.cos(this.yaw), Math.sin(this.yaw)], [cosPitch, sinPitch] = [Math.cos(this.pitch), Math.sin(this.pitch)];
      const across = x * cosYaw - y * sinYaw, back = x * sinYaw + y * cosYaw;
      const up = z * cosPitch - back * sinPitch, depth = back * cosPitch + z * sinPitch;
      const near = 4.5 / (4.5 + depth);
      return [this.midX + across * this.scale * near, this.midY - up * this.scale * near, depth, near];
    }
    draw() {
      const width = this.element.clientWidth, height = this.element.clientHeight;
      this.context = M.fit(this.canvas, width, height);
      this.frame(width, height);
      this.places = this.nodes.map((node) => this.project(node.at));
      const room = (this.scale * 2) / Math.max(2, Math.cbrt(this.nodes.length));
      this.size = Math.max(1.8, Math.min(9, room / 9));
      this.drawAxes();
      this.drawEdges();
      this.drawWaits();
      const order = this.nodes.map((_, at) => at).sort((one, other) => this.places[other][2] - this.places[one][2]);
      for (const at of order) this.drawNode(at);
      this.drawLabels();
    }
    // Fits the unturned picture into the canvas; turning it does not change its size.
    frame(width, height) {
      if (!this.fitted || this.fitted.width !== width || this.fitted.height !== height) {
        const { yaw, pitch } = this;
        Object.assign(this, { scale: 1, midX: 0, midY: 0, yaw: HOME.yaw, pitch: HOME.pitch });
        const corners = [...this.nodes.map((node) => node.at), ...this.axes.flatMap((axis) => [axis.from, axis.to])];
        const points = corners.map((at) => this.project(at));
        Object.assign(this, { yaw, pitch });
        const [left, right] = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
        const [top, bottom] = [Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[1]))];
        const scale = Math.min((width - 190) / Math.max(0.2, right - left), (height - 70) / Math.max(0.2, bottom - top));
        this.fitted = { width, height, scale, x: (left + right) / 2, y: (top + bottom) / 2 };
      }
      this.scale = this.fitted.scale * this.zoomed;
      this.midX = width / 2 - this.fitted.x * this.scale + this.panX;
      this.midY = height / 2 - this.fitted.y * this.scale + this.panY;
    }
    drawAxes() {
      const context = this.context;
      context.fillStyle = M.colour("quiet");
      context.strokeStyle = M.colour("line");
      context.textAlign = "center";
      context.textBaseline = "middle";
      for (const axis of this.axes) {
        const [x0, y0] = this.project(axis.from), [x1, y1] = this.project(axis.to);
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.stroke();
        const length = Math.hypot(x1 - x0, y1 - y0) || 1;
        context.fillText(axis.name, x1 + ((x1 - x0) / length) * 26, y1 + ((y1 - y0) / length) * 18);
      }
    }
    quiet(node) {
      return this.data.around === "involved" && !node.involved;
    }
    drawEdges() {
      const context = this.context, chosen = this.index.get(this.data.rank);
      for (const [axis, edges] of Object.entries(this.data.edges)) {
        context.strokeStyle = M.colour(this.data.edge_colours[axis] || "other");
        for (const hot of [false, true]) {
          context.globalAlpha = hot ? 0.9 : this.nodes.length > 200 ? 0.12 : 0.35;
          context.lineWidth = hot ? 1.8 : 1;
          context.beginPath();
          for (const [from, to] of edges) {
            const [one, other] = [this.index.get(from), this.index.get(to)];
            if (one === undefined || other === undefined) continue;
            if (this.quiet(this.nodes[one]) || this.quiet(this.nodes[other])) continue;
            if (hot !== [one, other].some((at) => at === this.hovered || at === chosen)) continue;
            context.moveTo(this.places[one][0], this.places[one][1]);
            context.lineTo(this.places[other][0], this.places[other][1]);
          }
          context.stroke();
        }
      }
      context.globalAlpha = context.lineWidth = 1;
    }
    drawWaits() {
      const context = this.context;
      context.strokeStyle = context.fillStyle = M.colour("fault");
      for (const [from, to] of this.data.waits) {
        const [one, other] = [this.index.get(from), this.index.get(to)];
        if (one === undefined || other === undefined) continue;
        const [x0, y0] = this.places[one], [x1, y1] = this.places[other];
        const length = Math.hypot(x1 - x0, y1 - y0) || 1, stop = Math.min(length / 2, this.size * 2.6);
        const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length], [tipX, tipY] = [x1 - ux * stop, y1 - uy * stop];
        context.globalAlpha = this.data.waits.length > 60 ? 0.35 : 0.75;
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(tipX, tipY);
        context.stroke();
        context.beginPath();
        context.moveTo(tipX, tipY);
        context.lineTo(tipX - ux * 8 + uy * 4, tipY - uy * 8 - ux * 4);
        context.lineTo(tipX - ux * 8 - uy * 4, tipY - uy * 8 + ux * 4);
        context.fill();
      }
      context.globalAlpha = 1;
    }
    drawNode(at) {
      const node = this.nodes[at], [x, y, , near] = this.places[at], context = this.context;
      const [colour, shape, factor] = LOOKS[node.state];
      const quiet = this.quiet(node);
      const size = this.size * near * (quiet ? 0.4 : factor);
      context.globalAlpha = quiet ? 0.35 : Math.max(0.35, Math.min(1, near * 0.9));
      context.fillStyle = context.strokeStyle = M.colour(colour);
      context.lineWidth = shape === "cross" ? 3 : 1.5;
      context.beginPath();
      if (shape === "circle") context.arc(x, y, size, 0, 7);
      else if (shape === "ring") context.arc(x, y, size, 0, 7);
      else if (shape === "square" || shape === "box") context.rect(x - size, y - size, 2 * size, 2 * size);
      else if (shape === "cross") {
        for (const [dx, dy] of [[-1, -1], [-1, 1]]) {
          context.moveTo(x + dx * size, y + dy * size);
          context.lineTo(x - dx * size, y - dy * size);
        }
      } else {
        const points = shape === "diamond" ? [[0, -1], [1, 0], [0, 1], [-1, 0]] : [[0, -1.1], [1, 0.8], [-1, 0.8]];
        points.forEach(([dx, dy], number) => context[number ? "lineTo" : "moveTo"](x + dx * size, y + dy * size));
        context.closePath();
      }
      if (["ring", "box", "cross"].includes(shape)) context.stroke();
      else context.fill();
      if (at === this.hovered || node.rank === this.data.rank) {
        context.strokeStyle = M.colour("select");
        context.beginPath();
        context.arc(x, y, size + 4, 0, 7);
        context.stroke();
      }
      context.globalAlpha = context.lineWidth = 1;
    }
    drawLabels() {
      const context = this.context;
      context.textBaseline = "middle";
      context.textAlign = "left";
      const few = this.nodes.length <= 32;
      this.nodes.forEach((node, at) => {
        const loud = node.state === "culprit" || node.state === "gone" || node.rank === this.data.rank;
        if (!loud && !few && at !== this.hovered) return;
        const [x, y] = this.places[at], text = loud ? `rank ${node.rank}: ${node.word}` : "rank " + node.rank;
        context.font = (loud ? "bold 13px " : "12px ") + M.colour("font");
        const width = context.measureText(text).width, left = x + this.size * LOOKS[node.state][2] * 1.15 + 5;
        context.fillStyle = M.colour("surface");
        context.globalAlpha = 0.8;
        context.fillRect(left - 2, y - 9, width + 4, 18);
        context.globalAlpha = 1;
        context.fillStyle = M.colour(loud ? "fault" : "quiet");
        if (node.state !== "culprit" && node.state !== "gone") context.fillStyle = M.colour("ink");
        context.fillText(text, left, y);
      });
    }

    // ---- interaction --------------------------------------------------------------------------------------------------
    nodeAt(event) {
      const [px, py] = M.place(event, this.canvas);
      let best = -1, distance = 14;
      this.places.forEach(([x, y, depth], at) => {
        const away = Math.hypot(px - x, py - y) + depth * 0.5;
        if (Math.hypot(px - x, py - y) < 14 && away < distance) [best, distance] = [at, away];
      });
      return best;
    }
    hover(event) {
      if (!this.ready() || !this.places || this.dragging) return;
      const at = this.nodeAt(event);
      if (at !== this.hovered) {
        this.hovered = at;
        this.draw();
      }
      if (at < 0) return M.tipOff();
      const node = this.nodes[at];
      M.tip(event, `rank ${node.rank}: ${node.word}`, [
        ...node.flight.map(([name, seconds], depth) => ["  ".repeat(depth) + "in " + name, seconds === null ? "" : M.duration(seconds * 1e9)]),
        ["step", node.step], ["waits for", node.waits_for.join(", ")], ["process", node.process],
        ["host", node.host], ["place", node.place], ["heartbeat", node.heartbeat],
      ], "Click: details and its timeline");
    }
    press(event) {
      if (event.button !== 0 || !this.ready()) return;
      const start = [event.clientX, event.clientY], from = { ...this };
      const move = (next) => {
        const dx = next.clientX - start[0], dy = next.clientY - start[1];
        if (!this.dragging && Math.hypot(dx, dy) < 4) return;
        this.dragging = true;
        M.tipOff();
        if (next.shiftKey) this.look(this.yaw, this.pitch, this.zoomed, from.panX + dx, from.panY + dy);
        else this.look(from.yaw + dx * 0.008, from.pitch + dy * 0.008);
      };
      const release = (last) => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", release);
        const at = this.dragging ? -1 : this.nodeAt(last);
        this.dragging = false;
        if (at >= 0) M.change({ rank: this.nodes[at].rank });
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", release);
    }
    wheel(event) {
      if (!this.ready()) return;
      event.preventDefault();
      this.look(this.yaw, this.pitch, this.zoomed * (event.deltaY > 0 ? 0.87 : 1.15));
    }
    reset() {
      Object.assign(this, HOME);
      M.noteSoon({ camera: null });
      this.draw();
    }
    key(event) {
      const turns = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (event.key === "0") return this.reset();
      if (!turns[event.key] || !this.ready()) return undefined;
      event.preventDefault();
      return this.look(this.yaw + turns[event.key][0], this.pitch + turns[event.key][1]);
    }
  }
  M.register("scene", (element) => new Scene(element));
})();
