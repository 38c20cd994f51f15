// What is chosen in the 3D picture: axes, groups, hulls, a rank by its number or its host, a moment; and the picture as a file.
"use strict";
(function () {
  const M = window.megascope, make = M.make;

  M.SceneChoices = class extends M.SceneCamera {
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
      const left = this.data.earlier || 0, more = left ? ` (${left} earlier ${left > 1 ? "moments are" : "moment is"} not in this file)` : "";
      if (at >= last || last < 1) return `State at ${this.model.moment.moment}${more}`;
      const before = Number(BigInt(this.moments[last]) - BigInt(this.moments[at]));
      return `State at ${this.model.moment.moment}, ${M.duration(before)} before the judged look${more}`;
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
      if (this.alone) return this.data.looks[moment];
      const looks = this.looks; // of the model that it is asked for, which another may replace meanwhile
      if (!looks.has(moment)) {
        const answer = await fetch(`${this.element.dataset.source}&look=${moment}`);
        if (!answer.ok) throw new Error((await answer.json()).error);
        looks.set(moment, await answer.json());
      }
      return looks.get(moment);
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
})();
