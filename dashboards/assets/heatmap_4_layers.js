// What the heatmap is drawn from: all cells; of many, their bins, and where the window is small, its own single cells,
// which are fetched as they are needed. Until they are there, the bins stand for them.
"use strict";
(function () {
  const M = window.megascope;
  const WAIT_MS = 40; // a wheel turns on

  class HeatmapLayers {
    constructor(heatmap) {
      this.heatmap = heatmap;
      this.detail = null;
    }
    // A new whole picture. Single cells of an older one stay in view until there are newer ones.
    show(base) {
      this.base = base;
      this.isOld = true;
      if (!isBinned(base) || (this.detail && !this.isOf(this.detail))) this.detail = null;
    }
    // Whether single cells are of the segment, the ranks and the steps that the whole picture has at their place.
    isOf({ meta, row, column }) {
      const whole = this.heatmap.meta, starts = (all, some, from) => some.every((one, at) => one === all[from + at]);
      if (["job", "segment", "metric", "show"].some((name) => meta[name] !== whole[name])) return false;
      return starts(whole.ranks, meta.ranks, row) && starts(whole.steps, meta.steps, column);
    }
    // Draws from what the window is covered by, and asks for what is missing.
    choose() {
      const { window: shown, meta } = this.heatmap, isCovered = covers(this.detail, shown);
      this.heatmap.drawFrom(isCovered ? this.detail : this.base);
      clearTimeout(this.timer);
      const isSmall = (shown.r1 - shown.r0) * (shown.c1 - shown.c0) <= meta.few;
      if (!isBinned(this.base) || !isSmall || (isCovered && !this.isOld)) return this.stop();
      if (!this.isOld && covers(this.asked, shown)) return;
      this.timer = setTimeout(() => this.load(this.around(shown)), WAIT_MS);
    }
    // The window and half of it on all sides, so that a hand that moves on need not wait.
    around({ r0, r1, c0, c1 }) {
      const more = (low, high, limit) => {
        const margin = Math.floor((high - low) / 2);
        return [Math.max(0, low - margin), Math.min(limit, high + margin)];
      };
      const [top, bottom] = more(r0, r1, this.heatmap.rows), [left, right] = more(c0, c1, this.heatmap.columns);
      return { r0: top, r1: bottom, c0: left, c1: right };
    }
    async load(region) {
      this.stop();
      const { heatmap } = this, { r0, r1, c0, c1 } = region, abort = (this.abort = new AbortController());
      const source = `${heatmap.element.dataset.source}&zoom=${heatmap.look.zoomText(region)}`;
      this.asked = { row: r0, column: c0, rows: r1 - r0, columns: c1 - c0, bin: [1, 1] };
      this.isOld = false;
      try {
        const answer = await fetch(source, { signal: abort.signal });
        if (!answer.ok) return; // the bins stay, and say that they are
        const found = { ...this.asked, ...M.unpack(await answer.arrayBuffer()) };
        if (this.abort !== abort || !this.isOf(found)) return;
        this.detail = found;
        this.choose();
        heatmap.draw();
      } catch (problem) {
        if (problem.name !== "AbortError" && !(problem instanceof TypeError)) throw problem;
      } finally {
        if (this.abort === abort) this.abort = this.asked = null;
      }
    }
    stop() {
      if (this.abort) this.abort.abort();
      this.abort = this.asked = null;
    }
    end() {
      clearTimeout(this.timer);
      this.stop();
    }
  }
  const isBinned = ({ bin }) => bin[0] > 1 || bin[1] > 1;
  function covers(layer, { r0, r1, c0, c1 }) {
    if (!layer) return false;
    return layer.row <= r0 && layer.column <= c0 && layer.row + layer.rows >= r1 && layer.column + layer.columns >= c1;
  }
  M.HeatmapLayers = HeatmapLayers;
})();
