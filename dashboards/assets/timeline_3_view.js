// The timeline's canvas under a hand: window of time, zoom, search, keys. Drawing is in timeline_2_paint.js.
"use strict";
(function () {
  const M = window.megascope;
  const { LEFT, AXIS, ROW } = M.TimelinePainter.SIZES;

  class Timeline extends M.TimelinePainter {
    constructor(element) {
      super();
      this.element = element;
      this.canvas = M.canvas(element, "Timeline of spans; hover for details, press ? for the keys");
      this.found = new Set();
      this.scroll = 0;
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("mousedown", (event) => this.press(event));
      this.canvas.addEventListener("dblclick", (event) => this.focusSpan(event));
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.onKey = (event) => this.key(event);
      this.onInput = (event) => event.target.matches && event.target.matches("#field-find") && this.search(event.target.value);
      document.addEventListener("keydown", this.onKey);
      document.addEventListener("input", this.onInput);
      this.offReset = M.onAction("timeline-reset", () => this.reset());
      this.offNext = M.onAction("timeline-next", () => this.jump(1));
    }
    end() {
      document.removeEventListener("keydown", this.onKey);
      document.removeEventListener("input", this.onInput);
      this.offReset();
      this.offNext();
    }
    ready() {
      return Boolean(this.model);
    }
    show(payload) {
      this.model = new M.TimelineModel(payload);
      this.selected = -1;
      this.followAddress();
    }
    followAddress() {
      this.scroll = Number(M.parameter("scroll")) || 0; // drawing keeps it within the lanes
      this.setWindow(...(this.windowFromUrl() || this.wholeWindow()), false);
      this.search(M.parameter("find") || "", false);
    }

    // ---- window of time, in ns from the base --------------------------------------------------------------------------
    wholeWindow() {
      const { first, last } = this.model;
      const margin = (last - first) * 0.01 || 1000;
      return [first - margin, last + margin];
    }
    windowFromUrl() {
      const parts = (M.parameter("t") || "").split(":").map(Number);
      return parts.length === 2 && parts.every(Number.isFinite) ? parts.map((seconds) => seconds * 1e9) : null;
    }
    setWindow(from, to, noted = true) {
      const [low, high] = this.wholeWindow(), whole = high - low;
      const size = Math.min(Math.max(to - from, 200), whole * 1.5);
      const start = Math.min(Math.max(from, low - size * 0.5), high - size * 0.5);
      this.from = start;
      this.to = start + size;
      if (noted) this.pin();
      if (noted) M.noteSoon({ t: `${Number((this.from / 1e9).toFixed(9))}:${Number((this.to / 1e9).toFixed(9))}` });
      if (noted) this.draw();
    }
    // A view that follows the newest step would slip away under who has zoomed in: from then on it names its step.
    pin() {
      if (M.parameter("steps")) return;
      const { rank, axis, range } = this.model.meta;
      M.note({ rank, axis: axis || null, steps: range });
      M.announce();
    }
    reset() {
      this.scroll = 0;
      this.setWindow(...this.wholeWindow(), false);
      M.noteSoon({ t: null, scroll: null });
      this.draw();
    }

    // ---- interaction --------------------------------------------------------------------------------------------------
    spanAt(event) {
      const [x, y] = M.place(event, this.canvas);
      if (x < LEFT || y < AXIS) return -1;
      const depth = y - AXIS + this.scroll;
      for (const lane of this.model.lanes) {
        const number = Math.floor((depth - lane.top) / ROW);
        if (depth < lane.top || number >= lane.rows.length) continue;
        return this.model.at(lane.rows[number], this.time(x), (2 * (this.to - this.from)) / this.plotWidth);
      }
      return -1;
    }
    hover(event) {
      if (!this.ready() || this.dragging || !this.context) return;
      const span = this.spanAt(event);
      if (span !== this.selected) {
        this.selected = span;
        this.draw();
      }
      if (span < 0) return M.tipOff();
      M.tip(event, ...this.model.describe(span));
    }
    press(event) {
      if (event.button !== 0 || !this.ready()) return;
      const from = [event.clientX, event.clientY], window0 = [this.from, this.to], scroll = this.scroll;
      const move = (next) => {
        const dx = next.clientX - from[0], dy = next.clientY - from[1];
        if (!this.dragging && Math.hypot(dx, dy) < 4) return;
        this.dragging = true;
        M.tipOff();
        this.scroll = scroll - dy;
        const shift = (-dx / this.plotWidth) * (window0[1] - window0[0]);
        this.setWindow(window0[0] + shift, window0[1] + shift);
        this.noteScroll();
      };
      const release = () => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", release);
        this.dragging = false;
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", release);
    }
    wheel(event) {
      if (!this.ready()) return;
      event.preventDefault();
      if (event.shiftKey) return this.scrollTo(this.scroll + (event.deltaY || event.deltaX));
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) return this.pan(event.deltaX / this.plotWidth);
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.time(Math.max(LEFT, M.place(event, this.canvas)[0])));
    }
    zoom(factor, at = (this.from + this.to) / 2) {
      this.setWindow(at - (at - this.from) * factor, at + (this.to - at) * factor);
    }
    pan(share) {
      const shift = (this.to - this.from) * share;
      this.setWindow(this.from + shift, this.to + shift);
    }
    focusSpan(event) {
      const span = this.spanAt(event);
      if (span < 0) return this.reset();
      this.show1(span);
    }
    show1(span) {
      const { start, duration } = this.model.arrays, length = duration[span] || 1000;
      this.selected = span;
      this.setWindow(start[span] - length * 1.5, start[span] + length * 2.5);
    }
    key(event) {
      if (!this.ready() || event.ctrlKey || event.metaKey || event.altKey) return;
      const box = document.getElementById("field-find");
      if (event.target.matches("input, textarea, select")) {
        if (event.key === "Escape") event.target.blur();
        if (event.key === "Enter" && event.target === box) {
          event.preventDefault();
          this.jump(event.shiftKey ? -1 : 1);
        }
        return;
      }
      const moves = {
        w: () => this.zoom(0.7), s: () => this.zoom(1.4), a: () => this.pan(-0.25), d: () => this.pan(0.25),
        0: () => this.reset(), n: () => this.jump(1), N: () => this.jump(-1), "/": () => box && box.focus(),
        ArrowUp: () => this.scrollTo(this.scroll - 60), ArrowDown: () => this.scrollTo(this.scroll + 60),
        "?": () => document.getElementById("keys").toggleAttribute("open"),
      };
      if (!moves[event.key]) return;
      event.preventDefault();
      moves[event.key]();
    }
    scrollTo(pixels) {
      this.scroll = pixels;
      this.draw();
      this.noteScroll();
    }
    noteScroll() {
      M.noteSoon({ scroll: Math.round(this.scroll) || null });
    }
    search(text, noted = true) {
      this.matches = this.model.find(text);
      this.found = new Set(this.matches);
      this.match = -1;
      const count = document.getElementById("find-count");
      if (count) count.textContent = text ? `${this.matches.length.toLocaleString("en-US")} found` : "";
      if (!noted) return;
      M.noteSoon({ find: text || null });
      this.draw();
    }
    jump(direction) {
      if (!this.matches || !this.matches.length) return;
      this.match = (this.match + direction + this.matches.length) % this.matches.length;
      const span = this.matches[this.match], lane = this.model.lanes[this.model.arrays.lane[span]];
      this.scroll = lane.top - 40;
      this.show1(span);
      this.noteScroll();
    }
  }
  M.register("timeline", (element) => new Timeline(element));
})();
