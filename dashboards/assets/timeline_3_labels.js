// What stands around the timeline's spans: grid of time, labels of ranks and lanes, starts of steps, scroll bar.
"use strict";
(function () {
  const M = window.megascope;
  const { LEFT, AXIS } = M.TimelinePainter.SIZES;

  // A text cut to its place, where squeezing it would make it unreadable.
  M.fillFitted = (context, text, x, y, room) => {
    let shown = text;
    while (shown.length > 1 && context.measureText(shown).width > room) {
      text = text.slice(0, -1);
      shown = text + "…";
    }
    context.fillText(shown, x, y);
  };

  // A duration in two digits, for a narrow place.
  function rough(ns) {
    const [size, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]].find(([least]) => ns >= least) || [1, "ns"];
    return `${M.number(ns / size, 2)} ${unit}`;
  }

  Object.assign(M.TimelinePainter.prototype, {
    drawGrid() {
      const context = this.context;
      context.fillStyle = this.ink.quiet;
      context.strokeStyle = this.ink.grid;
      context.textAlign = "center";
      context.textBaseline = "middle";
      const width = this.to - this.from;
      const [size, unit] = width > 5e9 ? [1e9, " s"] : width > 5e4 ? [1e6, " ms"] : [1e3, " us"];
      const zero = this.coarse ? this.outlined.first : 0; // of the whole run its start, else the first span's
      for (const at of M.ticks(this.from - zero, this.to - zero, this.plotWidth / 110)) {
        const x = Math.round(this.x(at + zero)) + 0.5;
        context.beginPath();
        context.moveTo(x, AXIS - 16);
        context.lineTo(x, this.height);
        context.stroke();
        context.fillText(at === 0 ? "0" : M.number(at / size, 7) + unit, x, 10);
      }
      context.textAlign = "left";
      const [day, clock] = M.utc(this.model.base, this.from).split(" ");
      context.fillText(day, 6, 10, LEFT - 12);
      context.fillText(clock + " UTC", 6, 25, LEFT - 12);
    },
    drawLaneLabel(lane, isTopmost) {
      const top = AXIS + lane.top - this.scroll, context = this.context;
      if (isTopmost) this.drawRankLabel(lane.rank);
      if (this.row < 11) return;
      context.fillStyle = this.ink.quiet;
      context.textAlign = "right";
      context.textBaseline = "middle";
      M.fillFitted(context, lane.label, LEFT - 8, top + this.row / 2, 56);
    },
    // A rank's label stays in view as long as one of its lanes is.
    drawRankLabel(rank) {
      const own = this.model.lanes.filter((lane) => lane.rank === rank), edge = AXIS + own[0].top - this.scroll;
      const size = own[0].rows.length * this.row, top = Math.max(edge, Math.min(AXIS, edge + this.rankDepth(rank) - this.row));
      const context = this.context, { meta } = this.model, chosen = rank === meta.rank, unsure = meta.uncertainty[rank];
      const isLow = this.row < 11;
      context.fillStyle = chosen ? this.ink.ink : this.ink.quiet;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.font = (chosen ? "bold " : "") + (isLow ? "9px " : "12px ") + this.font;
      const y = isLow ? top + Math.min(size, 12) / 2 : top + this.row / 2;
      if (!isLow || y >= this.labelFree) {
        M.fillFitted(context, (chosen ? "▶ " : "") + "rank " + rank, 6, y, 80);
        this.labelFree = y + 10;
      }
      context.font = "12px " + this.font;
      const more = [meta.places[rank], unsure === null ? "own clock" : unsure ? `±${rough(unsure)}` : ""].filter(Boolean);
      const depth = isLow ? 0 : this.rankDepth(rank) - (top - edge);
      if (depth < 17 * 2.7) more.splice(0, 2, more.reverse().join(" ")); // what is cut is never a number's unit
      if (!isLow) more.forEach((text, at) => depth > 17 * (at + 1.6) && M.fillFitted(context, text, 6, top + this.row * (at + 1.5), 82));
      context.strokeStyle = this.ink.line;
      context.beginPath();
      const y0 = Math.round(edge - this.rankGap / 2) + 0.5;
      context.moveTo(isLow ? LEFT : 0, y0);
      context.lineTo(this.element.clientWidth, y0);
      if (!this.onlyWork) context.stroke();
    },
    rankDepth(rank) {
      const own = this.model.lanes.filter((lane) => lane.rank === rank), last = own[own.length - 1];
      return last.top + last.rows.length * this.row - own[0].top;
    },
    drawSteps(lane, top, size) {
      if (!lane.first) return;
      const context = this.context, labelled = lane === this.model.lanes[0];
      const unsure = this.model.meta.uncertainty[lane.rank] || 0, spread = (unsure * this.plotWidth) / (this.to - this.from);
      context.strokeStyle = context.fillStyle = this.ink.quiet;
      context.textAlign = "left";
      context.setLineDash([2, 3]);
      for (const [rank, step, start] of this.model.steps) {
        if (rank !== lane.rank || start < this.from || start > this.to) continue;
        const x = Math.round(this.x(start)) + 0.5;
        context.strokeRect(x, top - 3, 0, size);
        if (spread >= 1) this.drawUncertainty(x, top, size, spread);
        if (labelled) this.stepLabels.push([step, x]);
      }
      context.setLineDash([]);
    },
    // How far this host's times may be off, to scale, where its step begins: no order finer than this is certain.
    drawUncertainty(x, top, size, spread) {
      const context = this.context;
      context.globalAlpha = 0.22;
      context.fillRect(x - spread, top - 3, 2 * spread, size + 3);
      context.globalAlpha = 1;
      context.fillRect(x - spread, top - 3, 2 * spread, 1.5);
    },
    drawStepLabels() {
      this.context.fillStyle = this.ink.ink;
      this.context.textAlign = "left";
      let free = 0;
      for (const [step, x] of this.stepLabels) {
        if (x < free || x < LEFT) continue;
        this.context.fillText("step " + step, x + 2, AXIS - 6);
        free = x + 56;
      }
    },
    drawScrollBar(width) {
      const room = this.height - AXIS;
      if (this.contentHeight <= room) return;
      const size = Math.max(24, (room * room) / this.contentHeight);
      this.context.fillStyle = this.ink.quiet;
      this.context.globalAlpha = 0.5;
      this.context.fillRect(width - 6, AXIS + (this.scroll / (this.contentHeight - room)) * (room - size), 4, size);
      this.context.globalAlpha = 1;
    },
  });
})();
