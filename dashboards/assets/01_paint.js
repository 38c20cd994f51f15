// What all canvases share: theme, tooltip, canvas, formats of numbers.
"use strict";
(function () {
  const M = window.megascope;

  // ---- theme -------------------------------------------------------------------------------------------------------
  const wanted = window.matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => {
    try {
      return window.localStorage.getItem("megascope-theme");
    } catch {
      return null;
    }
  };
  function applyTheme() {
    document.documentElement.dataset.theme = chosen() || (wanted.matches ? "dark" : "light");
    for (const holder of M.instances.values()) holder.redraw();
  }
  M.dark = () => document.documentElement.dataset.theme === "dark";
  M.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  wanted.addEventListener("change", applyTheme);
  M.onAction("theme", () => {
    try {
      window.localStorage.setItem("megascope-theme", M.dark() ? "light" : "dark");
    } catch {
      // Without storage the choice lasts as long as the page.
      document.documentElement.dataset.theme = M.dark() ? "light" : "dark";
    }
    applyTheme();
  });
  applyTheme();

  // ---- tooltip: a heading and pairs of label and value; text only, never markup ------------------------------------
  const tip = document.createElement("div");
  tip.className = "tooltip";
  tip.setAttribute("role", "tooltip");
  tip.hidden = true;
  document.addEventListener("DOMContentLoaded", () => document.body.appendChild(tip));
  if (document.body) document.body.appendChild(tip);
  M.tip = (event, heading, rows, foot) => {
    tip.replaceChildren();
    const add = (tag, text, parent) => {
      const node = document.createElement(tag);
      node.textContent = text;
      return parent.appendChild(node);
    };
    add("strong", heading, tip);
    const table = tip.appendChild(document.createElement("dl"));
    for (const [label, value] of rows) {
      if (value === null || value === undefined || value === "") continue;
      add("dt", label, table);
      add("dd", value, table);
    }
    if (foot) add("small", foot, tip);
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const right = event.clientX + 16 + width < window.innerWidth;
    tip.style.left = Math.max(4, right ? event.clientX + 16 : event.clientX - width - 12) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 12, window.innerHeight - height - 8)) + "px";
  };
  M.tipOff = () => (tip.hidden = true);
  // Whoever leaves a page by a key or the address moves no mouse off the canvas.
  for (const moved of ["popstate", "_dashprivate_pushstate"]) window.addEventListener(moved, M.tipOff);

  // ---- canvas ------------------------------------------------------------------------------------------------------
  M.canvas = (element, label) => {
    const canvas = element.appendChild(document.createElement("canvas"));
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", label);
    canvas.tabIndex = 0;
    canvas.addEventListener("mouseleave", M.tipOff);
    return canvas;
  };
  M.inkOn = (colour) => {
    const [red, green, blue] = [1, 3, 5].map((at) => (parseInt(colour.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 ? "#0c0f12" : "#ffffff";
  };
  M.fit = (canvas, width, height) => {
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = width + "px";
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = "12px " + M.colour("font");
    return context;
  };
  M.place = (event, canvas) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  M.hatch = (context) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.fillStyle = M.colour("missing");
    pen.fillRect(0, 0, 6, 6);
    pen.strokeStyle = M.colour("missing-line");
    pen.beginPath();
    for (const shift of [-6, 0, 6]) {
      pen.moveTo(shift, 6);
      pen.lineTo(shift + 6, 0);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  };
  M.dots = (context) => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 5;
    const pen = tile.getContext("2d");
    pen.fillStyle = M.colour("surface");
    pen.fillRect(0, 0, 5, 5);
    pen.fillStyle = M.colour("missing-line");
    pen.fillRect(1, 1, 1.5, 1.5);
    return context.createPattern(tile, "repeat");
  };

  // ---- formats -----------------------------------------------------------------------------------------------------
  M.number = (value, digits = 4) => {
    if (value === null || value === undefined || Number.isNaN(value)) return null;
    if (Number.isInteger(value) && Math.abs(value) < 1e9) return value.toLocaleString("en-US");
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e9 || size < 1e-4)) return value.toExponential(2);
    return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  };
  M.duration = (ns) => {
    if (ns === null || ns === undefined || Number.isNaN(ns)) return null;
    const size = Math.abs(ns);
    if (size >= 60e9) return `${Math.floor(ns / 60e9)} min ${Math.round((ns % 60e9) / 1e9)} s`;
    if (size >= 1e9) return (ns / 1e9).toFixed(3) + " s";
    if (size >= 1e6) return (ns / 1e6).toFixed(3) + " ms";
    if (size >= 1e3) return (ns / 1e3).toFixed(2) + " us";
    return Math.round(ns) + " ns";
  };
  // A moment, UTC ns as text or a number, in words; null for none.
  M.moment = (ns) => {
    if (ns === null || ns === undefined) return null;
    return new Date(Number(BigInt(ns) / 1000000n)).toISOString().replace("T", " ").replace("Z", " UTC");
  };
  M.bytes = (count) => {
    if (count === null || Number.isNaN(count)) return null;
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    for (; count >= 1024 && at < units.length - 1; at++) count /= 1024;
    return `${M.number(count)} ${units[at]}`;
  };
  M.short = (value) => {
    const size = Math.abs(value);
    for (const [unit, limit] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) if (size >= limit) return M.number(value / (limit === 1e4 ? 1e3 : limit)) + " " + unit;
    return M.number(value);
  };
  M.ticks = (low, high, about) => {
    const raw = (high - low) / Math.max(1, about);
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((value) => value >= raw);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
    return found;
  };
})();
