// The 3D picture under the hand: camera, mouse and keys.
"use strict";
(function () {
  const M = window.megascope, HOME = M.ScenePaint.HOME;
  const HEIGHT = 410;

  M.SceneCamera = class extends M.ScenePaint {
    setCamera(yaw, pitch, zoomed = this.zoomed, panX = this.panX, panY = this.panY) {
      const limit = (value, low, high) => Math.max(low, Math.min(high, value));
      Object.assign(this, { yaw, pitch: limit(pitch, -1.5, 1.5), zoomed: limit(zoomed, 0.4, 24), panX, panY });
    }
    look(...camera) {
      this.setCamera(...camera);
      const { yaw, pitch, zoomed, panX, panY } = this;
      M.noteSoon({ camera: [yaw, pitch, zoomed, panX, panY].map((value) => Number(value.toFixed(3))).join(":") });
      this.paint(this.picture.clientWidth, HEIGHT);
    }
    nodeAt(event) {
      const [px, py] = M.place(event, this.canvas);
      let best = -1, distance = 14;
      this.places.forEach(([x, y, depth], at) => {
        const near = Math.hypot(px - x, py - y), away = near + depth * 0.5 - (this.nodes[at].culprit ? 4 : 0);
        if (near < 14 && away < distance) [best, distance] = [at, away];
      });
      return best;
    }
    setHovered(rank) {
      if (rank === this.hovered) return;
      this.hovered = rank;
      if (this.ready()) this.paint(this.picture.clientWidth, HEIGHT);
    }
    hover(event) {
      if (!this.ready() || !this.places || this.dragging) return;
      const at = this.nodeAt(event), rank = at < 0 ? null : this.nodes[at].rank;
      this.setHovered(rank);
      if (rank === null) return M.tipOff();
      const culprit = this.model.culprits.get(rank), told = this.model.isTold(rank);
      M.tip(event, `rank ${rank}: ${culprit ? `at the root, ${culprit.cause}; ` : ""}${this.model.word(rank)}`, M.rankRows(this.model, rank), told ? "Click: details and its timeline" : "Click: its operations and waits");
    }
    press(event) {
      if (event.button !== 0 || !this.ready()) return;
      const start = [event.clientX, event.clientY], from = { yaw: this.yaw, pitch: this.pitch, panX: this.panX, panY: this.panY };
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
        if (at >= 0) this.choose(this.nodes[at].rank);
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", release);
    }
    wheel(event) {
      if (!this.ready()) return;
      event.preventDefault();
      const [px, py] = M.place(event, this.canvas), before = this.zoomed;
      this.setCamera(this.yaw, this.pitch, this.zoomed * (event.deltaY > 0 ? 0.87 : 1.15));
      // What is under the mouse stays there.
      const by = this.zoomed / before, keep = (at, mid, pan) => pan + (1 - by) * (at - mid);
      this.look(this.yaw, this.pitch, this.zoomed, keep(px, this.midX, this.panX), keep(py, this.midY, this.panY));
    }
    reset() {
      Object.assign(this, HOME);
      this.note({ camera: null });
    }
    key(event) {
      if (!this.ready() || event.ctrlKey || event.metaKey || event.altKey || !this.element.isConnected) return;
      if (event.target.matches && event.target.matches("input:not([type=range]), textarea, select")) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      const turn = (yaw, pitch) => this.look(this.yaw + yaw, this.pitch + pitch);
      const move = (x, y) => this.look(this.yaw, this.pitch, this.zoomed, this.panX + x, this.panY + y);
      const zoom = (by) => this.look(this.yaw, this.pitch, this.zoomed * by);
      const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
      const slide = (by) => this.slide((this.slider.value = Math.max(0, Math.min(this.moments.length - 1, Number(this.slider.value) + by))));
      const keys = {
        ArrowLeft: () => turn(-0.1, 0), ArrowRight: () => turn(0.1, 0), ArrowUp: () => turn(0, -0.1), ArrowDown: () => turn(0, 0.1),
        a: () => move(40, 0), d: () => move(-40, 0), w: () => move(0, 40), s: () => move(0, -40),
        "+": () => zoom(1.15), "=": () => zoom(1.15), "-": () => zoom(0.87), 0: () => this.reset(), Home: () => this.reset(),
        n: () => this.step(1), p: () => this.step(-1), Escape: () => (this.keys.open ? (this.keys.open = false) : this.chosen !== null && this.choose(null)),
        "/": () => this.find.focus(), "?": () => (this.keys.open = !this.keys.open), f: () => this.ranks.options.length > 1 && this.setAround(this.everyone ? "involved" : "all"),
        h: () => this.setHulls(next([...this.around.options].map((option) => option.value), this.hulls || "") || null),
        g: () => this.setEdges(next(["chosen", "all", "none"], this.edges)), "[": () => slide(-1), "]": () => slide(1),
      };
      if (!keys[event.key] || (event.target === this.slider && event.key.startsWith("Arrow"))) return;
      event.preventDefault();
      keys[event.key]();
    }
  };
  M.SceneCamera.HEIGHT = HEIGHT;
})();
