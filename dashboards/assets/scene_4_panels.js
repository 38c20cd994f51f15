// What stands beside and below the 3D picture: the roots with their evidence, the chosen rank, operations in flight.
"use strict";
(function () {
  const M = window.megascope;
  const MOST_ROWS = 200;
  const JUDGING = "Who holds the job up is being worked out. Until then the picture shows what each rank is in; then those that matter.";
  const ENDED = new Set(["dead", "exception"]); // roots that have no process to take a stack of

  M.make = (tag, properties = {}, ...children) => {
    const { data = {}, ...rest } = properties, node = Object.assign(document.createElement(tag), rest);
    Object.assign(node.dataset, data);
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return node;
  };
  const make = M.make;
  const age = (seconds) => (seconds === null || seconds === undefined ? "" : seconds < 120 ? `${seconds.toFixed(1)} s` : M.duration(seconds * 1e9));
  const some = (ranks, many = ranks.length, most = 12) => ranks.slice(0, most).join(", ") + (many > most ? ` and ${many - most} more` : "");

  // ---- who waits for whom, in words: the tooltip's and the panel's ------------------------------------------------------
  M.flowOf = (model, rank) => {
    const waits = model.waitsFor(rank), waiters = model.waitersOf(rank);
    return [
      ["waits for", waits.length ? `rank ${some(waits)}` : model.isTold(rank) ? "no rank" : ""],
      ["waited for by", waiters.length ? `rank ${some(waiters, model.manyWaiters(rank))}` : model.isTold(rank) ? "no rank" : ""],
    ];
  };
  M.rankRows = (model, rank) => {
    const at = model.index.get(rank);
    const flights = (model.flights.get(rank) || []).map((flight, depth) => [
      "  ".repeat(depth) + "in " + flight.segment,
      [flight.sequence !== null ? `no. ${flight.sequence}` : "", flight.group ? `of ${model.groupText(flight.group)}` : "", flight.peer !== null ? `with rank ${flight.peer}` : "", flight.age !== null ? `for ${age(flight.age)}` : ""].filter(Boolean).join(" "),
    ]);
    return [...flights, ...M.flowOf(model, rank), ["step", model.steps.get(rank)], ["process", model.processes.get(rank)], ["host", model.hosts[at]], ["place", model.place(at)]];
  };

  M.ScenePanel = class {
    constructor(parent, scene) {
      this.parent = parent;
      this.scene = scene;
    }
    draw(model, chosen) {
      this.model = model;
      this.parent.replaceChildren(...this.chosenRank(chosen), ...this.roots(), ...this.notes());
    }
    chosenRank(rank) {
      const model = this.model;
      if (rank === null || !model.index.has(rank)) return [];
      const flights = model.flights.get(rank) || [], at = model.index.get(rank);
      const rows = flights.map((flight, depth) => make("tr", {}, make("td", { title: flight.segment }, "  ".repeat(depth) + flight.segment), make("td", { className: "number" }, flight.sequence ?? "–"), make("td", { className: "number" }, age(flight.age) || "–")));
      const head = make("tr", {}, make("th", {}, "in flight, outermost first"), make("th", { className: "number" }, "no."), make("th", { className: "number" }, "for"));
      const [[, waits], [, waiters]] = M.flowOf(model, rank);
      const stack = model.stacks[rank];
      return [
        make("h2", {}, `Rank ${rank}: ${model.word(rank)}`, " ", make("button", { className: "quiet", type: "button", title: "Choose no rank (Esc)", onclick: () => this.scene.choose(null) }, "×")),
        make("p", { className: "hint" }, [model.hosts[at], model.place(at), model.steps.get(rank) !== undefined && model.steps.get(rank) !== null ? `step ${model.steps.get(rank)}` : "", model.processes.get(rank) ? `process ${model.processes.get(rank)}` : ""].filter(Boolean).join(" · ")),
        flights.length ? make("table", { id: "chosen-flight" }, make("thead", {}, head), make("tbody", {}, ...rows)) : make("p", { className: "hint" }, model.isTold(rank) ? "Nothing is in flight." : this.scene.alone ? "What it has in flight, and whom it waits for, is not in this file: that is told of the ranks that matter." : "Its details are loaded."),
        waits ? make("p", { className: "flow" }, `It waits for ${waits}.`) : null, // of a rank that is not told it is not known
        waiters ? make("p", { className: "flow" }, waiters !== "no rank" ? `For it wait: ${waiters}.` : "No rank waits for it.") : null,
        this.timelineLink(rank),
        stack ? make("details", { className: "stack-of", id: "stack-chosen" }, make("summary", {}, "Python stack"), make("pre", { className: "stack" }, stack)) : make("p", { className: "hint no-stack" }, this.noStack(rank)),
      ].filter(Boolean);
    }
    roots() {
      const verdict = this.model.verdict;
      if (!verdict) return this.model.data.judging ? [make("p", { className: "hint", id: "judging" }, JUDGING)] : [];
      if (!verdict.culprits.length) return [make("p", { className: "hint", id: "no-root" }, noRoot(verdict))];
      const more = verdict.more ? [make("p", { className: "hint", id: "more-roots" }, `And ${verdict.more} more culprit${verdict.more > 1 ? "s" : ""}: megascope hang --json lists them.`)] : [];
      return verdict.culprits.flatMap((culprit, number) => {
        const rank = culprit.ranks[0];
        const several = culprit.ranks.length > 1 ? culprit.ranks.slice(0, 12) : [];
        return [
          make("h2", { className: "root", data: { kind: culprit.kind } }, make("button", { type: "button", className: "chip", title: "Show it in the picture", onclick: () => this.scene.choose(rank) }, culprit.cause), " ", culprit.title),
          make("ul", { className: "plain" }, ...culprit.evidence.map((text) => make("li", {}, text))),
          several.length ? make("p", { className: "chips" }, ...several.map((one) => make("button", { type: "button", onclick: () => this.scene.choose(one) }, `rank ${one}`))) : null,
          number < 3 ? this.timelineLink(rank, culprit.step) : null,
          this.rootStack(culprit, rank),
          culprit.next.length ? make("details", { className: "next", id: `next-${number}`, open: number === 0 }, make("summary", {}, "What to do next"), make("ol", {}, ...culprit.next.map((text) => make("li", {}, text)))) : null,
        ].filter(Boolean);
      }).concat(more);
    }
    rootStack(culprit, rank) {
      const stack = this.model.stacks[rank];
      if (stack) return make("details", { className: "stack-of", id: `stack-${rank}` }, make("summary", {}, `Python stack of rank ${rank}`), make("pre", { className: "stack" }, stack));
      return ENDED.has(culprit.kind) || rank === undefined ? null : make("p", { className: "hint no-stack" }, this.noStack(rank));
    }
    noStack(rank) {
      if (this.scene.alone) return `No Python stack of rank ${rank} is in this file.`;
      return `No Python stack of rank ${rank} was taken: on a stall agents take them of jobs that run with MEGASCOPE_STACKS=1, or where py-spy is installed.`;
    }
    notes() {
      const notes = (this.model.verdict && this.model.verdict.notes) || [];
      return notes.length ? [make("h2", {}, "What the data cannot tell"), make("ul", { className: "plain" }, ...notes.map((note) => make("li", {}, note)))] : [];
    }
    // The last seconds of a rank, beside those that it waits for and those that wait for it.
    timelineLink(rank, step = this.model.steps.get(rank)) {
      if (this.scene.alone) return null;
      const beside = [...this.model.waitsFor(rank), ...this.model.waitersOf(rank)].slice(0, 5);
      const query = new URLSearchParams({ run: this.model.data.run, attempt: this.model.data.attempt, rank });
      query.set("ranks", [rank, ...beside].join(","));
      if (step !== null && step !== undefined) query.set("steps", `${Math.max(0, step - 1)}:${step}`);
      const href = "/timeline?" + query.toString().replaceAll("%3A", ":").replaceAll("%2C", ",");
      const onclick = (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
        event.preventDefault();
        M.go(href);
      };
      return make("p", {}, make("a", { href, onclick, className: "to-timeline" }, `rank ${rank} in the timeline`), beside.length ? ` beside ${some(beside)}` : "");
    }
  };

  function noRoot(verdict) {
    if (["hang", "crashed"].includes(verdict.state)) return "No root was found: the picture shows what each rank is in.";
    if (verdict.state === "inconclusive") return "Nobody is accused: the picture shows where each rank stands, and what it was in.";
    return "The job does not hang: the picture shows where each rank stands in the mesh, and what it is in.";
  }

  // ---- operations in flight ----------------------------------------------------------------------------------------------
  const COLUMNS = [
    ["rank", "rank", (row) => row.rank], ["host", "host", (row) => row.host], ["segment", "operation", (row) => row.segment],
    ["group", "group", (row) => row.groupText], ["sequence", "no.", (row) => row.sequence], ["peer", "peer", (row) => row.peer],
    ["age", "for", (row) => row.age], ["waits", "waits for", (row) => row.lacks],
  ];
  const NUMBERS = new Set(["rank", "sequence", "peer", "age"]);

  M.SceneTable = class {
    constructor(parent, scene) {
      this.scene = scene;
      [this.key, this.up] = ["age", false];
      this.filter = make("input", { type: "text", id: "flight-filter", placeholder: "filter: operation, host, group, rank", autocomplete: "off", oninput: () => this.draw(this.model, this.chosen) });
      this.count = make("span", { className: "hint", id: "flight-count" });
      this.table = make("table", { id: "in-flight" });
      parent.append(make("div", { className: "legend" }, make("b", {}, "In flight"), this.filter, this.count), make("div", { className: "scroll flights" }, this.table));
    }
    rows(model) {
      if (this.rowsOf === model.moment) return this.known;
      const lacking = new Map(model.operations.map((operation) => [`${operation.group}|${operation.sequence}`, operation]));
      this.known = [...model.flights.values()].flat().map((flight) => {
        const operation = flight.group === null ? null : lacking.get(`${flight.group}|${flight.sequence}`);
        const lacks = operation && operation.waiting.includes(flight.rank) ? some(operation.absent, operation.lacks, 6) : "";
        return { ...flight, host: model.hosts[model.index.get(flight.rank)] || "", groupText: flight.group ? model.groupText(flight.group) : "", lacks };
      });
      this.rowsOf = model.moment;
      return this.known;
    }
    draw(model, chosen) {
      [this.model, this.chosen] = [model, chosen];
      const all = this.rows(model), wanted = this.filter.value.trim().toLowerCase();
      const found = all.filter((row) => !wanted || String(row.rank) === wanted.replace(/^rank:?\s*/, "") || [row.segment, row.host, row.groupText].some((text) => text.toLowerCase().includes(wanted)));
      const value = COLUMNS.find(([key]) => key === this.key)[2], sign = this.up ? 1 : -1;
      const compare = (one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === b) return one.rank - other.rank || one.order - other.order;
        if (a === null || a === undefined || a === "") return 1;
        if (b === null || b === undefined || b === "") return -1;
        return sign * (a < b ? -1 : 1);
      };
      // The chosen rank's come first, then what its operations hold up, then the roots', then the others.
      const own = new Set(all.filter((row) => row.rank === chosen && row.group).map((row) => `${row.group}|${row.sequence}`));
      const near = (row) => (row.rank === chosen ? 0 : own.has(`${row.group}|${row.sequence}`) ? 1 : model.culprits.has(row.rank) ? 2 : 3);
      found.sort((one, other) => near(one) - near(other) || compare(one, other));
      const head = COLUMNS.map(([key, text]) => make("th", { className: NUMBERS.has(key) ? "number" : "", onclick: () => this.sort(key), title: "Click to sort", data: { key } }, text + (key === this.key ? (this.up ? " ▲" : " ▼") : "")));
      const rows = found.slice(0, MOST_ROWS).map((row) => {
        const cells = COLUMNS.map(([key, , read]) => make("td", { className: NUMBERS.has(key) ? "number" : "" }, key === "age" ? age(row.age) || "–" : String(read(row) ?? "–")));
        const look = row.rank === chosen ? "chosen" : model.culprits.has(row.rank) ? "root" : "";
        return make("tr", { className: look, onclick: () => this.scene.choose(row.rank), data: { rank: row.rank } }, ...cells);
      });
      this.table.replaceChildren(make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
      const of = model.data.shown ? ` of the ${model.shown.length} shown ranks` : "";
      if (!model.shown.length && this.scene.alone) this.count.textContent = "Of so many ranks this file tells none: nobody is to blame.";
      else if (!model.shown.length) this.count.textContent = "Of so many ranks only a chosen one and its neighbours are told: click one.";
      else this.count.textContent = `${found.length.toLocaleString("en-US")} operations${of}` + (found.length > MOST_ROWS ? `, the first ${MOST_ROWS} listed` : "");
    }
    sort(key) {
      [this.key, this.up] = [key, key === this.key ? !this.up : key !== "age"];
      this.draw(this.model, this.chosen);
    }
  };
})();
