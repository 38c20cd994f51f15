// What is drawn over the spans: where work stood still, arrows between ranks, the critical path.
"use strict";
(function () {
  const M = window.megascope;
  // More are a thicket: then only those of the span under the pointer.
  const MOST_ARROWS = 400, MOST_MEETINGS = 400;

  Object.assign(M.TimelinePainter.prototype, {
    drawMarks() {
      this.arrows = this.meetings = 0;
      if (!this.hidden.has("arrows")) {
        this.drawMessages();
        if (this.model.links) this.drawMeetings();
      }
      if (this.model.path && !this.hidden.has("path")) this.drawPath();
    },
    // A rank's work stood still: hatched over its work, for as long as it waited for communication.
    drawStandstills(lanes) {
      const perPixel = this.plotWidth / (this.to - this.from), least = 1.5 / perPixel, right = this.element.clientWidth, places = [];
      for (const { waits, top } of lanes) {
        let low = 0, high = waits.length;
        while (low < high) {
          const middle = (low + high) >> 1;
          if (waits[middle][1] < this.from) low = middle + 1;
          else high = middle;
        }
        for (let at = low; at < waits.length && waits[at][0] <= this.to; at++) {
          const [from, to] = waits[at];
          if (to - from < least) continue;
          const left = Math.max(this.x(from), -2);
          places.push([left, 34 + top - this.scroll + 1, Math.min(this.x(to), right) - left, Math.max(1, this.row - 2)]);
        }
      }
      this.fillAll(places, this.workHatch);
    },
    drawMessages() {
      const { start, arrow_from: sends, arrow_to: receives } = this.model.arrays, { ends } = this.model, shown = [];
      for (let at = 0; at < sends.length; at++) {
        const t0 = start[sends[at]], t1 = ends[receives[at]];
        if (Math.max(t0, t1) >= this.from && Math.min(t0, t1) <= this.to) shown.push([sends[at], t0, receives[at], t1]);
      }
      this.arrows = this.drawArrows(shown, this.ink.p2p, shown.length > MOST_ARROWS);
    },
    // From the last arrival at a collective to the ends of those who waited for it; far out, of the hovered span only.
    drawMeetings() {
      const { start } = this.model.arrays, { ends, links } = this.model, shown = [];
      const perPixel = this.plotWidth / (this.to - this.from);
      for (const span of this.model.meetings) {
        const cause = links.cause[span];
        if (ends[span] < this.from || start[cause] > this.to) continue;
        if (links.waiting[span] * perPixel > 8 || this.isHot(span, cause)) shown.push([cause, start[cause], span, ends[span]]);
      }
      this.meetings = this.drawArrows(shown, this.ink.collective, shown.length > MOST_MEETINGS);
    },
    isHot(one, other) {
      return this.selected >= 0 && (this.selected === one || this.selected === other);
    },
    // All arrows of a sort are one path: stroking each alone takes a hundred times as long.
    drawArrows(shown, colour, onlyHot) {
      const context = this.context, low = 34, high = this.height, cold = [], hot = [];
      for (const [one, t0, other, t1] of shown) {
        const y0 = this.middle(one), y1 = this.middle(other), isHot = this.isHot(one, other);
        if ((y0 < low && y1 < low) || (y0 > high && y1 > high) || (onlyHot && !isHot)) continue;
        (isHot ? hot : cold).push([this.x(t0), y0, this.x(t1), y1]);
      }
      context.strokeStyle = context.fillStyle = colour;
      for (const [arrows, alpha, thick] of [[cold, 0.45, 1], [hot, 1, 2]]) {
        context.globalAlpha = alpha;
        context.lineWidth = thick;
        context.beginPath();
        for (const [x0, y0, x1, y1] of arrows) {
          const bend = Math.max(12, Math.abs(x1 - x0) / 2);
          context.moveTo(x0, y0);
          context.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1, y1);
        }
        context.stroke();
        context.beginPath();
        for (const [, , x1, y1] of arrows) {
          context.moveTo(x1, y1);
          context.lineTo(x1 - 6, y1 - 3);
          context.lineTo(x1 - 6, y1 + 3);
        }
        context.fill();
      }
      context.globalAlpha = context.lineWidth = 1;
      return cold.length + hot.length;
    },
    // The path is a bar along the foot of what is on it, and a line where it goes on at another rank.
    drawPath() {
      const { span, begin, end } = this.model.path, { lane } = this.model.arrays, context = this.context;
      const thick = Math.max(2, Math.min(4, this.row / 4)), covered = new Map();
      context.fillStyle = this.ink.critical;
      this.lit = 0;
      let last = null, free = -Infinity;
      for (let at = 0; at < span.length; at++) {
        if (end[at] < this.from || begin[at] > this.to) {
          last = null;
          continue;
        }
        const rank = this.model.lanes[lane[span[at]]].rank, y = this.middle(span[at]) + this.row / 2 - thick / 2 - 0.5;
        const x0 = this.x(begin[at]), x1 = Math.max(x0 + 1, this.x(end[at]));
        this.lit += 1;
        if (x1 > (covered.get(y) ?? -Infinity)) {
          context.fillRect(x0, y - thick / 2, x1 - x0, thick);
          covered.set(y, Math.ceil(x1 - 0.5));
        }
        if (last && last.rank !== rank && x0 >= free) {
          context.fillRect(x0 - 0.5, Math.min(last.y, y), 1, Math.abs(y - last.y));
          free = x0 + 2;
        }
        last = { y, rank };
      }
    },
  });
})();
