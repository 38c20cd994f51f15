// The picture in a file of its own (dashboards/scene/page.py): no server, so what is chosen is kept in memory only.
"use strict";
(function () {
  const M = window.megascope, holder = document.getElementById("alone"), source = document.getElementById("model");
  if (!holder || !source) return;
  const model = JSON.parse(source.textContent), chosen = {};
  if (!model.doing) {
    holder.textContent = "No look at the ranks belongs to this verdict: there is nothing to draw.";
    return;
  }
  M.parameter = (name) => chosen[name] ?? null;
  M.note = M.noteSoon = (changes) => Object.assign(chosen, changes);
  M.change = (changes) => {
    Object.assign(chosen, changes);
    scene.followAddress();
    scene.draw();
  };
  // Fewer ranks than are told may be shown: those that matter are picked by what leads to a root.
  const scene = (M.alone = new M.Scene(holder, true));
  scene.show(model);
  new ResizeObserver(() => scene.draw()).observe(holder);
  document.addEventListener("megascope-action", () => scene.draw());
  scene.draw();
})();
