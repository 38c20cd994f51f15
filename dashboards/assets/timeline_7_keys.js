// The timeline's keys, search and switches; registers both canvases.
"use strict";
(function () {
  const M = window.megascope;

  Object.assign(M.Timeline.prototype, {
    listen() {
      if (this.isSecond) return;
      this.onKey = (event) => this.key(event);
      this.onInput = (event) => event.target.matches && event.target.matches("#field-find") && this.search(event.target.value);
      document.addEventListener("keydown", this.onKey);
      document.addEventListener("input", this.onInput);
      const actions = {
        "timeline-reset": () => this.reset(), "timeline-next": () => this.jump(1), "timeline-previous": () => this.jump(-1),
        "timeline-run": () => this.run(), "timeline-fit": () => this.toggleFit(),
        "timeline-path": () => this.toggle("path"), "timeline-arrows": () => this.toggle("arrows"),
        "timeline-waiting": () => this.toggle("waiting"), "timeline-alone": () => M.change({ beside: null }),
        "timeline-earlier": () => this.otherSteps("step-earlier"), "timeline-later": () => this.otherSteps("step-later"),
      };
      this.off = Object.entries(actions).map(([name, act]) => M.onAction(name, () => this.ready() && act()));
    },
    deafen() {
      document.removeEventListener("keydown", this.onKey);
      document.removeEventListener("input", this.onInput);
      for (const off of this.off || []) off();
    },
    key(event) {
      if (!this.ready() || event.ctrlKey || event.metaKey || event.altKey || document.getElementById("perfetto")) return;
      const box = document.getElementById("field-find"), help = document.getElementById("keys");
      if (event.target.matches("input, textarea, select")) {
        if (event.key === "Escape") event.target.blur();
        if (event.key === "Enter" && event.target === box) {
          event.preventDefault();
          M.keepFocus(box.id);
          this.jump(event.shiftKey ? -1 : 1);
        }
        return;
      }
      const moves = {
        w: () => this.zoom(0.7), s: () => this.zoom(1.4), a: () => this.pan(-0.25), d: () => this.pan(0.25),
        ArrowLeft: () => this.pan(-0.1), ArrowRight: () => this.pan(0.1),
        ArrowUp: () => this.scrollTo(this.scroll - 60), ArrowDown: () => this.scrollTo(this.scroll + 60),
        0: () => this.reset(), Home: () => this.reset(), o: () => this.run(), f: () => this.toggleFit(),
        c: () => this.toggle("path"), x: () => this.toggle("arrows"), h: () => this.toggle("waiting"),
        "[": () => this.otherSteps("step-earlier"), "]": () => this.otherSteps("step-later"),
        n: () => this.jump(1), N: () => this.jump(-1), "/": () => box && box.focus(),
        "?": () => help.toggleAttribute("open"), Escape: () => help.removeAttribute("open"),
      };
      if (!moves[event.key]) return;
      event.preventDefault();
      moves[event.key]();
    },
    otherSteps(id) {
      const button = document.getElementById(id);
      if (button) M.change({ steps: button.dataset.steps, rank: this.model.meta.rank, t: null, since: null, until: null });
    },
    toggle(mark) {
      if (!this.hidden.delete(mark)) this.hidden.add(mark);
      M.noteSoon({ hide: [...this.hidden].join(",") || null });
      this.redrawBoth();
    },
    toggleFit() {
      this.fit = !this.fit;
      this.scroll = 0;
      M.noteSoon({ rows: this.fit ? "fit" : null, scroll: null });
      this.redrawBoth();
    },
    redrawBoth() {
      this.draw();
      const mate = this.mate();
      if (mate) mate.follow(this);
    },
    search(text, noted = true) {
      this.matches = this.model.find(text);
      this.found = text.trim() ? new Uint8Array(this.model.count) : null;
      for (const span of this.matches) this.found[span] = 1;
      if (noted || text.trim() !== this.searched) this.matched = null; // else newer data: the match stays the same span
      this.searched = text.trim();
      this.match = this.matched ? this.model.same(this.matched, this.matches) : -1;
      if (this.match >= 0) this.selected = this.matches[this.match];
      if (this.isSecond) return;
      this.tell(text);
      if (!noted) return;
      M.noteSoon({ find: text || null });
      this.draw();
      const mate = this.mate();
      if (!mate) return;
      mate.search(text, false);
      mate.draw();
    },
    tell(text) {
      const count = document.getElementById("find-count"), many = this.matches.length.toLocaleString("en-US");
      if (!count) return;
      count.textContent = !text.trim() ? "" : this.match < 0 ? `${many} found` : `${this.match + 1} of ${many}`;
    },
    jump(direction) {
      if (!this.matches || !this.matches.length) return;
      const from = this.match < 0 && direction < 0 ? 0 : this.match;
      this.match = (from + direction + this.matches.length) % this.matches.length;
      const span = this.matches[this.match];
      this.matched = this.model.identity(span);
      const lane = this.model.lanes[this.model.arrays.lane[span]];
      this.scroll = Math.max(0, (lane.top || 0) - 40);
      this.show1(span);
      this.noteScroll();
      this.tell(M.parameter("find") || "found");
    },
  });
  // The page may be drawn again while somebody types: the new field with that id is where they go on.
  M.keepFocus = (id) => {
    const field = document.getElementById(id), until = Date.now() + 3000;
    if (!field) return;
    const watch = setInterval(() => {
      const now = document.getElementById(id), active = document.activeElement;
      if (Date.now() > until || (active && active !== document.body && active !== now && active !== field)) return clearInterval(watch);
      if (field.isConnected) return field === active ? null : clearInterval(watch); // left by whoever typed
      if (!now) return;
      clearInterval(watch);
      now.focus();
      now.setSelectionRange(now.value.length, now.value.length);
    }, 20);
  };

  M.register("timeline", (element) => new M.Timeline(element));
  M.register("timeline-beside", (element) => new M.Timeline(element, true));
})();
