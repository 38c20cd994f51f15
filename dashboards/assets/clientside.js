// Callbacks that Dash runs in the browser.
"use strict";
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.megascope = {
  // The page of the newest address is there.
  arrived: () => {
    document.body.classList.remove("busy");
    return "";
  },
  // An interval with no ticks left is paused; `disabled` is taken by the in-flight guard.
  pause: (clicks) => (clicks % 2 ? [0, "Go on"] : [-1, "Pause"]),
};
