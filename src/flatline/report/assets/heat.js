// Heat maps: a row for each tensor or part, a column for each step or part.
"use strict";
window.flatlineHeat = (() => {
  const { made, known, short, frame, widthOf, widest, kept, cut, words, linesOf, named, keyed, titles, codesAbove, drawMarks, filled, pointing } = window.flatlineDrawing;
  const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];

  function mixed(stops, share) {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const [one, two] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
    const part = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
    const weight = at - Math.floor(at);
    return `rgb(${[0, 1, 2].map((i) => Math.round(part(one, i) * (1 - weight) + part(two, i) * weight)).join()})`;
  }

  // Below and above 0 in two colours, as strong as the value is large, but never so strong that the
  // number in the cell cannot be read; else dark to bright.
  function shade(heat, value) {
    if (heat.colorscale === "Viridis") {
      return { fill: mixed(VIRIDIS, (value - heat.zmin) / (heat.zmax - heat.zmin || 1)) };
    }
    return { fill: value < 0 ? "#c24a4a" : "#2f7fd1", "fill-opacity": 0.08 + 0.52 * Math.abs(value) };
  }

  function draw(place, figure) {
    const heat = figure.data[0], layout = figure.layout;
    const { svg, width, height } = frame(place, layout.height || 60 + 34 * heat.y.length);
    const left = Math.min(14 + widest(svg, heat.y), width * 0.42);
    const steps = typeof heat.x[0] !== "string";
    const w = (width - 8 - left) / heat.x.length;
    const x = { at: (step) => left + (Math.max(0, heat.x.findIndex((one) => one >= step)) + 0.5) * w, inside: () => steps };
    const above = codesAbove(svg, layout, x, width);
    const below = steps ? { texts: heat.x.map(short), key: [] } : named(svg, heat.x, w - 4);
    const every = steps ? Math.ceil((widest(svg, below.texts) + 8) / w) : 1;
    const area = { left, right: width - 8, width, top: 10 + 12 * above.rows, bottom: height - (steps ? 56 : 14 + 14 * linesOf(below.texts)) };
    const h = (area.bottom - area.top) / heat.y.length;
    const gap = w > 6 && h > 6 ? 1 : 0;
    heat.z.forEach((row, r) => row.forEach((value, c) => {
      if (!known(value)) return;
      const cell = { x: area.left + c * w, y: area.top + r * h, width: Math.max(w - gap, 0.5), height: Math.max(h - gap, 0.5) };
      made("rect", { ...cell, ...shade(heat, value) }, svg);
      if (heat.text?.[r][c] && widthOf(svg, heat.text[r][c], "cell") < w) words(heat.text[r][c], { class: "cell", x: cell.x + w / 2, y: cell.y + h / 2 + 4, "text-anchor": "middle" }, svg);
    }));
    heat.y.forEach((name, r) => {
      if (h < 9 && r % Math.ceil(9 / h)) return;
      const text = cut(svg, below.key.length ? `${r + 1} ${name}` : name, left - 8);
      words(text, { class: "tick", x: left - 6, y: area.top + (r + 0.5) * h + 4, "text-anchor": "end" }, svg);
    });
    below.texts.forEach((text, c) => {
      if (c % every) return;
      const at = kept(area.left + (c + 0.5) * w, widest(svg, text.split("\n")) / 2, width);
      words(text, { class: "tick", x: at, y: area.bottom + 16, "text-anchor": "middle" }, svg);
    });
    drawMarks(svg, area, x, layout, above);
    if (heat.colorbar) scale(svg, area, heat, height);
    titles(svg, area, layout, 30);
    keyed(place, below.key);
    pointing(place, svg, (px, py) => {
      const [c, r] = [Math.floor((px - area.left) / w), Math.floor((py - area.top) / h)];
      if (!known(heat.z[r]?.[c])) return null;
      const values = { x: heat.x[c], y: heat.y[r], customdata: heat.customdata[r][c] };
      return [filled(heat.hovertemplate, values), px, py];
    });
  }

  function scale(svg, area, heat, height) {
    const { ticktext, title } = heat.colorbar;
    const start = `${title.text}  ${ticktext[0]}`, end = ticktext[ticktext.length - 1];
    const room = area.right - 16 - widthOf(svg, start) - widthOf(svg, end);
    const long = Math.min(80, Math.max(20, room)), from = area.right - 6 - long - widthOf(svg, end);
    for (let i = 0; i < 20; i++) {
      made("rect", { x: from + (i * long) / 20, y: height - 14, width: long / 20 + 0.5, height: 8, fill: mixed(VIRIDIS, i / 19) }, svg);
    }
    words(start, { class: "tick", x: from - 6, y: height - 6, "text-anchor": "end" }, svg);
    words(end, { class: "tick", x: from + long + 6, y: height - 6 }, svg);
  }

  return { draw };
})();
