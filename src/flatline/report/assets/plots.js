// Draws figures as SVG: lines, bands, points with intervals, heat maps. A figure is what
// `report/charts.py` makes: `data` and `layout`. Colours of axes and text come from the style sheet.
"use strict";
window.flatlinePlots = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = { dot: "2 4", dash: "6 4" };
  const NEAR = 24; // pixels from which a point answers the pointer
  const VIRIDIS = ["#440154", "#3b528b", "#21918c", "#5ec962", "#fde725"];

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

  // Round steps of 1, 2 or 5 times a power of ten.
  function ticksOf(low, high, most, least = 0) {
    const rough = Math.max((high - low) / most, least) || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max([1, 2, 5, 10].find((n) => n * power >= rough * 0.999) * power, least);
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) ticks.push(at * step);
    return ticks;
  }

  function decades(low, high, every) {
    const ticks = [];
    for (let at = Math.ceil(low); at <= Math.floor(high); at += every || 1) ticks.push(10 ** at);
    return ticks.length ? ticks : [10 ** low, 10 ** high];
  }

  // An axis: where a value lies between two ends in pixels, and where its ticks are.
  function axis(spec, values, from, to, most) {
    const log = spec.type === "log";
    const turn = (value) => (log ? Math.log10(value) : value);
    const usable = values.filter((value) => known(value) && (!log || value > 0)).map(turn);
    let [low, high] = spec.range || [Math.min(...usable), Math.max(...usable)];
    if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - (Math.abs(low) / 10 || 0.5), high + (Math.abs(high) / 10 || 0.5)];
    const room = spec.range ? 0 : (high - low) * 0.04;
    [low, high] = [low - room, high + room];
    const at = (value) => from + ((turn(value) - low) / (high - low)) * (to - from);
    const back = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
    const ticks = spec.tickvals || (log ? decades(low, high, spec.dtick) : ticksOf(low, high, most, spec.dtick));
    const text = (value, place) => (spec.ticktext ? spec.ticktext[place] : short(value));
    return { at, back, ticks, text, inside: (value) => turn(value) >= low - 1e-9 && turn(value) <= high + 1e-9 };
  }

  function frame(place, height) {
    const width = Math.max(place.clientWidth, 240);
    const svg = made("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": place.dataset.title || "chart" });
    return { svg, width, height };
  }

  function words(text, attributes, parent) {
    const box = made("text", attributes, parent);
    String(text).split("\n").forEach((line, at) =>
      made("tspan", { x: attributes.x, dy: at ? "1.15em" : 0 }, box, line));
    return box;
  }

  function drawAxes(svg, area, x, y, layout) {
    const lines = Math.max(1, ...(layout.xaxis.ticktext || []).map((text) => text.split("\n").length));
    for (const value of y.ticks) {
      if (!y.inside(value)) continue;
      made("line", { class: "grid", x1: area.left, x2: area.right, y1: y.at(value), y2: y.at(value) }, svg);
      words(y.text(value), { class: "tick", x: area.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, svg);
    }
    x.ticks.forEach((value, at) => {
      if (!x.inside(value)) return;
      words(x.text(value, at), { class: "tick", x: x.at(value), y: area.bottom + 16, "text-anchor": "middle" }, svg);
    });
    made("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }, svg);
    titles(svg, area, layout, 18 + 14 * lines);
  }

  function titles(svg, area, layout, below) {
    const under = layout.xaxis.title?.text, beside = layout.yaxis.title?.text;
    const middle = (area.top + area.bottom) / 2;
    if (under) words(under, { class: "title", x: (area.left + area.right) / 2, y: area.bottom + below + 4, "text-anchor": "middle" }, svg);
    if (beside) {
      const text = words(beside, { class: "title", x: 12, y: middle, "text-anchor": "middle" }, svg);
      text.setAttribute("transform", `rotate(-90 12 ${middle})`);
    }
  }

  // A path that breaks where there is no value.
  function path(line, x, y) {
    let pen = "M";
    return line.x.map((at, i) => {
      if (!known(at) || !known(line.y[i])) { pen = "M"; return ""; }
      const step = `${pen}${x.at(at).toFixed(1)} ${y.at(line.y[i]).toFixed(1)}`;
      pen = "L";
      return step;
    }).join("");
  }

  function drawLine(parent, line, x, y) {
    const color = line.line?.color || line.marker?.color;
    if (line.fill) {
      made("path", { d: `${path(line, x, y)}Z`, fill: line.fillcolor }, parent);
      return;
    }
    if (line.mode.includes("lines")) {
      const dash = DASHES[line.line.dash];
      made("path", { d: path(line, x, y), fill: "none", stroke: color, "stroke-width": line.line.width,
        ...(dash ? { "stroke-dasharray": dash } : {}) }, parent);
    }
    if (line.error_y) intervals(parent, line, x, y);
    if (line.mode.includes("markers")) dots(parent, line, x, y);
  }

  function dots(parent, line, x, y) {
    const { color, size = 5, opacity = 1, symbol } = line.marker;
    const group = made("g", { fill: color, "fill-opacity": opacity }, parent);
    line.x.forEach((at, i) => {
      if (!known(at) || !known(line.y[i])) return;
      const [cx, cy, r] = [x.at(at), y.at(line.y[i]), size / 2];
      if (symbol === "diamond") made("path", { d: `M${cx} ${cy - r}L${cx + r} ${cy}L${cx} ${cy + r}L${cx - r} ${cy}Z` }, group);
      else made("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r }, group);
    });
  }

  function intervals(parent, line, x, y) {
    const { array, arrayminus, color } = line.error_y;
    const group = made("g", { stroke: color, "stroke-width": 1.2 }, parent);
    line.x.forEach((at, i) => {
      const value = line.y[i];
      if (!known(value) || !(array[i] || arrayminus[i])) return;
      const [top, bottom] = [y.at(value + (array[i] || 0)), y.at(value - (arrayminus[i] || 0))];
      const ends = Number.isFinite(bottom) ? bottom : y.at(value);
      made("path", { d: `M${x.at(at)} ${top}V${ends}M${x.at(at) - 2} ${top}h4M${x.at(at) - 2} ${ends}h4` }, group);
    });
  }

  // Steps that findings name: a dashed line with the code above it.
  function drawMarks(svg, area, x, layout) {
    for (const one of layout.shapes) {
      if (!x.inside(one.x0)) continue;
      made("line", { class: "named", x1: x.at(one.x0), x2: x.at(one.x0), y1: area.top, y2: area.bottom }, svg);
    }
    const rows = new Map();
    for (const one of layout.annotations) {
      if (!x.inside(one.x)) continue;
      const row = rows.get(one.x) || 0;
      rows.set(one.x, row + 1);
      words(one.text, { class: "code", x: x.at(one.x), y: area.top - 4 - 12 * row, "text-anchor": "middle" }, svg);
    }
  }

  const filled = (template, values) =>
    template.replace(/%\{(\w+)\}/g, (_, name) => (typeof values[name] === "number" ? short(values[name]) : values[name]));

  function lineTip(line, at) {
    const values = { x: line.x[at], y: line.y[at], customdata: line.customdata?.[at] };
    if (line.hovertemplate) return filled(line.hovertemplate, values);
    const more = line.text ? `${line.text[at]}\n` : "";
    return `${line.name}\n${more}${short(values.x)}: ${short(values.y)}`;
  }

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

  function legend(place, figure, redraw) {
    const lines = figure.data.filter((one) => one.type !== "heatmap" && one.name);
    if (lines.length < 2 && !figure.layout.showlegend) return;
    if (figure.layout.showlegend === false) return;
    const list = document.createElement("div");
    list.className = "names";
    for (const line of lines) {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(line.visible !== "legendonly"));
      const swatch = document.createElement("span");
      swatch.style.background = line.fillcolor || line.line?.color || line.marker?.color;
      button.append(swatch, line.name);
      button.addEventListener("click", () => {
        line.visible = line.visible === "legendonly" ? true : "legendonly";
        redraw();
      });
      list.append(button);
    }
    place.append(list);
  }

  function drawLines(place, figure, redraw) {
    const layout = figure.layout;
    const shown = figure.data.filter((one) => one.visible !== "legendonly");
    const { svg, width, height } = frame(place, layout.height || 280);
    const rows = Math.max(0, ...[...new Set(layout.annotations.map((one) => one.x))].map((x) =>
      layout.annotations.filter((one) => one.x === x).length));
    const lower = 34 + 14 * Math.max(1, ...(layout.xaxis.ticktext || []).map((t) => t.split("\n").length));
    const area = { left: 62, right: width - 10, top: 10 + 12 * rows, bottom: height - lower };
    const zoom = place.flatlineZoom;
    const within = (line, i) => !zoom || (line.x[i] >= zoom[0] && line.x[i] <= zoom[1]);
    const ys = shown.flatMap((one) => one.y.filter((_, i) => within(one, i)));
    const x = axis(zoom ? { ...layout.xaxis, range: zoom } : layout.xaxis, shown.flatMap((one) => one.x), area.left, area.right, width / 90);
    const y = axis(layout.yaxis, ys, area.bottom, area.top, 5);
    drawAxes(svg, area, x, y, layout);
    // An SVG inside an SVG shows nothing beyond its edges.
    const inside = { x: area.left - 4, y: area.top - 4, width: area.right - area.left + 8, height: area.bottom - area.top + 8 };
    const inner = made("svg", { ...inside, viewBox: Object.values(inside).join(" ") }, svg);
    shown.forEach((line) => drawLine(inner, line, x, y));
    drawMarks(svg, area, x, layout);
    place.append(svg);
    legend(place, figure, redraw);
    const all = shown.filter((one) => one.hoverinfo !== "skip").flatMap((line) => line.x.map((at, i) =>
      (known(at) && known(line.y[i]) && within(line, i) ? { line, i, x: x.at(at), y: y.at(line.y[i]) } : null))).filter(Boolean);
    pointing(place, svg, (px, py) => {
      let best = null, least = NEAR ** 2;
      for (const one of all) {
        const off = (one.x - px) ** 2 + (one.y - py) ** 2;
        if (off < least) [best, least] = [one, off];
      }
      return best && [lineTip(best.line, best.i), best.x, best.y];
    });
    zooming(place, svg, area, x, layout, redraw);
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

  // Dragging with a mouse shows a part of the steps, a double click all of them.
  function zooming(place, svg, area, x, layout, redraw) {
    if (layout.xaxis.tickvals || layout.xaxis.type === "log") return;
    let from = null, band = null;
    const at = (event) => Math.min(Math.max(event.clientX - svg.getBoundingClientRect().left, area.left), area.right);
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button) return;
      from = at(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (from === null) return;
      band ||= made("rect", { class: "chosen", y: area.top, height: area.bottom - area.top }, svg);
      band.setAttribute("x", Math.min(from, at(event)));
      band.setAttribute("width", Math.abs(at(event) - from));
    });
    svg.addEventListener("pointerup", (event) => {
      const ends = from === null ? [] : [from, at(event)].sort((a, b) => a - b);
      from = null;
      if (ends.length && ends[1] - ends[0] > 8) {
        place.flatlineZoom = ends.map(x.back);
        redraw();
      }
    });
    svg.addEventListener("dblclick", () => { place.flatlineZoom = null; redraw(); });
  }

  function mixed(stops, share) {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const [one, two] = [stops[Math.floor(at)], stops[Math.ceil(at)]];
    const part = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
    const weight = at - Math.floor(at);
    return `rgb(${[0, 1, 2].map((i) => Math.round(part(one, i) * (1 - weight) + part(two, i) * weight)).join()})`;
  }

  // Below and above 0 in two colours, as strong as the value is large; else dark to bright.
  function shade(heat, value) {
    if (heat.colorscale === "Viridis") {
      return { fill: mixed(VIRIDIS, (value - heat.zmin) / (heat.zmax - heat.zmin || 1)) };
    }
    return { fill: value < 0 ? "#c24a4a" : "#2f7fd1", "fill-opacity": 0.08 + 0.8 * Math.abs(value) };
  }

  function drawHeat(place, figure) {
    const heat = figure.data[0], layout = figure.layout;
    const longest = Math.max(...heat.y.map((name) => name.length));
    const { svg, width, height } = frame(place, layout.height || 60 + 34 * heat.y.length);
    const left = Math.min(12 + 6.2 * longest, width * 0.42);
    const named = typeof heat.x[0] === "string";
    const area = { left, right: width - 8, top: 10 + (layout.annotations.length ? 14 : 0), bottom: height - (named ? 28 : 56) };
    const [w, h] = [(area.right - area.left) / heat.x.length, (area.bottom - area.top) / heat.y.length];
    const gap = w > 6 && h > 6 ? 1 : 0;
    heat.z.forEach((row, r) => row.forEach((value, c) => {
      if (!known(value)) return;
      const cell = { x: area.left + c * w, y: area.top + r * h, width: Math.max(w - gap, 0.5), height: Math.max(h - gap, 0.5) };
      made("rect", { ...cell, ...shade(heat, value) }, svg);
      if (heat.text?.[r][c]) words(heat.text[r][c], { class: "cell", x: cell.x + w / 2, y: cell.y + h / 2 + 4, "text-anchor": "middle" }, svg);
    }));
    heat.y.forEach((name, r) => {
      if (h < 9 && r % Math.ceil(9 / h)) return;
      const most = Math.floor((left - 12) / 6.2);
      const text = name.length > most ? `…${name.slice(-most + 1)}` : name;
      words(text, { class: "tick", x: left - 6, y: area.top + (r + 0.5) * h + 4, "text-anchor": "end" }, svg);
    });
    const every = named ? 1 : Math.ceil(heat.x.length / (width / 70));
    heat.x.forEach((name, c) => {
      if (c % every) return;
      const most = Math.max(3, Math.floor(w / 6.2));
      const text = named && name.length > most ? `${name.slice(0, most - 1)}…` : name;
      words(text, { class: "tick", x: area.left + (c + 0.5) * w, y: area.bottom + 16, "text-anchor": "middle" }, svg);
    });
    const at = (step) => area.left + (Math.max(0, heat.x.findIndex((one) => one >= step)) + 0.5) * w;
    drawMarks(svg, area, { at, inside: () => !named }, layout);
    if (heat.colorbar) scale(svg, area, heat, height);
    titles(svg, area, layout, 30);
    place.append(svg);
    pointing(place, svg, (px, py) => {
      const [c, r] = [Math.floor((px - area.left) / w), Math.floor((py - area.top) / h)];
      if (!known(heat.z[r]?.[c])) return null;
      const values = { x: heat.x[c], y: heat.y[r], customdata: heat.customdata[r][c] };
      return [filled(heat.hovertemplate, values), px, py];
    });
  }

  function scale(svg, area, heat, height) {
    const { ticktext, title } = heat.colorbar;
    const [from, size] = [area.right - 150, 80 / 20];
    for (let i = 0; i < 20; i++) {
      made("rect", { x: from + i * size, y: height - 14, width: size + 0.5, height: 8, fill: mixed(VIRIDIS, i / 19) }, svg);
    }
    words(`${title.text}  ${ticktext[0]}`, { class: "tick", x: from - 6, y: height - 6, "text-anchor": "end" }, svg);
    words(ticktext[ticktext.length - 1], { class: "tick", x: from + 86, y: height - 6 }, svg);
  }

  function draw(place, figure) {
    const redraw = () => draw(place, figure);
    place.replaceChildren();
    if (figure.data.length && figure.data[0].type === "heatmap") drawHeat(place, figure);
    else drawLines(place, figure, redraw);
  }
  return { draw };
})();
