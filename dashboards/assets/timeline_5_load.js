// Loading only what is in view: the coarse level of the whole run, and the spans of the steps that a window shows.
"use strict";
(function () {
  const M = window.megascope;
  const MOST_SPANS = 280000, LEAST_STEP_PX = 12, WAIT_MS = 120;
  const KEPT_ANSWERS = 4; // of 15 MB each at most

  class TimelineLoader {
    constructor(timeline) {
      this.timeline = timeline;
      this.gone = new AbortController();
    }
    end() {
      this.gone.abort();
      clearTimeout(this.timer);
    }
    // A new source: other ranks, other steps of the address, or newer data.
    prepare(model) {
      this.end();
      this.gone = new AbortController();
      this.source = new URL(this.timeline.element.dataset.source, window.location);
      const key = model.meta.key.split("|").slice(0, 3).join("|");
      if (key !== this.key || model.base !== this.base) [this.outline, this.absent] = [null, []];
      [this.key, this.base] = [key, model.base];
      this.asked = new Map();
      this.loading = null;
      if (!model.count) this.absent.push(model.range);
    }
    start(model) {
      this.loadLinks(model);
      if (!model.count || this.timeline.coarse) this.wake();
    }
    // The last answers are kept: a way back asks for nothing.
    fetch(path, changes = {}) {
      const url = new URL(path, this.source);
      this.source.searchParams.forEach((value, name) => url.searchParams.set(name, value));
      for (const [name, value] of Object.entries(changes)) url.searchParams.set(name, value);
      const address = url.pathname + url.search;
      const known = this.asked.get(address);
      this.asked.delete(address);
      if (known) this.asked.set(address, known);
      else {
        const asked = fetch(address, { signal: this.gone.signal }).then(async (answer) => {
          if (!answer.ok) throw new Error((await answer.json()).error);
          return M.unpack(await answer.arrayBuffer());
        });
        asked.catch(() => this.asked.delete(address));
        this.asked.set(address, asked);
        if (this.asked.size > KEPT_ANSWERS) this.asked.delete(this.asked.keys().next().value);
      }
      return this.asked.get(address);
    }
    fetchOutline() {
      return this.fetch("/data/outline", { v: this.timeline.version });
    }
    async attempt(work) {
      try {
        await work();
      } catch (problem) {
        if (problem.name !== "AbortError") this.timeline.note(problem.message);
      }
    }
    loadLinks(model) {
      if (!model.count) return;
      this.attempt(async () => {
        const found = await this.fetch("/data/links", { steps: model.meta.range });
        if (this.timeline.model !== model || !model.attach(found)) return;
        this.timeline.notePath(found.meta);
        this.timeline.changed();
      });
    }
    // The coarse level is loaded once somebody looks beyond the spans.
    wake() {
      if (this.waking) return;
      this.waking = true;
      this.attempt(async () => {
        const found = await this.fetchOutline();
        this.outline = new M.TimelineOutline(found, this.base);
        this.timeline.paints = null;
        this.timeline.woken();
      }).finally(() => (this.waking = false));
    }
    limits() {
      const { model } = this.timeline;
      if (!this.outline) return [model.first, model.last];
      return [Math.min(model.first, this.outline.first), Math.max(model.last, this.outline.last)];
    }
    // Decides what the window is drawn from, and asks for the spans that it lacks. Where a window of about a step is
    // too much, the step in its middle is shown.
    plan() {
      const { timeline } = this, { model, from, to } = timeline, spare = (model.last - model.first) * 0.3;
      if (!this.outline) {
        if (from < model.first - spare || to > model.last + spare) this.wake();
        return;
      }
      const each = this.outline.meta.spans_per_step, fits = ([low, high]) => each && (high - low + 1) * each <= MOST_SPANS;
      let wanted = this.outline.stepsIn(from, to) || model.range;
      const isFar = (wanted[1] - wanted[0] + 1) * LEAST_STEP_PX > (timeline.plotWidth || 1000);
      if (!fits(wanted) && wanted[1] - wanted[0] <= 2) {
        const middle = (from + to) / 2, step = this.outline.stepsIn(middle, middle);
        if (step) wanted = step;
      }
      const has = ([low, high]) => low <= wanted[0] && wanted[1] <= high;
      if (model.count && has(model.range) && !isFar) return this.show(false);
      if (isFar || !fits(wanted) || this.absent.some(has)) return this.show(true);
      this.show(!this.covers(model));
      this.timer = setTimeout(() => this.loadSpans(...wanted, each), WAIT_MS);
    }
    // Until its spans are there, a window that is mostly empty shows the coarse level.
    covers(model) {
      const { from, to } = this.timeline, shared = Math.min(model.last, to) - Math.max(model.first, from);
      return model.count && shared > 0.4 * (to - from);
    }
    show(coarse) {
      this.timeline.coarse = coarse;
      clearTimeout(this.timer);
    }
    // A window's steps, and as many again on both sides as long as that is not too much: the next move finds them.
    loadSpans(first, last, each) {
      const { meta } = this.outline, spare = Math.max(0, Math.floor((MOST_SPANS / each - (last - first + 1)) / 2));
      const margin = Math.min(last - first + 1, spare);
      const range = [Math.max(meta.first_step, first - margin), Math.min(meta.last_step, last + margin)], text = range.join(":");
      if (this.loading === text) return;
      this.loading = text;
      this.attempt(async () => {
        const found = await this.fetch("/data/spans", { steps: text });
        if (this.loading !== text) return;
        if (found.arrays.start.length) this.timeline.take(new M.TimelineModel(found, this.base));
        else {
          this.absent.push(range);
          this.timeline.note(found.meta.absent);
          this.timeline.changed();
        }
      }).finally(() => {
        if (this.loading === text) this.loading = null;
      });
    }
  }
  M.TimelineLoader = TimelineLoader;
})();
