// The Overview's curves: small charts side by side on one canvas, with a common cursor over the steps.
"use strict";
(function () {
  const M = window.megascope;
  const GAP = 14, TITLE = 22, FOOT = 20, LEFT = 58;

  class Curves {
    constructor(element) {
      this.element = element;
      this.text = true;
      this.canvas = M.canvas(element, "Curves of loss, throughput, step time, gradient norm and MFU by step");
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("mouseleave", () => this.setCursor(-1));
    }
    ready() {
      return Boolean(this.data);
    }
    show(data) {
      this.data = data;
      this.cursor = -1;
    }
    draw() {
      const width = this.element.clientWidth, height = this.element.clientHeight;
      this.context = M.fit(this.canvas, width, height);
      const panels = this.data.panels, across = Math.min(3, Math.max(1, panels.length));
      const down = Math.max(1, Math.ceil(panels.length / across));
      const boxWidth = (width - GAP * (across + 1)) / across, boxHeight = (height - GAP) / down;
      this.boxes = panels.map((panel, at) => ({
        panel, x: GAP + (at % across) * (boxWidth + GAP) + LEFT, y: 6 + Math.floor(at / across) * boxHeight + TITLE,
        width: boxWidth - LEFT, height: boxHeight - TITLE - FOOT - 4,
      }));
      for (const box of this.boxes) this.drawPanel(box);
      if (!panels.length) {
        this.context.fillStyle = M.colour("quiet");
        this.context.fillText("No completed steps yet.", 20, 30);
      } else if (this.data.missing.length && panels.length < across * down) {
        this.context.fillStyle = M.colour("quiet");
        this.context.textAlign = "left";
        this.context.fillText("not recorded: " + this.data.missing.join(", "), width - boxWidth - GAP + 10, height - boxHeight + 20);
      }
    }
    range(panel) {
      const values = panel.series.flatMap((one) => one.y).filter((value) => value !== null);
      let low = Infinity, high = -Infinity;
      for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
      if (panel.unit === "tokens/s" || panel.unit === "ms" || panel.unit === "%") low = Math.min(0, low);
      const margin = (high - low || Math.abs(high) || 1) * 0.05;
      return [low - (low === 0 ? 0 : margin), high + margin];
    }
    drawPanel(box) {
      const context = this.context, { panel, x, y, width, height } = box, steps = this.data.x;
      const [low, high] = this.range(panel), first = steps[0], last = steps[steps.length - 1];
      box.px = (step) => x + (last > first ? ((step - first) / (last - first)) * width : width / 2);
      box.py = (value) => y + height - ((value - low) / (high - low)) * height;
      context.textAlign = "left";
      context.textBaseline = "alphabetic";
      context.fillStyle = M.colour("ink");
      context.fillText(panel.title + (panel.unit ? ` (${panel.unit})` : ""), x - LEFT + 8, y - 8);
      this.drawFaults(box, last);
      context.strokeStyle = M.colour("grid");
      context.fillStyle = M.colour("quiet");
      context.textBaseline = "middle";
      for (const tick of M.ticks(low, high, 4)) {
        context.textAlign = "right";
        context.fillText(M.short(tick), x - 6, box.py(tick));
        context.strokeRect(x, Math.round(box.py(tick)) + 0.5, width, 0);
      }
      context.textAlign = "center";
      context.textBaseline = "top";
      for (const tick of M.ticks(first, last, width / 70)) if (Number.isInteger(tick)) context.fillText(tick, box.px(tick), y + height + 4);
      panel.series.forEach((one, at) => this.drawSeries(box, one, at));
      if (panel.series.length > 1) this.drawNames(box);
      if (this.cursor >= 0) context.fillRect(box.px(steps[this.cursor]), y, 1, height);
    }
    drawSeries(box, one, at) {
      const context = this.context, steps = this.data.x;
      context.strokeStyle = context.fillStyle = M.colour(at ? "collective" : "compute");
      context.lineWidth = 1.5;
      context.setLineDash(at ? [5, 3] : []);
      context.beginPath();
      let open = false;
      one.y.forEach((value, place) => {
        if (value === null) return (open = false);
        const point = [box.px(steps[place]), box.py(value)];
        const alone = !open && (one.y[place + 1] ?? null) === null;
        if (alone) context.fillRect(point[0] - 1.5, point[1] - 1.5, 3, 3);
        if (open) context.lineTo(...point);
        else context.moveTo(...point);
        open = true;
        return undefined;
      });
      context.stroke();
      context.setLineDash([]);
      context.lineWidth = 1;
    }
    drawNames({ panel, x, y, width }) {
      const context = this.context;
      context.textBaseline = "alphabetic";
      context.textAlign = "right";
      let right = x + width;
      [...panel.series].reverse().forEach((one, at) => {
        const width = context.measureText(one.name).width, number = panel.series.length - 1 - at;
        context.fillStyle = M.colour("quiet");
        context.fillText(one.name, right, y - 8);
        context.strokeStyle = M.colour(number ? "collective" : "compute");
        context.lineWidth = 2;
        context.setLineDash(number ? [5, 3] : []);
        context.beginPath();
        context.moveTo(right - width - 22, y - 12);
        context.lineTo(right - width - 5, y - 12);
        context.stroke();
        context.setLineDash([]);
        context.lineWidth = 1;
        right -= width + 34;
      });
    }
    drawFaults(box, last) {
      const context = this.context;
      for (const [from, to] of this.data.faults) {
        const left = Math.max(box.x, box.px(from)), right = Math.min(box.x + box.width, box.px(to ?? last));
        if (right < left) continue;
        context.fillStyle = M.colour("fault");
        context.globalAlpha = 0.1;
        context.fillRect(left, box.y, right - left, box.height);
        context.globalAlpha = 1;
      }
    }
    setCursor(at) {
      if (!this.ready() || at === this.cursor) return;
      this.cursor = at;
      this.draw();
    }
    hover(event) {
      if (!this.ready() || !this.boxes) return;
      const [px, py] = M.place(event, this.canvas), steps = this.data.x;
      const box = this.boxes.find((each) => px >= each.x && px <= each.x + each.width && py >= each.y - TITLE && py <= each.y + each.height + FOOT);
      if (!box || !steps.length) {
        M.tipOff();
        return this.setCursor(-1);
      }
      let best = 0;
      for (let at = 1; at < steps.length; at++) if (Math.abs(box.px(steps[at]) - px) < Math.abs(box.px(steps[best]) - px)) best = at;
      this.setCursor(best);
      M.tip(event, "step " + steps[best], this.data.panels.flatMap((panel) => panel.series.map((one) => [
        panel.series.length > 1 ? `${panel.title}, ${one.name}` : panel.title,
        one.y[best] === null ? null : `${M.number(one.y[best])} ${panel.unit}`,
      ])));
      return undefined;
    }
  }
  M.register("curves", (element) => new Curves(element));
})();
