// The timeline's drawing: lanes and spans. What it draws is in timeline_1_model.js; labels and marks have own files.
"use strict";
(function () {
  const M = window.megascope;
  const LEFT = 150, AXIS = 34, ROW = 17, LEAST_ROW = 3;

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
      this.readColours();
      if (this.coarse !== this.told) this.note(this.noted || "");
      if (this.coarse) this.layOutCoarse();
      else this.layOut();
      if (this.seekRank) this.scrollToRank();
      this.scroll = Math.max(0, Math.min(this.scroll, this.contentHeight - (height - AXIS)));
      this.drawGrid();
      this.stepLabels = [];
      this.drawn = 0;
      if (this.coarse) this.inPlot(0, () => this.drawCoarse());
      else this.drawSpans();
      this.drawStepLabels();
      this.drawScrollBar(width);
    }
    // A view that opens with the chosen rank below its edge starts there.
    scrollToRank() {
      if (!this.coarse && !this.model.count) return; // nothing is there yet
      this.seekRank = false;
      const { rank, ranks } = this.model.meta, lane = this.model.lanes.find((each) => each.rank === rank);
      const top = this.coarse ? ranks.indexOf(rank) * this.coarseRow : lane ? lane.top : 0;
      if (top > (this.height - AXIS) * 0.7) this.scroll = top - 60;
    }
    // Colours are asked for once a theme: a canvas of a hundred thousand spans has no time to ask for each.
    readColours() {
      const { model } = this, theme = document.documentElement.dataset.theme;
      if (this.coloured === model && this.theme === theme) return;
      [this.coloured, this.theme] = [model, theme];
      this.ink = Object.fromEntries(
        ["quiet", "grid", "ink", "line", "surface", "select", "p2p", "collective", "critical", "missing"].map((name) => [name, M.colour(name)]),
      );
      this.font = M.colour("font");
      this.colours = model.meta.segments.map((segment) => M.colour(M.segmentColour(segment)));
      this.inks = this.colours.map(M.inkOn);
      this.hatches = this.colours.map((colour) => M.waitingHatch(this.context, colour, this.ink.surface));
      this.noData = M.hatch(this.context);
      this.workHatch = M.waitingHatch(this.context, this.ink.quiet, this.ink.surface);
      this.open = model.meta.statuses.indexOf("in flight");
    }
    inPlot(left, paint) {
      this.context.save();
      this.context.beginPath();
      this.context.rect(left, AXIS, this.element.clientWidth - left, this.height - AXIS);
      this.context.clip();
      paint();
      this.context.restore();
    }
    // `fit` makes rows so low that all lanes stand on one screen; where they could not be told apart any more, the
    // lanes of communication are left out.
    layOut() {
      const { lanes } = this.model, rows = lanes.reduce((sum, lane) => sum + lane.rows.length, 0);
      const works = lanes.filter((lane) => lane.first), workRows = works.reduce((sum, lane) => sum + lane.rows.length, 0);
      const room = this.height - AXIS - 8;
      const fitting = (count, gaps) => Math.floor(((room - gaps) / Math.max(1, count)) * 2) / 2;
      const low = this.fit ? fitting(rows, works.length * 4 + lanes.length) : ROW;
      this.onlyWork = low < LEAST_ROW;
      this.row = this.onlyWork ? Math.max(LEAST_ROW, Math.min(ROW, fitting(workRows, works.length * 2))) : Math.min(ROW, low);
      const gap = this.row < ROW ? 1 : 3;
      this.rankGap = this.onlyWork ? 1 : this.row < ROW ? 4 : 9;
      let top = 4, rank = null;
      for (const lane of lanes) {
        lane.out = this.onlyWork && !lane.first;
        if (lane.out) {
          lane.top = lanes[lanes.indexOf(lane) - 1].top;
          continue;
        }
        if (rank !== null && lane.rank !== rank) top += this.rankGap;
        rank = lane.rank;
        lane.top = top;
        top += lane.rows.length * this.row + gap;
      }
      this.contentHeight = top + 4;
      this.labelFree = -Infinity;
    }
    drawSpans() {
      const shown = this.model.lanes.filter((lane) => {
        const top = AXIS + lane.top - this.scroll;
        return !lane.out && top + lane.rows.length * this.row >= AXIS - this.rankGap && top <= this.height;
      });
      this.labels = [];
      this.stripes = this.model.meta.segments.map(() => []);
      this.inPlot(0, () => shown.forEach((lane, at) => this.drawLaneLabel(lane, at === 0 || shown[at - 1].rank !== lane.rank)));
      this.inPlot(LEFT, () => {
        for (const lane of shown) this.drawLane(lane, AXIS + lane.top - this.scroll);
        this.stripes.forEach((places, segment) => this.fillAll(places, this.hatches[segment]));
        if (!this.hidden.has("waiting")) this.drawStandstills(shown);
        for (const label of this.labels) this.label(...label);
        this.drawMarks();
      });
    }
    // Many places of one pattern are one path: filled one by one they would take a hundred times as long.
    fillAll(places, style) {
      if (!places.length) return;
      this.context.fillStyle = style;
      this.context.beginPath();
      for (const place of places) this.context.rect(...place);
      this.context.fill();
    }
    drawLane(lane, top) {
      if (lane.empty) this.drawNoData(top, lane.rows.length * this.row);
      this.drawSteps(lane, top, lane.rows.length * this.row);
      lane.rows.forEach((row, number) => this.drawRow(row, top + number * this.row, lane.waits.length > 0));
    }
    drawNoData(top, tall) {
      this.context.fillStyle = this.noData;
      this.context.fillRect(LEFT, top + 1, this.plotWidth, Math.max(1, tall - 2));
    }
    drawRow(row, y, onStripes) {
      const tall = this.row;
      if (y + tall < AXIS || y > this.height) return;
      const { start, segment, status } = this.model.arrays, { ends } = this.model, context = this.context;
      const perPixel = this.plotWidth / (this.to - this.from), searching = this.found !== null;
      const waiting = this.model.links && !this.hidden.has("waiting") ? this.model.links.waiting : null;
      const inset = tall > 6 ? 2 : tall > 3 ? 1 : 0, limit = LEFT + this.plotWidth + 2;
      const top = y + inset / 2, deep = tall - inset;
      let covered = -1, filled = "", colour = "", fineFrom = 0, fineTo = -1;
      const fill = (style, from, wide) => {
        if (style !== filled) context.fillStyle = filled = style;
        context.fillRect(from, top, wide, deep);
      };
      const flush = () => {
        if (fineTo > fineFrom) fill(colour, fineFrom, fineTo - fineFrom);
        fineTo = -1;
      };
      for (let at = this.model.firstIn(row, this.from); at < row.length && start[row[at]] <= this.to; at++) {
        const span = row[at], left = LEFT + (start[span] - this.from) * perPixel;
        const right = Math.max(left + 1, LEFT + (ends[span] - this.from) * perPixel);
        const hit = searching && this.found[span] === 1, own = this.colours[segment[span]];
        // Spans that share one pixel are drawn once, unless a search is to show them.
        if (right <= covered && !hit) continue;
        covered = Math.ceil(right - 0.5);
        const from = left > LEFT - 2 ? left : LEFT - 2, to = right < limit ? right : limit, wide = to - from;
        this.drawn += 1;
        // Narrow ones of one colour, without a pixel between them, are one rectangle.
        if (wide < 3 && !searching && span !== this.selected) {
          if (own !== colour || from > fineTo + 1) {
            flush();
            [colour, fineFrom] = [own, from];
          }
          fineTo = to;
          continue;
        }
        flush();
        const dimmed = searching && !hit;
        if (searching) context.globalAlpha = dimmed ? 0.18 : 1;
        fill(own, from, Math.max(1, wide - (wide > 3 ? 0.6 : 0)));
        if (waiting !== null && !dimmed && waiting[span] * perPixel > 1.5) {
          this.stripes[segment[span]].push([from, top, Math.min(to, left + waiting[span] * perPixel) - from, deep]);
        }
        if (this.open >= 0 && status[span] === this.open) this.drawOpenEnd(from, to, y);
        if (span === this.selected || hit) this.outline(from, y, wide, span === this.selected);
        if (wide > 34 && !dimmed && tall >= 11) this.labels.push([span, Math.max(from, LEFT), y, to, onStripes]);
      }
      flush();
      context.globalAlpha = 1;
    }
    // In flight at the last heartbeat: striped, because it has no end yet.
    drawOpenEnd(from, to, y) {
      const context = this.context, tall = this.row;
      context.save();
      context.beginPath();
      context.rect(from, y + 1, to - from, tall - 2);
      context.clip();
      context.strokeStyle = this.ink.surface;
      context.globalAlpha = 0.55;
      context.lineWidth = 3;
      for (let x = from - tall; x < to; x += 11) {
        context.beginPath();
        context.moveTo(x, y + tall);
        context.lineTo(x + tall, y);
        context.stroke();
      }
      context.restore();
    }
    outline(x, y, width, isSelected) {
      this.context.strokeStyle = this.ink.select;
      this.context.lineWidth = isSelected ? 2 : 1;
      this.context.strokeRect(x, y + 1, Math.max(2, width), this.row - 2);
      this.context.lineWidth = 1;
    }
    label(span, from, y, to, onStripes) {
      const text = this.model.title(span), context = this.context;
      const room = to - from - 6;
      if (room < 20) return;
      context.save();
      context.beginPath();
      context.rect(from, y, to - from, this.row);
      context.clip();
      const { segment, status, start } = this.model.arrays, open = status[span] === this.open;
      const waiting = this.hidden.has("waiting") ? 0 : this.model.waiting(span), solid = this.x(start[span] + waiting);
      if (waiting > 0 && to - solid > 34 && solid > from) from = solid;
      context.fillStyle = this.inks[segment[span]];
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.font = "11px " + this.font;
      // On stripes a name is only readable on a ground of its own: pale where it waits, so that waiting stays plain.
      const isWaiting = waiting > 0 && solid > from + 3;
      if (onStripes || open || isWaiting) {
        context.fillStyle = isWaiting ? this.ink.surface : this.colours[segment[span]];
        context.fillRect(from + 1, y + 2, Math.min(to - from - 1, context.measureText(text).width + 4), this.row - 4);
        context.fillStyle = isWaiting ? this.ink.ink : this.inks[segment[span]];
      }
      M.fillFitted(context, text, from + 3, y + this.row / 2 + 0.5, to - from - 4);
      context.restore();
    }
    middle(span) {
      const lane = this.model.lanes[this.model.arrays.lane[span]];
      return AXIS + lane.top - this.scroll + ((lane.out ? 0 : this.model.rowOf[span]) + 0.5) * this.row;
    }
  }
  TimelinePainter.SIZES = { LEFT, AXIS, ROW };
  M.TimelinePainter = TimelinePainter;

  // Waiting: stripes of a colour on a pale ground, where work is solid.
  M.waitingHatch = (context, colour, surface) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.fillStyle = surface;
    pen.fillRect(0, 0, 6, 6);
    pen.globalAlpha = 0.18;
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 6, 6);
    pen.globalAlpha = 0.9;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.2;
    pen.beginPath();
    for (const shift of [-6, 0, 6]) {
      pen.moveTo(shift, 6);
      pen.lineTo(shift + 6, 0);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  };
})();
