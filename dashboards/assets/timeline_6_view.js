// The timeline's canvas under a hand: window of time, zoom, keys; and a second canvas that follows it.
"use strict";
(function () {
  const M = window.megascope;
  const { LEFT, AXIS } = M.TimelinePainter.SIZES;

  class Timeline extends M.TimelinePainter {
    constructor(element, isSecond = false) {
      super();
      this.element = element;
      this.isSecond = isSecond;
      this.canvas = M.canvas(element, "Timeline of spans; hover for details, press ? for the keys");
      this.found = null;
      this.scroll = 0;
      this.selected = -1;
      this.coarse = this.fit = false;
      this.hidden = new Set();
      this.loader = new M.TimelineLoader(this);
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("mousedown", (event) => this.press(event));
      this.canvas.addEventListener("dblclick", (event) => this.focusSpan(event));
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.listen();
    }
    end() {
      this.loader.end();
      this.deafen();
    }
    ready() {
      return Boolean(this.model);
    }
    get outlined() {
      return this.loader.outline;
    }
    lead() {
      const lead = this.isSecond ? M.widget("timeline") : this;
      return lead && lead.ready() ? lead : null;
    }
    mate() {
      const mate = this.isSecond ? null : M.widget("timeline-beside");
      return mate && mate.ready() ? mate : null;
    }
    show(payload) {
      this.model = new M.TimelineModel(payload);
      this.home = [this.model.first, this.model.last];
      this.origin = this.model.origin;
      this.selected = -1;
      this.loader.prepare(this.model);
      this.coarse = !this.model.count && Boolean(this.outlined);
      this.noteSpans();
      this.followAddress();
      this.loader.start(this.model);
    }
    // Spans of finished steps stay what they are while a run goes on; the whole run does not.
    mark({ version }) {
      this.version = version;
      if (this.ready() && this.coarse) this.loader.wake();
    }
    followAddress() {
      this.note(this.noted || "");
      // Once it has opened, a view without a scroll in its address stays where it is: newer data move nothing.
      const { rank, ranks } = this.model.meta, shown = `${rank}|${ranks}`, scroll = M.parameter("scroll");
      this.seekRank = scroll === null && shown !== this.sought;
      if (scroll !== null || this.seekRank) this.scroll = Number(scroll) || 0; // drawing keeps it within the lanes
      this.sought = shown;
      this.fit = M.parameter("rows") === "fit";
      this.hidden = new Set((M.parameter("hide") || "").split(",").filter(Boolean));
      const lead = this.isSecond && this.lead();
      if (lead) this.follow(lead);
      else this.setWindow(...(this.windowFromUrl() || this.wholeWindow()), false, this.windowFromUrl() !== null);
      this.search(M.parameter("find") || "", false);
    }
    // Other spans of the same ranks, from the same anchor: the view stays where it is.
    take(model) {
      this.model = model;
      this.selected = -1;
      this.coarse = false;
      this.noteSpans();
      this.search(M.parameter("find") || "", false);
      this.loader.loadLinks(model);
      this.changed();
    }
    changed() {
      this.loader.plan();
      if (this.element.clientWidth > 0) this.draw();
    }
    // The coarse level has come. Without spans it is all there is: the whole run, unless steps or a time are wanted.
    woken() {
      if (M.parameter("t") && !this.isSecond) this.setWindow(this.from, this.to, false); // now its limits are known
      if (!this.model.count) {
        this.coarse = true;
        if (!M.parameter("t") && !M.parameter("steps") && !this.isSecond) this.setWindow(...this.wholeRun(), false);
        if (M.parameter("steps")) this.home = this.ofSteps(this.model.range) || this.wholeRun();
        if (M.parameter("steps") && !M.parameter("t")) this.setWindow(...this.wholeWindow(), false);
      }
      this.changed();
    }
    ofSteps([first, last]) {
      const columns = this.outlined.columns.filter((each) => each.last >= first && each.first <= last);
      return columns.length ? [columns[0].start, columns[columns.length - 1].end] : null;
    }
    noteSpans() {
      const { absent, missing } = this.model.meta;
      this.note([absent, missing].filter(Boolean).join(" "));
    }
    // Where the critical path runs, in words.
    notePath({ whole, leaves, shares }) {
      const ranks = shares.map(([rank, share]) => `rank ${rank} ${Math.round(100 * share)} %`).join(", ");
      this.noteSpans();
      this.note([
        this.noted,
        ranks && `Critical path: ${ranks}.`,
        whole ? "" : "It is sought among the shown ranks only.",
        leaves === null ? "" : `It comes from rank ${leaves}, which is not shown: it begins there.`,
      ].filter(Boolean).join(" "));
    }
    note(text) {
      this.noted = text;
      this.told = this.coarse;
      const shares = this.coarse ? "Each bar tells how the time of its steps was shared out, not in what order; hatched is waiting." : "";
      const place = document.getElementById(this.isSecond ? "timeline-note-beside" : "timeline-note");
      if (place) place.textContent = [text, shares].filter(Boolean).join(" ");
    }

    // ---- window of time, in ns from the base --------------------------------------------------------------------------
    wholeWindow() {
      const [first, last] = this.home, margin = (last - first) * 0.01 || 1000;
      return [first - margin, last + margin];
    }
    wholeRun() {
      const [first, last] = this.loader.limits(), margin = (last - first) * 0.01 || 1000;
      return [first - margin, last + margin];
    }
    windowFromUrl() {
      const parts = (M.parameter("t") || "").split(":").map(Number);
      return parts.length === 2 && parts.every(Number.isFinite) ? parts.map((seconds) => seconds * 1e9) : null;
    }
    // `trusted`: the window was inside the run when it was written down; how far the run goes is perhaps not known yet.
    setWindow(from, to, noted = true, trusted = false) {
      if (this.isSecond) {
        const lead = this.lead(), shift = lead ? lead.origin - this.origin : 0;
        if (lead) return lead.setWindow(from + shift, to + shift, noted);
      }
      const known = trusted && !this.outlined ? [from, to] : this.wholeRun();
      const [low, high] = known, whole = high - low;
      const size = Math.min(Math.max(to - from, 200), whole * 1.5);
      const start = Math.min(Math.max(from, low - size * 0.5), high - size * 0.5);
      this.place(start, start + size);
      if (noted) this.pin();
      if (noted) M.noteSoon({ t: `${Number((this.from / 1e9).toFixed(9))}:${Number((this.to / 1e9).toFixed(9))}` });
      if (noted) this.draw();
      const mate = this.mate();
      if (mate) mate.follow(this);
    }
    place(from, to) {
      [this.from, this.to] = [from, to];
      this.loader.plan();
    }
    // The second view shows the same time after the start of its own step.
    follow(lead) {
      this.place(lead.from - lead.origin + this.origin, lead.to - lead.origin + this.origin);
      this.scroll = lead.scroll;
      this.fit = lead.fit;
      this.hidden = lead.hidden;
      if (this.element.clientWidth > 0) this.draw();
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
      this.seekRank = true;
      this.setWindow(...this.wholeWindow(), false);
      M.noteSoon({ t: null, scroll: null });
      this.draw();
    }
    run() {
      if (!this.loader.outline) {
        this.loader.wake();
        this.loader.attempt(async () => {
          await this.loader.fetchOutline();
          setTimeout(() => this.loader.outline && this.setWindow(...this.wholeRun()), 0);
        });
        return;
      }
      this.setWindow(...this.wholeRun());
    }

    // ---- a hand on the canvas -----------------------------------------------------------------------------------------
    spanAt(event) {
      const [x, y] = M.place(event, this.canvas);
      if (x < LEFT || y < AXIS) return -1;
      if (this.coarse) return this.outlined.at(Math.floor((y - AXIS - 4 + this.scroll) / this.coarseRow), this.time(x));
      const depth = y - AXIS + this.scroll;
      for (const lane of this.model.lanes) {
        const number = Math.floor((depth - lane.top) / this.row);
        if (lane.out || depth < lane.top || number >= lane.rows.length) continue;
        return this.model.at(lane.rows[number], this.time(x), (2 * (this.to - this.from)) / this.plotWidth);
      }
      return -1;
    }
    hover(event) {
      if (!this.ready() || this.dragging || !this.context) return;
      const span = this.spanAt(event);
      if (span !== this.selected && !this.coarse) {
        this.selected = span;
        this.draw();
      }
      if (span < 0) return M.tipOff();
      M.tip(event, ...(this.coarse ? this.outlined.describe(span, this.model.base) : this.model.describe(span)));
    }
    press(event) {
      if (event.button !== 0 || !this.ready()) return;
      const from = [event.clientX, event.clientY], window0 = [this.from, this.to], scroll = this.scroll;
      const move = (next) => {
        const dx = next.clientX - from[0], dy = next.clientY - from[1];
        if (!this.dragging && Math.hypot(dx, dy) < 4) return;
        this.dragging = true;
        M.tipOff();
        (this.lead() || this).scroll = scroll - dy;
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
      if (!this.coarse) return this.show1(span);
      const { start, end, first_step, last_step } = this.outlined.arrays, steps = last_step[span] - first_step[span] + 1;
      const size = (end[span] - start[span]) / steps, step = Math.floor((this.time(M.place(event, this.canvas)[0]) - start[span]) / size);
      this.setWindow(start[span] + step * size, start[span] + (step + 1) * size);
    }
    show1(span) {
      const { start, duration } = this.model.arrays, length = duration[span] || 1000;
      this.selected = span;
      this.setWindow(start[span] - length * 1.5, start[span] + length * 2.5);
    }
    scrollTo(pixels) {
      const lead = this.lead() || this;
      lead.scroll = pixels;
      lead.draw();
      lead.noteScroll();
      const mate = lead.mate();
      if (mate) mate.follow(lead);
    }
    noteScroll() {
      M.noteSoon({ scroll: String(Math.round((this.lead() || this).scroll)) });
    }
  }
  M.Timeline = Timeline;
})();
