// What a person has unfolded stays so while newer data is drawn, which makes its elements anew: `details` with an id.
"use strict";
(function () {
  const known = new Map(); // address of the page and id -> whether it is open
  const key = (fold) => `${window.location.pathname} ${fold.id}`;
  document.addEventListener("toggle", (event) => {
    const fold = event.target;
    if (fold.matches && fold.matches("details[id]:not(#keys)")) known.set(key(fold), fold.open);
  }, true);
  const restore = (fold) => {
    const wanted = known.get(key(fold));
    if (wanted !== undefined && fold.open !== wanted) fold.open = wanted;
  };
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes) for (const node of addedNodes) {
      if (node.nodeType !== Node.ELEMENT_NODE) continue;
      if (node.matches("details[id]:not(#keys)")) restore(node);
      node.querySelectorAll("details[id]:not(#keys)").forEach(restore);
    }
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
