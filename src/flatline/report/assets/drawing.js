// What every chart is made of: text that is measured and kept apart, titles, marks of findings, tips.
// Colours of axes and text come from the style sheet.
"use strict";
window.flatlineDrawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function made(tag, attributes, parent, text) {
    const one = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    if (text !== undefined) one.textContent = text;
    parent?.append(one);
    return one;
  }

  const known = (value) => value !== null && value !== undefined;
  const short = (value) => (value === 0 ? "0" : Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3
    ? value.toExponential(1).replace(".0e", "e").replace("e+", "e") : String(Number(value.toPrecision(4))));

  function frame(place, height) {
    const width = Math.max(place.clientWidth, 240);
    const svg = made("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": place.dataset.title || "chart" }, place); // text is measured where it will stand
    return { svg, width, height };
  }

  function widthOf(svg, text, kind = "tick") {
    const one = made("text", { class: kind }, svg, text);
    const width = one.getComputedTextLength();
    one.remove();
    return width;
  }

  const widest = (svg, texts) => Math.max(0, ...texts.map((text) => widthOf(svg, text)));
  const kept = (at, half, width) => Math.min(Math.max(at, half + 1), width - half - 1);

  // A name as far as there is room for it.
  function cut(svg, name, room) {
    let most = name.length;
    while (most > 1 && widthOf(svg, most < name.length ? `${name.slice(0, most)}…` : name) > room) most -= 1;
    return most < name.length ? `${name.slice(0, most)}…` : name;
  }

  // Words on lines that fit; null where they do not, or take more than three.
  function wrapped(svg, text, room) {
    const lines = [];
    for (const word of text.split(" ")) {
      const longer = lines.length ? `${lines[lines.length - 1]} ${word}` : word;
      if (lines.length && widthOf(svg, longer) <= room) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    return lines.length <= 3 && widest(svg, lines) <= room ? lines : null;
  }

  // Names below an axis; where one does not fit, all of them are numbers, and a list has the names.
  function named(svg, texts, room) {
    const fitted = texts.map((text) => text.split("\n").map((line) => wrapped(svg, line, room)));
    if (fitted.every((lines) => lines.every(Boolean))) {
      return { texts: fitted.map((lines) => lines.flat().join("\n")), key: [] };
    }
    return { texts: texts.map((_, at) => String(at + 1)), key: texts.map((text) => text.replaceAll("\n", ", ")) };
  }

  function keyed(place, key) {
    if (!key.length) return;
    const list = document.createElement("ol");
    list.className = "key";
    for (const name of key) list.append(Object.assign(document.createElement("li"), { textContent: name }));
    place.append(list);
  }

  function words(text, attributes, parent) {
    const box = made("text", attributes, parent);
    String(text).split("\n").forEach((line, at) =>
      made("tspan", { x: attributes.x, dy: at ? "1.15em" : 0 }, box, line));
    return box;
  }

  const linesOf = (texts) => Math.max(1, ...texts.map((text) => text.split("\n").length));

  const titleBelow = (svg, layout, width) => {
    const text = layout.xaxis.title?.text || "";
    return text ? wrapped(svg, text, width - 4) || [text] : [];
  };

  function titles(svg, area, layout, below) {
    const beside = layout.yaxis.title?.text, middle = (area.top + area.bottom) / 2;
    const under = titleBelow(svg, layout, area.width);
    const at = kept((area.left + area.right) / 2, widest(svg, under) / 2, area.width);
    if (under.length) words(under.join("\n"), { class: "title", x: at, y: area.bottom + below + 4, "text-anchor": "middle" }, svg);
    if (beside) {
      const text = words(beside, { class: "title", x: 12, y: middle, "text-anchor": "middle" }, svg);
      text.setAttribute("transform", `rotate(-90 12 ${middle})`);
    }
  }

  // Codes of findings above the steps that they name, in as many rows as keep them apart. One that
  // stands there already is not written again.
  function codesAbove(svg, layout, x, width) {
    const ends = [], codes = [];
    for (const one of layout.annotations.filter(({ x: step }) => x.inside(step)).sort((a, b) => a.x - b.x)) {
      const half = widthOf(svg, one.text, "code") / 2, middle = kept(x.at(one.x), half, width);
      if (codes.some((code) => code.text === one.text && code.right + 4 > middle - half)) continue;
      const free = ends.findIndex((end) => end + 4 <= middle - half), row = free < 0 ? ends.length : free;
      ends[row] = middle + half;
      codes.push({ text: one.text, middle, right: middle + half, row });
    }
    return { codes, rows: ends.length };
  }

  // Steps that findings name: a dashed line with the code above it.
  function drawMarks(svg, area, x, layout, above) {
    for (const one of layout.shapes) {
      if (!x.inside(one.x0)) continue;
      made("line", { class: "named", x1: x.at(one.x0), x2: x.at(one.x0), y1: area.top, y2: area.bottom }, svg);
    }
    for (const { text, middle, row } of above.codes) {
      words(text, { class: "code", x: middle, y: area.top - 4 - 12 * row, "text-anchor": "middle" }, svg);
    }
  }

  const filled = (template, values) =>
    template.replace(/%\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? short(values[name]) : values[name]));

  function tipOf(place) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    place.append(tip);
    return (text, left, top) => {
      tip.hidden = !text;
      if (!text) return;
      tip.textContent = text;
      const room = place.clientWidth - tip.offsetWidth - 4;
      tip.style.left = `${Math.max(0, Math.min(left + 12, room))}px`;
      tip.style.top = `${Math.max(0, top - tip.offsetHeight - 8)}px`;
    };
  }

  function pointing(place, svg, find) {
    const tell = tipOf(place);
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const found = find(event.clientX - box.left, event.clientY - box.top);
      tell(...(found || [""]));
    });
    svg.addEventListener("pointerleave", () => tell(""));
  }

  return { made, known, short, frame, widthOf, widest, kept, cut, words, linesOf, named, keyed, titleBelow, titles, codesAbove, drawMarks, filled, pointing };
})();
