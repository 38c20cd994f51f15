// The 3D page: the picture with its lists, slider and panels, and what of a model is drawn.
"use strict";
(function () {
  const M = window.megascope, make = M.make, HOME = M.ScenePaint.HOME;
  const DIMENSIONS = ["x", "y", "z"], HEIGHT = M.SceneCamera.HEIGHT;
  const KEYS = [
    ["drag, arrows", "turn"], ["Shift + drag, W A S D", "move"], ["wheel, + and -", "zoom"], ["0, double click", "as at first"],
    ["click", "choose a rank or a cell"], ["N, P", "next, previous root"], ["Esc", "choose none"], ["/", "find a rank or a host"],
    ["F", "all ranks, or those that matter"], ["H", "hulls: hosts, racks, none"], ["G", "groups: of the chosen rank, all, none"], ["[ and ]", "earlier, later moment"], ["?", "this list"],
  ];

  M.Scene = class extends M.SceneChoices {
    constructor(element, alone = false) {
      super();
      Object.assign(this, HOME, { element, alone, text: true, hovered: null, chosen: null, edges: "chosen", hulls: null, along: [], looks: new Map() });
      this.build();
      this.canvas.addEventListener("mousemove", (event) => this.hover(event));
      this.canvas.addEventListener("mouseleave", () => this.setHovered(null));
      this.canvas.addEventListener("mousedown", (event) => this.press(event));
      this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
      this.canvas.addEventListener("dblclick", () => this.reset());
      this.onKey = (event) => this.key(event);
      document.addEventListener("keydown", this.onKey);
    }
    end() {
      document.removeEventListener("keydown", this.onKey);
    }
    build() {
      const list = (name, label, act) => {
        this[name] = make("select", { id: `scene-${name}`, onchange: (event) => act(event.target.value) });
        return make("label", {}, label, this[name]);
      };
      this.legend = make("div", { className: "legend", id: "scene-legend" });
      this.find = make("input", { type: "text", id: "scene-find", placeholder: "rank or host (/)", autocomplete: "off", onkeydown: (event) => void (event.key === "Enter" && this.seek(event.target.value)) });
      this.found = make("span", { className: "hint", id: "scene-found" });
      this.keys = make("details", { id: "keys" }, make("summary", {}, "Keys (?)"), make("ul", {}, ...KEYS.map(([key, text]) => make("li", {}, `${key}: ${text}`))));
      const lists = [
        ...DIMENSIONS.map((name, number) => list(name, name, (axis) => this.setAxis(number, axis))),
        list("groups", "groups (g)", (value) => this.setEdges(value)),
        list("around", "hulls (h)", (value) => this.setHulls(value || null)),
        list("ranks", "ranks (f)", (value) => this.setAround(value)),
      ];
      const png = make("button", { type: "button", id: "scene-png", title: "The picture with its verdict", onclick: () => this.png() }, "PNG");
      this.page = make("a", { id: "scene-html", download: "", title: "This picture as one file that opens without a server" }, "HTML");
      this.bar = make("div", { className: "controls scene-bar" }, ...lists, make("label", {}, "find", this.find), this.found, make("span", { className: "grow" }), png, this.alone ? null : this.page, this.keys);
      this.slider = make("input", { type: "range", id: "scene-moment", min: 0, step: 1, "ariaLabel": "moment", oninput: () => this.slide(Number(this.slider.value)) });
      this.when = make("span", { id: "scene-when" });
      this.judge = make("button", { type: "button", id: "scene-judge", hidden: true, onclick: () => M.change({ moment: this.shownMoment(), look: null }) }, "Judge this moment");
      this.picture = make("div", { className: "scene-picture" });
      this.canvas = M.canvas(this.picture, "Ranks at their place in the mesh; the text beside it names who is at the root");
      this.picture.append(make("div", { className: "scene-time" }, this.slider, this.when, this.judge));
      this.title = make("p", { className: "hint" });
      const glance = make("div", { className: "scene-glance" }, this.title), panel = make("div", { id: "scene-panel" });
      this.overview = new M.SceneOverview(glance, (rank) => this.choose(rank));
      this.panel = new M.ScenePanel(panel, this);
      this.side = make("div", { className: "side" }, glance, panel);
      const below = make("div", { className: "scene-below" });
      this.listing = new M.SceneTable(below, this);
      this.element.append(this.bar, this.legend, make("div", { className: "split scene-split" }, this.picture, this.side), below);
    }
    ready() {
      return Boolean(this.model);
    }
    show(data) {
      this.model = new M.SceneModel(data);
      this.data = data;
      this.looks = new Map();
      this.moments = data.moments || [];
      this.slider.max = Math.max(0, this.moments.length - 1);
      this.slider.value = this.slider.max;
      this.slider.parentElement.hidden = this.moments.length < 2;
      this.overview.show(this.model);
      const query = new URLSearchParams({ run: data.run, attempt: data.attempt });
      if (M.parameter("moment")) query.set("moment", M.parameter("moment"));
      this.page.href = "/export/hang.html?" + query;
      this.followAddress();
    }
    // ---- what the address says ---------------------------------------------------------------------------------------
    followAddress() {
      const rank = M.parameter("rank"), parts = (M.parameter("camera") || "").split(":").map(Number);
      this.chosen = rank === null || rank === "" ? null : Number(rank);
      this.edges = M.parameter("axis") || "chosen";
      this.hulls = M.parameter("hulls");
      this.along = (M.parameter("along") || "").split(":").filter(Boolean);
      this.everyone = !this.data.shown || (this.alone ? M.parameter("around") || this.data.around : this.data.around) === "all";
      Object.assign(this, HOME);
      if (parts.length === 5 && parts.every(Number.isFinite)) this.setCamera(...parts);
      const look = this.moments.indexOf(M.parameter("look") || "");
      if (look >= 0 && look !== Number(this.slider.value)) this.slide((this.slider.value = look));
      this.arrange();
    }
    arrange() {
      const model = this.model, drawn = this.drawnRanks().map((rank) => model.index.get(rank));
      const { places, titles } = model.arrange(this.along, drawn);
      this.nodes = drawn.map((at, number) => ({ rank: model.ranks[at], at: places[number], of: at, culprit: model.culprits.has(model.ranks[at]) }));
      this.drawnAt = new Map(drawn.map((at, number) => [at, number]));
      this.measure(places, titles);
      this.offer();
      this.refresh();
    }
    // Those that matter, and a chosen one that is not among them with its neighbours on each axis.
    drawnRanks() {
      const model = this.model;
      if (this.everyone) return model.ranks;
      if (this.chosen === null || model.isTold(this.chosen) || !model.index.has(this.chosen)) return model.shown;
      return [...new Set([...model.shown, ...model.near(this.chosen)])].sort((one, other) => one - other);
    }
    nodeOf(rank) {
      return rank === null ? undefined : this.drawnAt.get(this.model.index.get(rank));
    }
    // States, panels and table after a choice or another moment; `draw` only paints.
    refresh() {
      const model = this.model;
      for (const node of this.nodes) Object.assign(node, { doing: model.doing[node.of], waits: model.waits[node.of] });
      const counts = {};
      for (const doing of model.doing) counts[doing] = (counts[doing] || 0) + 1;
      const entries = Object.entries(M.DOING).filter(([doing]) => counts[doing]).map(([doing, [sign, text]]) => {
        const mark = make("span", {}, sign + " ");
        mark.style.color = `var(--${M.LOOKS[doing][0]})`;
        return make("span", { data: { doing } }, mark, `${text}: ${counts[doing].toLocaleString("en-US")}`);
      });
      const root = make("span", {}, "◎ ");
      root.style.color = "var(--fault)";
      if (model.culprits.size) entries.unshift(make("span", {}, root, `at the root: ${model.culprits.size}`));
      const shown = this.everyone ? "" : `Drawn: the ${this.nodes.length} of ${model.ranks.length.toLocaleString("en-US")} ranks${this.nodes.length > model.shown.length ? " that matter or are near the chosen one" : " that matter"}.`;
      this.legend.replaceChildren(...entries, model.toward.size ? make("span", {}, "→ waits for, towards the root") : "", make("span", {}, shown));
      this.panel.draw(model, this.chosen);
      this.listing.draw(model, this.chosen);
      this.when.textContent = this.whenText();
      this.judge.hidden = this.alone || Number(this.slider.value) === Number(this.slider.max);
    }
    offer() {
      const fill = (select, options, value) => {
        select.replaceChildren(...options.map(([key, text]) => make("option", { value: key, selected: key === value }, text)));
        select.parentElement.hidden = options.length < 2;
      };
      const order = this.model.along(this.along);
      DIMENSIONS.forEach((name, number) => fill(this[name], order.map((axis) => [axis, axis]), order[number]));
      const kinds = [...new Set([...this.model.groups.values()].map((group) => group.kind))];
      fill(this.groups, [["chosen", "of the chosen rank"], ["none", "none"], ["all", "all"], ...kinds.map((kind) => [kind, kind])], this.edges);
      const racks = this.model.hull("racks").size > 1 ? [["racks", this.data.racks ? "racks" : "racks (by host name)"]] : [];
      fill(this.around, [["", "none"], ["hosts", "hosts"], ...racks], this.hulls || "");
      const part = this.model.culprits.size && this.model.ranks.length > 16;
      fill(this.ranks, part && (!this.alone || this.data.shown) ? [["involved", "those that matter"], ["all", "all"]] : [["all", "all"]], this.everyone ? "all" : "involved");
    }
    draw() {
      const width = this.picture.clientWidth, inner = this.side.clientWidth;
      if (!width || !inner) return;
      this.paint(width, HEIGHT);
      this.overview.draw(inner, this.chosen);
      this.title.textContent = this.overview.text();
    }
  };
  M.register("scene", (element) => new M.Scene(element));
})();
