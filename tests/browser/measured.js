// What a person would see wrong with a page: words that are cut off, that touch, or that fade into
// what is behind them; marks that leave their chart. Each find names the words and where they are.
(() => {
  const SLACK = 1.5; // pixels, for rounding
  const seen = document.documentElement.clientWidth;
  const scrolls = (box) => /auto|scroll/.test(getComputedStyle(box).overflowX);
  const inside = (box) => box.closest("pre, .text, .tokens, .fork, .prose") !== null;

  function* upwards(element) {
    for (let box = element; box; box = box.parentElement) yield box;
  }

  function shown(element) {
    for (const box of upwards(element)) {
      const style = getComputedStyle(box);
      if (style.display === "none" || style.visibility === "hidden" || Number(style.opacity) === 0) return false;
      if (box.matches("details:not([open])") && !box.querySelector("summary")?.contains(element)) return false;
      if (box.matches(".skip, .tip, dialog:not([open]), option")) return false;
    }
    return true;
  }

  // The words of the page with the boxes of their lines, as far as boxes that scroll show them.
  function written() {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.data.trim() || element.closest("script, style, select, .board thead") || !shown(element)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      found.push({ element, text: node.data.trim().slice(0, 60), lines: Array.from(range.getClientRects()) });
    }
    return found;
  }

  const clipped = (line, element) => {
    let { left, right, top, bottom } = line;
    for (const box of upwards(element)) {
      if (box === document.body) break;
      if (getComputedStyle(box).overflowX === "visible") continue;
      const edge = box.getBoundingClientRect();
      [left, right] = [Math.max(left, edge.left), Math.min(right, edge.right)];
      [top, bottom] = [Math.max(top, edge.top), Math.min(bottom, edge.bottom)];
    }
    return { left, right, top, bottom };
  };

  function cut(words) {
    const finds = [];
    for (const { element, text, lines } of words) {
      const chart = element.closest(".plot > svg")?.getBoundingClientRect();
      const [from, to] = chart ? [chart.left, chart.right] : [0, seen];
      const reached = lines.some((line) => line.left < from - SLACK || line.right > to + SLACK)
        || (chart && lines.some((line) => line.top < chart.top - SLACK || line.bottom > chart.bottom + SLACK));
      const held = !chart && Array.from(upwards(element)).some((box) => box !== document.body && scrolls(box));
      if (reached && !held) finds.push(`cut off: ${text}`);
    }
    for (const box of document.querySelectorAll("button, input, select, svg, img")) {
      const edge = box.getBoundingClientRect();
      const held = Array.from(upwards(box)).some((one) => one !== document.body && scrolls(one));
      if (shown(box) && edge.width && edge.right > seen + SLACK && !held) finds.push(`cut off: ${box.tagName}`);
    }
    return finds;
  }

  // At the width of a desk nothing has to be scrolled sideways to be read.
  const sideways = () => Array.from(document.querySelectorAll(".scroll"))
    .filter((box) => seen > 1000 && shown(box) && !inside(box) && box.scrollWidth > box.clientWidth + SLACK)
    .map((box) => `scrolls sideways by ${box.scrollWidth - box.clientWidth}: ${box.innerText.trim().slice(0, 40)}`);

  function touching(words) {
    const boxes = words.filter(({ element }) => !element.closest(".inspector")).flatMap(({ element, text, lines }) =>
      lines.map((line) => ({ element, text, ...clipped(line, element) })))
      .filter((one) => one.right - one.left > 2 && one.bottom - one.top > 2).sort((a, b) => a.top - b.top);
    const finds = [];
    boxes.forEach((one, at) => {
      for (let next = at + 1; next < boxes.length && boxes[next].top < one.bottom; next++) {
        const other = boxes[next];
        const across = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const down = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        const room = one.element.closest("svg") ? SLACK : 4; // lines of prose share their leading
        if (across > SLACK && down > room) finds.push(`touch: ${one.text} | ${other.text}`);
      }
    });
    return finds;
  }

  function leaving() {
    const finds = [];
    for (const area of document.querySelectorAll(".plot > svg > svg")) {
      const chart = area.parentElement.getBoundingClientRect(), title = area.closest(".plot").dataset.title;
      const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(area.getAttribute(name)));
      const edge = { left: chart.left + x, right: chart.left + x + width, top: chart.top + y, bottom: chart.top + y + height };
      for (const mark of area.querySelectorAll("path, circle")) {
        const { left, right, top, bottom } = mark.getBoundingClientRect();
        const out = Math.max(edge.left - left, right - edge.right, edge.top - top, bottom - edge.bottom);
        if (out > SLACK) finds.push(`leaves its chart by ${Math.round(out)}: ${title}`);
      }
    }
    return finds;
  }

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  function parsed(color) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }

  const over = ([r, g, b, a], [R, G, B]) => [r * a + R * (1 - a), g * a + G * (1 - a), b * a + B * (1 - a), 1];
  const light = (color) => color.slice(0, 3).map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
  function contrast(one, other) {
    const [high, low] = [light(one), light(other)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  }

  function behind(element) {
    const layers = Array.from(upwards(element), (box) => parsed(getComputedStyle(box).backgroundColor));
    let color = parsed("Canvas");
    for (const layer of layers.reverse()) color = over(layer, color);
    const chart = element.closest(".plot > svg");
    if (!chart) return color;
    const at = element.getBoundingClientRect(), [x, y] = [(at.left + at.right) / 2, (at.top + at.bottom) / 2];
    for (const rect of chart.querySelectorAll("rect")) {
      const edge = rect.getBoundingClientRect();
      if (edge.left > x || edge.right < x || edge.top > y || edge.bottom < y) continue;
      const style = getComputedStyle(rect), [r, g, b, a] = parsed(style.fill);
      color = over([r, g, b, a * Number(style.fillOpacity)], color);
    }
    return color;
  }

  function faint(words) {
    const finds = [];
    for (const { element, text } of words) {
      if (element.closest(".black, :disabled")) continue; // hidden on purpose; not in use
      const style = getComputedStyle(element), back = behind(element);
      const ink = over(parsed(element.closest("svg") ? style.fill : style.color), back);
      const found = contrast(ink, back);
      if (found < 4.5) finds.push(`contrast ${found.toFixed(2)}: ${text}`);
    }
    return finds;
  }

  // How a bar over hidden words stands out, and whether it covers them.
  function bar(selector) {
    const one = document.querySelector(selector), style = getComputedStyle(one);
    const found = contrast(parsed(style.backgroundColor), behind(one.parentElement));
    return [found, style.color === style.backgroundColor];
  }

  // A line of a chart: how it is drawn there and in the legend, and what the legend calls it.
  function line(chart, at) {
    const drawn = document.querySelectorAll(`${chart} svg > svg path`)[at];
    const name = document.querySelectorAll(`${chart} .names button`)[at];
    const dash = (one) => one?.getAttribute("stroke-dasharray") ?? null;
    return { name: name.textContent, light: light(parsed(getComputedStyle(drawn).stroke)),
      dash: dash(drawn), dash_in_legend: dash(name.querySelector("path")) };
  }

  function wrongs() {
    const words = written();
    return Array.from(new Set([...cut(words), ...sideways(), ...touching(words), ...leaving(), ...faint(words)]));
  }
  window.measured = { wrongs, leaving, sideways, cut: () => cut(written()), touching: () => touching(written()), bar, line };
})();
