// The heatmap's colours: blue - grey - orange - brown for what has a middle, cividis for what has none. All of them are
// told apart with every common colour blindness.
"use strict";
(function () {
  const M = window.megascope;

  const LIGHT = { cold: [33, 102, 172], hot: [196, 73, 0], hottest: [107, 31, 0] };
  const DARK = { cold: [77, 160, 232], hot: [255, 140, 40], hottest: [255, 225, 130] };
  const CIVIDIS = [[0, 32, 77], [60, 77, 110], [124, 123, 120], [187, 175, 113], [255, 233, 69]];

  // A colour as a 32-bit pixel, and back.
  M.pixel = (text) => rgb(text).reduce((pixel, part, at) => pixel | (part << (8 * at)), 0xff000000) >>> 0;
  M.hex = (pixel) => "#" + [0, 8, 16].map((shift) => ((pixel >> shift) & 255).toString(16).padStart(2, "0")).join("");

  const rgb = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  function blend(stops, at) {
    const place = Math.min(0.999999, Math.max(0, at)) * (stops.length - 1);
    const low = Math.floor(place);
    return [0, 1, 2].map((part) => stops[low][part] + (stops[low + 1][part] - stops[low][part]) * (place - low));
  }
  // 256 colours as 32-bit pixels, from the lowest value to the highest.
  M.heatColours = (diverging) => {
    const ends = M.dark() ? DARK : LIGHT;
    const middle = rgb(M.colour("middle"));
    const stops = diverging ? [ends.cold, middle, ends.hot, ends.hottest] : CIVIDIS;
    const colours = new Uint32Array(256);
    for (let at = 0; at < 256; at++) {
      const share = at / 255;
      const position = !diverging ? share : share < 0.5 ? share * (2 / 3) : 1 / 3 + (share - 0.5) * (4 / 3);
      const [red, green, blue] = blend(stops, position).map(Math.round);
      colours[at] = (255 << 24) | (blue << 16) | (green << 8) | red;
    }
    return colours;
  };

  function quantile(values, share) {
    const known = Float32Array.from(values.filter((value) => Number.isFinite(value))).sort();
    return known.length ? known[Math.min(known.length - 1, Math.floor(share * known.length))] : NaN;
  }
  // Limits and place (0 to 1) of values on the scale; the middle of a diverging one is fixed: 1 for ratios, 0 for z.
  M.heatScale = (show, values) => {
    if (show === "ratio") {
      const spread = quantile(values.map((value) => Math.abs(Math.log(value))), 0.998);
      const limit = Math.min(Math.log(4), Math.max(Math.log(1.25), spread || 0));
      return { diverging: true, low: Math.exp(-limit), high: Math.exp(limit), at: (v) => 0.5 + Math.log(v) / (2 * limit) };
    }
    if (show === "z") return { diverging: true, low: -6, high: 6, at: (value) => 0.5 + value / 12 };
    let low = quantile(values, 0.005), high = quantile(values, 0.998);
    if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
    return { diverging: false, low, high, at: (value) => (value - low) / (high - low) };
  };
})();
