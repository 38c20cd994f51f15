// What all widgets share: mounting, loading, the view in the address, the age of the data. Loaded first (assets load
// by name).
"use strict";
(function () {
  const M = (window.megascope = { instances: new Map() });
  const kinds = {};

  // ---- widgets: elements with data-widget="KIND" and data-source="URL" -------------------------------------------
  M.register = (kind, create) => {
    kinds[kind] = create;
    scan();
  };

  class Holder {
    constructor(element, create) {
      this.element = element;
      this.kind = element.dataset.widget;
      this.message = document.createElement("div");
      this.message.className = "widget-message";
      this.widget = create(element);
      element.appendChild(this.message);
      this.resizing = new ResizeObserver(() => this.redraw());
      this.resizing.observe(element);
      this.sync();
    }
    // Dash makes a new element whenever a page is drawn again: the canvas moves into it, so that nothing flickers.
    moveTo(element) {
      this.resizing.disconnect();
      element.append(...this.element.childNodes);
      this.element = this.widget.element = element;
      if (this.painted) element.dataset.painted = this.painted;
      if (this.failed) element.dataset.failed = this.failed;
      this.resizing.observe(element);
      const known = element.dataset.source === this.source;
      this.sync();
      if (!known || !this.widget.ready()) return;
      if (this.widget.followAddress) this.widget.followAddress();
      this.redraw();
    }
    sync() {
      const { source, marks } = this.element.dataset;
      if (this.widget.mark && marks !== this.marks) this.widget.mark(JSON.parse((this.marks = marks) || "[]"));
      if (!source || source === this.source) return;
      this.source = source;
      // Only newer data are wanted, and the last answer is still on its way: a slow question is not asked twice.
      if (this.asked && sameQuestion(source, this.asked)) return;
      this.failures = 0;
      this.load(source);
    }
    async load(source) {
      clearTimeout(this.retry);
      if (this.abort) this.abort.abort();
      this.abort = new AbortController();
      this.asked = source;
      if (!this.element.dataset.painted) this.say("Loading ...");
      try {
        const early = M.early && !this.painted ? await M.early(source) : null;
        const answer = early || (await fetch(source, { signal: this.abort.signal }));
        if (!answer.ok) throw Object.assign(new Error(await sentenceOf(answer)), { again: answer.status >= 500 });
        const payload = this.widget.text ? await answer.json() : M.unpack(await answer.arrayBuffer());
        if (source !== this.asked) return;
        this.say("");
        this.fail(null);
        this.widget.show(payload);
        this.redraw();
        this.element.dataset.painted = this.painted = source;
        this.failures = 0;
      } catch (problem) {
        if (problem.name === "AbortError" || source !== this.asked) return;
        const lost = problem instanceof TypeError;
        this.say(lost ? "The server does not answer. It may have ended: start `megascope serve` again." : problem.message);
        this.fail(!this.painted || sameQuestion(source, this.painted) ? "newer" : "other");
        if (lost || problem.again) this.tryAgain(source);
      }
      this.asked = null;
      if (source !== this.source) this.load(this.source);
    }
    // Behind the message an older picture of the same question stays, dimmed; that of another one goes.
    fail(how) {
      this.failed = how;
      if (how) this.element.dataset.failed = how;
      else delete this.element.dataset.failed;
      if (how && M.tipOff) M.tipOff();
    }
    tryAgain(source) {
      this.failures = (this.failures || 0) + 1;
      const wait = Math.min(30, 2 ** this.failures) * 1000;
      this.retry = setTimeout(() => source === this.source && !this.asked && this.load(source), wait);
    }
    redraw() {
      if (this.widget.ready() && this.element.clientWidth > 0) this.widget.draw();
    }
    say(text) {
      this.message.textContent = text;
      this.message.hidden = !text;
    }
    end() {
      this.resizing.disconnect();
      clearTimeout(this.retry);
      if (this.abort) this.abort.abort();
      if (M.tipOff) M.tipOff();
      if (this.widget.end) this.widget.end();
    }
  }

  // Whether two sources differ at most in the version of the data that they are of.
  const sameQuestion = (one, other) => versionless(one) === versionless(other);
  const versionless = (source) => source.replace(/&(v|verdict)=[^&]*/g, "");

  async function sentenceOf(answer) {
    const text = await answer.text();
    try {
      return JSON.parse(text).error;
    } catch {
      return `The server answered ${answer.status}. Its log says why.`;
    }
  }

  function scan() {
    const here = document.querySelector("header nav a.here");
    const title = here ? `${here.textContent} - megascope` : "megascope";
    if (document.title !== title) document.title = title;
    const free = [...M.instances].filter(([element]) => !element.isConnected);
    for (const [element] of free) M.instances.delete(element);
    for (const element of document.querySelectorAll("[data-widget]")) {
      const holder = M.instances.get(element), kind = element.dataset.widget;
      if (holder) holder.sync();
      else if (kinds[kind]) {
        const at = free.findIndex(([, old]) => old.kind === kind);
        const [[, moved] = []] = at < 0 ? [] : free.splice(at, 1);
        M.instances.set(element, moved || new Holder(element, kinds[kind]));
        if (moved) moved.moveTo(element);
      }
    }
    for (const [, holder] of free) holder.end();
  }
  new MutationObserver(scan).observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-source", "data-marks"],
  });
  M.widget = (kind) => {
    for (const [element, holder] of M.instances) if (element.dataset.widget === kind) return holder.widget;
    return null;
  };

  // ---- binary payload (dashboards/binary.py) -----------------------------------------------------------------------
  const TYPES = { f4: Float32Array, f8: Float64Array, i4: Int32Array, i2: Int16Array, u2: Uint16Array, u1: Uint8Array };
  M.unpack = (buffer) => {
    const size = new DataView(buffer).getUint32(0, true);
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
    const arrays = {};
    for (const [name, entry] of Object.entries(header.arrays)) {
      arrays[name] = new TYPES[entry.type](buffer, 4 + size + entry.offset, entry.count);
    }
    return { meta: header.meta, arrays };
  };

  // ---- the view in the URL -----------------------------------------------------------------------------------------
  // What is changed many times a second (zoom, scroll, camera) is written a little later: browsers limit how often.
  let later = {}, timer = 0;
  function withParameters(changes) {
    const query = new URLSearchParams(window.location.search);
    for (const [name, value] of Object.entries({ ...later, ...changes })) {
      if (value === null || value === "") query.delete(name);
      else query.set(name, value);
    }
    const text = query.toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
    return window.location.pathname + (text ? "?" + text : "");
  }
  M.note = (changes) => { // no reload
    window.history.replaceState({}, "", withParameters(changes));
    forget();
  };
  M.noteSoon = (changes) => {
    Object.assign(later, changes);
    clearTimeout(timer);
    timer = setTimeout(() => M.note({}), 200);
  };
  const forget = () => {
    later = {};
    clearTimeout(timer);
  };
  M.go = (url) => {
    if (Object.keys(later).length) M.note({});
    window.history.pushState({}, "", url);
    M.announce();
  };
  M.announce = () => window.dispatchEvent(new CustomEvent("_dashprivate_pushstate")); // what dcc.Location listens to
  for (const moved of ["popstate", "_dashprivate_pushstate"]) window.addEventListener(moved, () => {
    forget();
    document.body.classList.add("busy");
  });
  M.change = (changes) => M.go(withParameters(changes));
  M.parameter = (name) => (name in later ? later[name] : new URLSearchParams(window.location.search).get(name));

  function readForm(form) {
    const changes = {};
    for (const name of (form.dataset.clears || "").split(",")) if (name) changes[name] = null;
    for (const field of form.querySelectorAll("select[name], input[name], textarea[name]")) {
      changes[field.name] = field.value.trim();
    }
    return changes;
  }
  document.addEventListener("change", (event) => {
    const form = event.target.closest && event.target.closest("form[data-view]");
    if (form && event.target.name && !form.dataset.manual) M.change(readForm(form));
  });
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-view]");
    if (!form) return;
    event.preventDefault();
    const url = withParameters(readForm(form));
    if (url === window.location.pathname + window.location.search) document.getElementById("again").click();
    else M.go(url);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.ctrlKey || !event.target.matches("textarea")) return;
    event.target.form.requestSubmit();
  });
  document.addEventListener("click", (event) => {
    const target = event.target.closest && event.target.closest("[data-action]");
    if (target) document.dispatchEvent(new CustomEvent("megascope-action", { detail: target.dataset.action }));
  });
  M.onAction = (name, handler) => {
    const listener = (event) => event.detail === name && handler();
    document.addEventListener("megascope-action", listener);
    return () => document.removeEventListener("megascope-action", listener);
  };

  // ---- age of the data: counts on between answers, and says when the server is silent -----------------------------
  const age = (seconds) => {
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
  };
  const received = new WeakMap();
  setInterval(() => {
    for (const element of document.querySelectorAll("[data-age]")) {
      let known = received.get(element);
      if (!known || known.text !== element.dataset.age) {
        received.set(element, (known = { text: element.dataset.age, at: performance.now() }));
      }
      const since = element.dataset.age.split("|")[0];
      if (!since) continue;
      const silent = (performance.now() - known.at) / 1000;
      const paused = document.getElementById("pause").textContent !== "Pause";
      const more = paused ? ", paused" : silent > 10 ? `, no answer from the server for ${age(silent)}` : "";
      element.textContent = `data ${age(Number(since) + silent)} old (newest ${element.dataset.newest})${more}`;
    }
  }, 500);
})();
