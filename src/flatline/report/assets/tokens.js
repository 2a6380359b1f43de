// The token view: colours, numbers of a token, the worst disagreement. All text goes in as text.
"use strict";
(() => {
  const EDGES = {
    difference: [1e-4, 0.01, 0.1, 1, 3],
    logprob: [0.05, 0.5, 1, 3, 7],
    advantage: [0.01, 0.5, 1.5],
  };
  const LOGPROBS = ["sampler", "trainer", "old", "reference"];
  const LABELS = {
    difference: "sampler − trainer", sampler: "sampler", trainer: "trainer", old: "old",
    reference: "reference", advantage: "advantage",
  };

  const level = (value, edges) => edges.filter((edge) => Math.abs(value) >= edge).length;
  const shown = (value) =>
    value === null || value === undefined ? "–"
    : value !== 0 && Math.abs(value) < 1e-3 ? value.toExponential(1) : value.toFixed(4);

  function colourClass(mode, data, at) {
    if (mode === "advantage") {
      const trained = data.numbers.trained ? data.numbers.trained[at] : 1;
      const size = trained ? level(data.advantage, EDGES.advantage) : 0;
      return size ? (data.advantage > 0 ? "p" : "n") + size : "";
    }
    const value = data.numbers[mode] ? data.numbers[mode][at] : null;
    if (value === null || value === undefined) return "";
    return "q" + level(value, LOGPROBS.includes(mode) ? EDGES.logprob : EDGES.difference);
  }

  function legendOf(mode) {
    if (mode === "author") return [["a1", "model"], ["a2", "tool"], ["a3", "template"], ["a255", "unknown"]];
    if (mode === "trained") return [["tr", "trained"], ["", "not trained"]];
    if (mode === "attended") return [["", "seen"], ["hid", "hidden from the trainer"]];
    if (mode === "advantage") {
      return [["n3", "≤ −1.5"], ["n2", "≤ −0.5"], ["n1", "< 0"], ["p1", "> 0"], ["p2", "≥ 0.5"], ["p3", "≥ 1.5"]];
    }
    const edges = LOGPROBS.includes(mode) ? EDGES.logprob : EDGES.difference;
    const sign = LOGPROBS.includes(mode) ? "≤ −" : "≥ ";
    return edges.map((edge, i) => ["q" + (i + 1), sign + edge]);
  }

  class TokenView {
    constructor(section) {
      this.section = section;
      this.data = JSON.parse(document.getElementById(section.dataset.block).textContent);
      this.box = section.querySelector(".tokens");
      this.spans = Array.from(this.box.children);
      this.select = section.querySelector(".mode");
      this.inspector = section.querySelector(".inspector");
      this.address = section.closest("[data-address]")?.dataset.address;
      this.at = null;
      this.rank = -1;
      this.listen();
      const asked = new URLSearchParams(this.address ? location.search : "");
      const modes = Array.from(this.select.options, (option) => option.value);
      this.colour(modes.includes(asked.get("colour")) ? asked.get("colour") : modes[0]);
      if (asked.has("token")) this.choose(Number(asked.get("token")) - this.data.first, true);
    }

    listen() {
      this.select.addEventListener("change", () => { this.colour(this.select.value); this.remember(); });
      this.section.querySelector(".worst").addEventListener("click", () => this.worst());
      const pointed = (event) => this.spans.indexOf(event.target.closest(".t"));
      this.box.addEventListener("mouseover", (event) => {
        if (event.target.closest(".t")) this.describe(pointed(event));
      });
      this.box.addEventListener("mouseleave", () => { if (this.at !== null) this.describe(this.at); });
      this.box.addEventListener("click", (event) => {
        if (event.target.closest(".t")) this.choose(pointed(event), false);
      });
      this.box.addEventListener("keydown", (event) => this.key(event));
    }

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const last = this.spans.length - 1, here = this.at ?? -1;
      const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.choose(Math.min(Math.max(to, 0), last), true);
    }

    colour(mode) {
      this.select.value = mode;
      this.box.dataset.mode = mode;
      const plain = ["author", "trained", "attended"].includes(mode);
      this.spans.forEach((span, at) => {
        const kept = span.className.split(" ").filter((name) => !/^([qpn]\d)$/.test(name));
        const added = plain ? "" : colourClass(mode, this.data, at);
        span.className = kept.concat(added || []).join(" ");
      });
      const legend = this.section.querySelector(".legend");
      legend.dataset.mode = mode;
      legend.replaceChildren(...legendOf(mode).map(([style, text]) => {
        const item = document.createElement("span");
        item.className = "t " + style;
        item.textContent = text;
        return item;
      }));
    }

    describe(at) {
      const numbers = this.data.numbers, rows = [];
      rows.push(["at", String(at + this.data.first)], ["id", String(numbers.id[at])]);
      if (numbers.author) rows.push(["author", this.data.authors[numbers.author[at]] ?? "unknown"]);
      if (numbers.trained) rows.push(["trained", numbers.trained[at] ? "yes" : "no"]);
      if (numbers.attended) rows.push(["seen", numbers.attended[at] ? "yes" : "hidden"]);
      for (const name of [...LOGPROBS, "difference"]) {
        if (numbers[name]) rows.push([LABELS[name], shown(numbers[name][at])]);
      }
      if (this.data.advantage !== null) rows.push(["advantage", shown(this.data.advantage)]);
      const list = document.createElement("dl");
      for (const [name, value] of [["token", JSON.stringify(this.text(at))], ...rows]) {
        const pair = document.createElement("div");
        pair.append(document.createElement("dt"), document.createElement("dd"));
        pair.firstChild.textContent = name;
        pair.lastChild.textContent = value;
        list.append(pair);
      }
      this.inspector.replaceChildren(list);
    }

    text(at) {
      return this.spans[at].textContent.replaceAll("↵\n", "\n").replaceAll("⇥\t", "\t");
    }

    choose(at, scroll) {
      if (!this.spans[at]) return;
      if (this.at !== null) this.spans[this.at].classList.remove("here");
      this.at = at;
      this.spans[at].classList.add("here");
      if (scroll) this.spans[at].scrollIntoView({ block: "center" });
      this.describe(at);
      this.remember();
    }

    worst() {
      const worst = this.data.worst;
      if (!worst.length) return;
      this.rank = (this.rank + 1) % worst.length;
      const at = worst[this.rank] - this.data.first;
      if (this.spans[at]) {
        for (let box = this.section.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
        this.box.focus({ preventScroll: true });
        this.choose(at, true);
      } else if (this.address) {
        location.href = `${this.address}&first=${worst[this.rank]}&token=${worst[this.rank]}`;
      }
    }

    remember() {
      if (!this.address) return;
      const asked = new URLSearchParams(location.search);
      asked.set("colour", this.select.value);
      if (this.at !== null) asked.set("token", String(this.at + this.data.first));
      history.replaceState(null, "", "?" + asked);
    }
  }

  const start = () => {
    const views = Array.from(document.querySelectorAll(".tokenview"), (one) => new TokenView(one));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "w" || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest("input, select, textarea")) return;
      const near = views.find((view) => view.section.contains(document.activeElement)) ?? views[0];
      near?.worst();
    });
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
