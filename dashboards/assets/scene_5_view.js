// The 3D page's picture with its controls: camera, choice of ranks, slider, find, keys, downloads.
"use strict";
(function () {
  const M = window.megascope, make = M.make, HOME = M.ScenePaint.HOME;
  const DIMENSIONS = ["x", "y", "z"], HEIGHT = 410;
  const KEYS = [
    ["drag, arrows", "turn"], ["Shift + drag, W A S D", "move"], ["wheel, + and -", "zoom"], ["0, double click", "as at first"],
    ["click", "choose a rank or a cell"], ["N, P", "next, previous root"], ["Esc", "choose none"], ["/", "find a rank or a host"],
    ["F", "all ranks, or those that matter"], ["H", "hulls: hosts, racks, none"], ["G", "groups: of the chosen rank, all, none"], ["[ and ]", "earlier, later moment"], ["?", "this list"],
  ];

  M.Scene = class extends M.ScenePaint {
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
      this.looks.clear();
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
      const model = this.model, drawn = (this.everyone ? model.ranks : model.shown).map((rank) => model.index.get(rank));
      const { places, titles } = model.arrange(this.along, drawn);
      this.nodes = drawn.map((at, number) => ({ rank: model.ranks[at], at: places[number], of: at, culprit: model.culprits.has(model.ranks[at]) }));
      this.drawnAt = new Map(drawn.map((at, number) => [at, number]));
      this.measure(places, titles);
      this.offer();
      this.refresh();
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
      const shown = this.everyone ? "" : `Drawn: the ${this.nodes.length} of ${model.ranks.length.toLocaleString("en-US")} ranks that matter.`;
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
      const racks = this.model.hull("racks").size > 1 ? [["racks", "racks (by host name)"]] : [];
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

    // ---- choices -------------------------------------------------------------------------------------------------------
    note(changes) {
      M.noteSoon(changes);
      this.draw();
    }
    setAxis(number, axis) {
      const order = this.model.along(this.along).slice(0, 3), other = order.indexOf(axis);
      if (other >= 0) order[other] = order[number];
      order[number] = axis;
      this.along = order;
      this.arrange();
      this.note({ along: order.join(":") });
    }
    setEdges(value) {
      this.edges = this.groups.value = value;
      this.note({ axis: value === "chosen" ? null : value });
    }
    setHulls(value) {
      this.hulls = value;
      this.around.value = value || "";
      this.note({ hulls: value });
    }
    setAround(value) {
      M.change({ around: value });
    }
    choose(rank) {
      if (rank !== null && !this.model.index.has(rank)) return;
      this.chosen = rank;
      this.refresh();
      this.draw();
      M.change({ rank });
    }
    seek(text) {
      const wanted = text.trim().toLowerCase(), rank = /^(rank\s*)?(\d+)$/.exec(wanted);
      const named = (exact) => [...this.model.byHost].filter(([host]) => host && (exact ? host.toLowerCase() === wanted : host.toLowerCase().includes(wanted)));
      const hosts = !wanted || rank ? [] : named(true).concat(named(false)).slice(0, 1);
      this.hotHull = hosts.length ? hosts[0][0] : null;
      const at = rank ? this.model.index.get(Number(rank[2])) : hosts.length ? hosts[0][1][0] : undefined;
      this.found.textContent = !wanted ? "" : at === undefined ? "not found" : hosts.length ? `${hosts[0][0]}: ${hosts[0][1].length} ranks` : "";
      if (at === undefined) return;
      if (hosts.length) this.setHulls("hosts");
      this.find.blur();
      this.choose(this.model.ranks[at]);
    }
    step(direction) {
      const roots = [...this.model.culprits.keys()];
      if (!roots.length) return;
      const at = roots.indexOf(this.chosen);
      this.choose(roots[at < 0 ? (direction > 0 ? 0 : roots.length - 1) : (at + direction + roots.length) % roots.length]);
    }

    // ---- moments before the look: asked for one at a time, the newest wish last ------------------------------------------
    shownMoment() {
      return this.moments[Number(this.slider.value)];
    }
    whenText() {
      const last = this.moments.length - 1, at = Number(this.slider.value);
      if (at >= last || last < 1) return `State at ${this.model.moment.moment}`;
      const before = Number(BigInt(this.moments[last]) - BigInt(this.moments[at]));
      return `State at ${this.model.moment.moment}, ${M.duration(before)} before the judged look`;
    }
    async slide(at) {
      this.wanted = at;
      if (this.sliding) return;
      this.sliding = true;
      try {
        while (this.wanted !== null) {
          const next = this.wanted, model = this.model;
          this.wanted = null;
          const moment = next >= this.moments.length - 1 ? this.data : await this.lookAt(this.moments[next]);
          if (this.model !== model) continue;
          model.moveTo(moment);
          this.overview.moved();
          this.refresh();
          this.note({ look: moment === this.data ? null : this.moments[next] });
          this.element.dataset.look = moment === this.data ? "" : this.moments[next];
        }
      } catch (problem) {
        this.when.textContent = `That moment cannot be shown: ${problem.message}`;
      } finally {
        this.sliding = false;
      }
    }
    async lookAt(moment) {
      if (!this.looks.has(moment)) {
        const answer = await fetch(`${this.element.dataset.source}&look=${moment}`);
        if (!answer.ok) throw new Error((await answer.json()).error);
        this.looks.set(moment, await answer.json());
      }
      return this.looks.get(moment);
    }

    // ---- camera, mouse and keys ----------------------------------------------------------------------------------------
    setCamera(yaw, pitch, zoomed = this.zoomed, panX = this.panX, panY = this.panY) {
      const limit = (value, low, high) => Math.max(low, Math.min(high, value));
      Object.assign(this, { yaw, pitch: limit(pitch, -1.5, 1.5), zoomed: limit(zoomed, 0.4, 24), panX, panY });
    }
    look(...camera) {
      this.setCamera(...camera);
      const { yaw, pitch, zoomed, panX, panY } = this;
      M.noteSoon({ camera: [yaw, pitch, zoomed, panX, panY].map((value) => Number(value.toFixed(3))).join(":") });
      this.paint(this.picture.clientWidth, HEIGHT);
    }
    nodeAt(event) {
      const [px, py] = M.place(event, this.canvas);
      let best = -1, distance = 14;
      this.places.forEach(([x, y, depth], at) => {
        const near = Math.hypot(px - x, py - y), away = near + depth * 0.5 - (this.nodes[at].culprit ? 4 : 0);
        if (near < 14 && away < distance) [best, distance] = [at, away];
      });
      return best;
    }
    setHovered(rank) {
      if (rank === this.hovered) return;
      this.hovered = rank;
      if (this.ready()) this.paint(this.picture.clientWidth, HEIGHT);
    }
    hover(event) {
      if (!this.ready() || !this.places || this.dragging) return;
      const at = this.nodeAt(event), rank = at < 0 ? null : this.nodes[at].rank;
      this.setHovered(rank);
      if (rank === null) return M.tipOff();
      const culprit = this.model.culprits.get(rank), told = this.model.isTold(rank);
      M.tip(event, `rank ${rank}: ${culprit ? `at the root, ${culprit.cause}; ` : ""}${this.model.word(rank)}`, M.rankRows(this.model, rank), told ? "Click: details and its timeline" : "Click: its operations and waits");
    }
    press(event) {
      if (event.button !== 0 || !this.ready()) return;
      const start = [event.clientX, event.clientY], from = { yaw: this.yaw, pitch: this.pitch, panX: this.panX, panY: this.panY };
      const move = (next) => {
        const dx = next.clientX - start[0], dy = next.clientY - start[1];
        if (!this.dragging && Math.hypot(dx, dy) < 4) return;
        this.dragging = true;
        M.tipOff();
        if (next.shiftKey) this.look(this.yaw, this.pitch, this.zoomed, from.panX + dx, from.panY + dy);
        else this.look(from.yaw + dx * 0.008, from.pitch + dy * 0.008);
      };
      const release = (last) => {
        window.removeEventListener("mousemove", move);
        window.removeEventListener("mouseup", release);
        const at = this.dragging ? -1 : this.nodeAt(last);
        this.dragging = false;
        if (at >= 0) this.choose(this.nodes[at].rank);
      };
      window.addEventListener("mousemove", move);
      window.addEventListener("mouseup", release);
    }
    wheel(event) {
      if (!this.ready()) return;
      event.preventDefault();
      const [px, py] = M.place(event, this.canvas), before = this.zoomed;
      this.setCamera(this.yaw, this.pitch, this.zoomed * (event.deltaY > 0 ? 0.87 : 1.15));
      // What is under the mouse stays there.
      const by = this.zoomed / before, keep = (at, mid, pan) => pan + (1 - by) * (at - mid);
      this.look(this.yaw, this.pitch, this.zoomed, keep(px, this.midX, this.panX), keep(py, this.midY, this.panY));
    }
    reset() {
      Object.assign(this, HOME);
      this.note({ camera: null });
    }
    key(event) {
      if (!this.ready() || event.ctrlKey || event.metaKey || event.altKey || !this.element.isConnected) return;
      if (event.target.matches && event.target.matches("input:not([type=range]), textarea, select")) {
        if (event.key === "Escape") event.target.blur();
        return;
      }
      const turn = (yaw, pitch) => this.look(this.yaw + yaw, this.pitch + pitch);
      const move = (x, y) => this.look(this.yaw, this.pitch, this.zoomed, this.panX + x, this.panY + y);
      const zoom = (by) => this.look(this.yaw, this.pitch, this.zoomed * by);
      const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
      const slide = (by) => this.slide((this.slider.value = Math.max(0, Math.min(this.moments.length - 1, Number(this.slider.value) + by))));
      const keys = {
        ArrowLeft: () => turn(-0.1, 0), ArrowRight: () => turn(0.1, 0), ArrowUp: () => turn(0, -0.1), ArrowDown: () => turn(0, 0.1),
        a: () => move(40, 0), d: () => move(-40, 0), w: () => move(0, 40), s: () => move(0, -40),
        "+": () => zoom(1.15), "=": () => zoom(1.15), "-": () => zoom(0.87), 0: () => this.reset(), Home: () => this.reset(),
        n: () => this.step(1), p: () => this.step(-1), Escape: () => (this.keys.open ? (this.keys.open = false) : this.chosen !== null && this.choose(null)),
        "/": () => this.find.focus(), "?": () => (this.keys.open = !this.keys.open), f: () => this.ranks.options.length > 1 && this.setAround(this.everyone ? "involved" : "all"),
        h: () => this.setHulls(next([...this.around.options].map((option) => option.value), this.hulls || "") || null),
        g: () => this.setEdges(next(["chosen", "all", "none"], this.edges)), "[": () => slide(-1), "]": () => slide(1),
      };
      if (!keys[event.key] || (event.target === this.slider && event.key.startsWith("Arrow"))) return;
      event.preventDefault();
      keys[event.key]();
    }

    // ---- the picture as a file: the verdict above it ------------------------------------------------------------------------
    png() {
      const scale = this.canvas.width / this.canvas.clientWidth, file = make("canvas", { width: this.canvas.width, height: this.canvas.height + 64 * scale });
      const context = file.getContext("2d");
      context.fillStyle = M.colour("surface");
      context.fillRect(0, 0, file.width, file.height);
      context.drawImage(this.canvas, 0, 64 * scale);
      context.scale(scale, scale);
      context.fillStyle = M.colour("ink");
      context.font = "bold 14px " + M.colour("font");
      context.fillText(this.model.verdict ? this.model.verdict.sentence : "Not judged", 12, 24, this.canvas.clientWidth - 24);
      context.font = "12px " + M.colour("font");
      context.fillStyle = M.colour("quiet");
      context.fillText(`${this.data.run || ""}, attempt ${this.data.attempt ?? ""}. ${this.whenText()}. ${this.legend.innerText.replaceAll("\n", "  ")}`, 12, 46, this.canvas.clientWidth - 24);
      make("a", { href: file.toDataURL("image/png"), download: `hang-${this.data.run || "job"}-${this.data.attempt ?? 0}.png` }).click();
    }
  };
  M.register("scene", (element) => new M.Scene(element));
})();
