// Draws figures as SVG: lines, bands, points with intervals. A figure is what `report/charts.py`
// makes: `data` and `layout`. `heat.js` draws heat maps, `drawing.js` has what both need.
"use strict";
window.flatlinePlots = (() => {
  const { made, known, short, frame, widest, kept, words, linesOf, named, keyed, titleBelow, titles, codesAbove, drawMarks, filled, pointing } = window.flatlineDrawing;
  const DASHES = { dot: "2 4", dash: "6 4" };
  const NEAR = 24; // pixels from which a point answers the pointer

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
    return { at, back, ticks, text: short, from, inside: (value) => turn(value) >= low - 1e-9 && turn(value) <= high + 1e-9 };
  }

  // Labels below the horizontal axis. Of numbers that would touch, every second, third... is left.
  function labelsBelow(svg, x, spec) {
    const ticks = x.ticks.filter(x.inside);
    const gap = ticks.length > 1 ? Math.abs(x.at(ticks[1]) - x.at(ticks[0])) : Infinity;
    if (spec.ticktext) return { ticks: x.ticks, every: 1, ...named(svg, spec.ticktext, gap - 6) };
    const texts = ticks.map(x.text);
    return { ticks, texts, key: [], every: Math.max(1, Math.ceil((widest(svg, texts) + 8) / gap)) };
  }

  function drawAxes(svg, area, x, y, layout, below) {
    for (const value of y.ticks) {
      if (!y.inside(value)) continue;
      made("line", { class: "grid", x1: area.left, x2: area.right, y1: y.at(value), y2: y.at(value) }, svg);
      words(y.text(value), { class: "tick", x: area.left - 6, y: y.at(value) + 4, "text-anchor": "end" }, svg);
    }
    below.ticks.forEach((value, at) => {
      if (!x.inside(value) || at % below.every) return;
      const half = widest(svg, below.texts[at].split("\n")) / 2;
      words(below.texts[at], { class: "tick", x: kept(x.at(value), half, area.width), y: area.bottom + 16, "text-anchor": "middle" }, svg);
    });
    made("line", { class: "axis", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }, svg);
    titles(svg, area, layout, 18 + 14 * linesOf(below.texts));
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
      // What reaches 0 has no end on a logarithmic axis; an end that is open has no cap.
      const ends = Number.isFinite(bottom) ? bottom : y.from;
      const cap = (there, end) => (there ? `M${x.at(at) - 2} ${end}h4` : "");
      made("path", { d: `M${x.at(at)} ${top}V${ends}${cap(array[i], top)}${cap(arrayminus[i], ends)}` }, group);
    });
  }

  function lineTip(line, at) {
    const values = { x: line.x[at], y: line.y[at], customdata: line.customdata?.[at] };
    if (line.hovertemplate) return filled(line.hovertemplate, values);
    const more = line.text ? `${line.text[at]}\n` : "";
    return `${line.name}\n${more}${short(values.x)}: ${short(values.y)}`;
  }

  // A line of the legend as it is in the chart: dashed, filled, or its points alone.
  function swatch(line) {
    const svg = made("svg", { class: "swatch", width: 22, height: 8, viewBox: "0 0 22 8", "aria-hidden": "true" });
    const color = line.line?.color || line.marker?.color;
    if (line.fill) made("rect", { width: 22, height: 8, fill: line.fillcolor }, svg);
    else if (line.mode.includes("lines")) {
      const dash = DASHES[line.line.dash];
      made("path", { d: "M0 4H22", stroke: color, "stroke-width": Math.max(2, line.line.width), ...(dash ? { "stroke-dasharray": dash } : {}) }, svg);
    } else dots(svg, { x: [0], y: [0], marker: { ...line.marker, size: 8 } }, { at: () => 11 }, { at: () => 4 });
    return svg;
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
      button.append(swatch(line), line.name);
      button.addEventListener("click", () => {
        line.visible = line.visible === "legendonly" ? true : "legendonly";
        redraw();
      });
      list.append(button);
    }
    place.append(list);
  }

  // A value with both ends of its interval: all of it has to fit on the axis.
  const reach = (line, i) => (!line.error_y || !known(line.y[i]) ? [line.y[i]]
    : [line.y[i], line.y[i] + (line.error_y.array[i] || 0), line.y[i] - (line.error_y.arrayminus[i] || 0)]);

  function drawLines(place, figure, redraw) {
    const layout = figure.layout;
    const shown = figure.data.filter((one) => one.visible !== "legendonly");
    const { svg, width, height } = frame(place, layout.height || 280);
    const zoom = place.flatlineZoom;
    const within = (line, i) => !zoom || (line.x[i] >= zoom[0] && line.x[i] <= zoom[1]);
    const ys = shown.flatMap((one) => one.y.flatMap((_, i) => (within(one, i) ? reach(one, i) : [])));
    const left = 30 + widest(svg, axis(layout.yaxis, ys, 1, 0, 5).ticks.map(short));
    const x = axis(zoom ? { ...layout.xaxis, range: zoom } : layout.xaxis, shown.flatMap((one) => one.x), left, width - 10, width / 90);
    const above = codesAbove(svg, layout, x, width), below = labelsBelow(svg, x, layout.xaxis);
    const area = { left, right: width - 10, width, top: 10 + 12 * above.rows, bottom: height - 20 - 14 * (linesOf(below.texts) + titleBelow(svg, layout, width).length) };
    const y = axis(layout.yaxis, ys, area.bottom, area.top, 5);
    drawAxes(svg, area, x, y, layout, below);
    // An SVG inside an SVG shows nothing beyond its edges.
    const inside = { x: area.left - 4, y: area.top - 4, width: area.right - area.left + 8, height: area.bottom - area.top + 8 };
    const inner = made("svg", { ...inside, viewBox: Object.values(inside).join(" ") }, svg);
    shown.forEach((line) => drawLine(inner, line, x, y));
    drawMarks(svg, area, x, layout, above);
    keyed(place, below.key);
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

  function draw(place, figure) {
    const redraw = () => draw(place, figure);
    place.replaceChildren();
    if (figure.data.length && figure.data[0].type === "heatmap") window.flatlineHeat.draw(place, figure);
    else drawLines(place, figure, redraw);
  }
  return { draw };
})();
