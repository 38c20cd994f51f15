// The timeline's drawing: grid, lanes, spans, arrows. What it draws is in timeline_1_model.js.
"use strict";
(function () {
  const M = window.megascope;
  const LEFT = 150, AXIS = 34, ROW = 17, LANE_GAP = 3, RANK_GAP = 9;

  class TimelinePainter {
    x(time) {
      return LEFT + ((time - this.from) / (this.to - this.from)) * this.plotWidth;
    }
    time(x) {
      return this.from + ((x - LEFT) / this.plotWidth) * (this.to - this.from);
    }

    draw() {
      const width = this.element.clientWidth, height = this.element.clientHeight || 480;
      this.context = M.fit(this.canvas, width, height);
      this.height = height;
      this.plotWidth = width - LEFT - 8;
      this.layOut();
      this.scroll = Math.max(0, Math.min(this.scroll, this.contentHeight - (height - AXIS)));
      this.colours = this.model.meta.segments.map((segment) => M.colour(M.segmentColour(segment)));
      this.inks = this.colours.map(M.inkOn);
      this.open = this.model.meta.statuses.indexOf("in flight");
      this.drawGrid();
      this.context.save();
      this.context.beginPath();
      this.context.rect(0, AXIS, width, height - AXIS);
      this.context.clip();
      this.drawn = 0;
      this.stepLabels = [];
      for (const lane of this.model.lanes) this.drawLane(lane);
      this.drawArrows();
      this.context.restore();
      this.drawStepLabels();
      this.drawScrollBar(width);
    }
    layOut() {
      let top = 4;
      let rank = null;
      for (const lane of this.model.lanes) {
        if (rank !== null && lane.rank !== rank) top += RANK_GAP;
        rank = lane.rank;
        lane.top = top;
        top += lane.rows.length * ROW + LANE_GAP;
      }
      this.contentHeight = top + 4;
    }
    drawGrid() {
      const context = this.context;
      context.fillStyle = M.colour("quiet");
      context.strokeStyle = M.colour("grid");
      context.textAlign = "center";
      context.textBaseline = "middle";
      const width = this.to - this.from;
      const [size, unit] = width > 5e9 ? [1e9, " s"] : width > 5e4 ? [1e6, " ms"] : [1e3, " us"];
      for (const at of M.ticks(this.from, this.to, this.plotWidth / 110)) {
        const x = Math.round(this.x(at)) + 0.5;
        context.beginPath();
        context.moveTo(x, AXIS - 16);
        context.lineTo(x, this.height);
        context.stroke();
        context.fillText(at === 0 ? "0" : M.number(at / size, 7) + unit, x, 10);
      }
    }
    drawLane(lane) {
      const top = AXIS + lane.top - this.scroll, size = lane.rows.length * ROW;
      if (top + size < AXIS || top > this.height) return;
      const context = this.context, chosen = lane.rank === this.model.meta.rank;
      context.fillStyle = M.colour(lane.first ? (chosen ? "ink" : "quiet") : "quiet");
      context.textAlign = "left";
      context.textBaseline = "middle";
      if (lane.first) {
        context.font = (chosen ? "bold " : "") + "12px " + M.colour("font");
        context.fillText((chosen ? "▶ " : "") + "rank " + lane.rank, 6, top + ROW / 2, 80);
        context.font = "12px " + M.colour("font");
        if (size > 28) context.fillText(this.model.meta.places[lane.rank] || "", 6, top + ROW * 1.5, 84);
        context.strokeStyle = M.colour("line");
        context.beginPath();
        context.moveTo(0, Math.round(top - RANK_GAP / 2) + 0.5);
        context.lineTo(this.element.clientWidth, Math.round(top - RANK_GAP / 2) + 0.5);
        context.stroke();
      }
      context.fillStyle = M.colour("quiet");
      context.textAlign = "right";
      context.fillText(lane.label, LEFT - 8, top + ROW / 2, 60);
      context.save();
      context.beginPath();
      context.rect(LEFT, AXIS, this.plotWidth, this.height - AXIS);
      context.clip();
      this.drawSteps(lane, top, size);
      lane.rows.forEach((row, number) => this.drawRow(row, top + number * ROW));
      context.restore();
    }
    drawSteps(lane, top, size) {
      if (!lane.first) return;
      const context = this.context, labelled = lane === this.model.lanes[0];
      context.strokeStyle = context.fillStyle = M.colour("quiet");
      context.textAlign = "left";
      context.setLineDash([2, 3]);
      for (const [rank, step, start] of this.model.meta.steps) {
        if (rank !== lane.rank || start < this.from || start > this.to) continue;
        const x = Math.round(this.x(start)) + 0.5;
        context.strokeRect(x, top - 3, 0, size);
        if (labelled) this.stepLabels.push([step, x]);
      }
      context.setLineDash([]);
    }
    drawStepLabels() {
      this.context.fillStyle = M.colour("ink");
      this.context.textAlign = "left";
      let free = 0;
      for (const [step, x] of this.stepLabels) {
        if (x < free) continue;
        this.context.fillText("step " + step, x + 2, AXIS - 6);
        free = x + 56;
      }
    }
    drawRow(row, y) {
      if (y + ROW < AXIS || y > this.height) return;
      const { start, duration, segment } = this.model.arrays, context = this.context;
      const perPixel = this.plotWidth / (this.to - this.from);
      let covered = -1;
      for (let at = this.model.firstIn(row, this.from); at < row.length && start[row[at]] <= this.to; at++) {
        const span = row[at], left = LEFT + (start[span] - this.from) * perPixel;
        const length = duration[span];
        const right = Math.max(left + 1, left + (length === length ? length : 0) * perPixel);
        // Spans that share one pixel are drawn once, unless a search is to show them.
        if (right <= covered && !this.found.has(span)) continue;
        covered = Math.ceil(right - 0.5);
        const dimmed = this.found.size > 0 && !this.found.has(span);
        context.globalAlpha = dimmed ? 0.18 : 1;
        context.fillStyle = this.colours[segment[span]];
        const from = Math.max(left, LEFT - 2), to = Math.min(right, LEFT + this.plotWidth + 2);
        context.fillRect(from, y + 1, Math.max(1, to - from - (to - from > 3 ? 0.6 : 0)), ROW - 2);
        if (this.open >= 0 && this.model.arrays.status[span] === this.open) this.drawOpenEnd(from, to, y);
        this.drawn += 1;
        if (span === this.selected) this.outline(from, y, to - from);
        if (to - from > 34 && !dimmed) this.label(span, Math.max(from, LEFT), y, to);
      }
      context.globalAlpha = 1;
    }
    // In flight at the last heartbeat: striped, because it has no end yet.
    drawOpenEnd(from, to, y) {
      const context = this.context;
      context.save();
      context.beginPath();
      context.rect(from, y + 1, to - from, ROW - 2);
      context.clip();
      context.strokeStyle = M.colour("surface");
      context.globalAlpha = 0.55;
      context.lineWidth = 3;
      for (let x = from - ROW; x < to; x += 11) {
        context.beginPath();
        context.moveTo(x, y + ROW);
        context.lineTo(x + ROW, y);
        context.stroke();
      }
      context.restore();
    }
    outline(x, y, width) {
      this.context.strokeStyle = M.colour("select");
      this.context.lineWidth = 2;
      this.context.strokeRect(x, y + 1, Math.max(2, width), ROW - 2);
      this.context.lineWidth = 1;
    }
    label(span, from, y, to) {
      const text = this.model.title(span), context = this.context;
      const room = to - from - 6;
      if (room < 20) return;
      context.save();
      context.beginPath();
      context.rect(from, y, to - from, ROW);
      context.clip();
      context.fillStyle = this.inks[this.model.arrays.segment[span]];
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.font = "11px " + M.colour("font");
      if (this.model.arrays.status[span] === this.open) {
        const [ink, width] = [context.fillStyle, context.measureText(text).width];
        context.fillStyle = this.colours[this.model.arrays.segment[span]];
        context.fillRect(from, y + 1, width + 6, ROW - 2);
        context.fillStyle = ink;
      }
      context.fillText(text, from + 3, y + ROW / 2 + 0.5);
      context.restore();
    }
    drawArrows() {
      const { start, duration, arrow_from: sends, arrow_to: receives } = this.model.arrays, context = this.context;
      context.save();
      context.beginPath();
      context.rect(LEFT, AXIS, this.plotWidth, this.height - AXIS);
      context.clip();
      context.strokeStyle = context.fillStyle = M.colour("p2p");
      this.arrows = 0;
      for (let at = 0; at < sends.length && this.arrows < 3000; at++) {
        const send = sends[at], receive = receives[at];
        const t0 = start[send], t1 = start[receive] + (duration[receive] || 0);
        if (Math.max(t0, t1) < this.from || Math.min(t0, t1) > this.to) continue;
        const hot = this.selected === send || this.selected === receive;
        context.globalAlpha = hot ? 1 : 0.45;
        context.lineWidth = hot ? 2 : 1;
        this.arrow(this.x(t0), this.middle(send), this.x(t1), this.middle(receive));
        this.arrows += 1;
      }
      context.restore();
    }
    arrow(x0, y0, x1, y1) {
      const context = this.context, bend = Math.max(12, Math.abs(x1 - x0) / 2);
      context.beginPath();
      context.moveTo(x0, y0);
      context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
      context.stroke();
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x1 - 6, y1 - 3);
      context.lineTo(x1 - 6, y1 + 3);
      context.fill();
    }
    middle(span) {
      const lane = this.model.lanes[this.model.arrays.lane[span]];
      return AXIS + lane.top - this.scroll + (this.model.rowOf[span] + 0.5) * ROW;
    }
    drawScrollBar(width) {
      const room = this.height - AXIS;
      if (this.contentHeight <= room) return;
      const size = Math.max(24, (room * room) / this.contentHeight);
      this.context.fillStyle = M.colour("quiet");
      this.context.globalAlpha = 0.5;
      this.context.fillRect(width - 6, AXIS + (this.scroll / (this.contentHeight - room)) * (room - size), 4, size);
      this.context.globalAlpha = 1;
    }
  }
  TimelinePainter.SIZES = { LEFT, AXIS, ROW };
  M.TimelinePainter = TimelinePainter;
})();
