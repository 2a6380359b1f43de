// Draws the charts of a page from its JSON block. Also used by the live pages: `flatline.update`.
"use strict";
(() => {
  const block = document.getElementById("chart-data");
  const content = block ? JSON.parse(block.textContent) : { templates: {}, figures: {} };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const PAPER_WIDTH = 620; // pixels that fit between the margins of A4 and of US letter
  let printing = false;
  const narrow = window.matchMedia("(max-width: 640px)");
  // No tool bar: dragging zooms, a double click goes back, and nothing covers the data.
  const CONFIG = { responsive: true, displaylogo: false, displayModeBar: false, scrollZoom: false };

  // A legend below the chart keeps its width; on a phone, where it has a line for each name, the
  // chart grows by it.
  function layoutOf(figure) {
    const scheme = dark.matches && !printing ? "dark" : "light";
    const many = figure.data.filter((one) => one.type !== "heatmap").length;
    return {
      height: narrow.matches ? 280 + 18 * Math.max(0, many - 1) : 320,
      margin: { l: 8, r: 8, t: figure.layout.annotations.length ? 24 : 6, b: 8 },
      hovermode: "closest",
      showlegend: many > 1,
      legend: { orientation: "h", x: 0, y: -0.22, yanchor: "top" },
      ...(printing ? { width: PAPER_WIDTH } : {}),
      ...figure.layout,
      template: content.templates[scheme],
    };
  }

  // A self-contained page carries the library as text; a live page has loaded it already.
  function loadPlotly() {
    const source = document.getElementById("plotly-source");
    if (window.Plotly || !source) return;
    const script = document.createElement("script");
    script.textContent = source.textContent;
    document.head.append(script);
  }

  // After the second frame the text is on the screen: running the library takes a second.
  function whenReadable(then) {
    requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
      loadPlotly();
      then();
    })));
  }

  function draw(place) {
    const figure = content.figures[place.dataset.figure];
    if (!figure || !window.Plotly) return;
    place.dataset.drawn = "yes";
    // Plotly keeps and changes what it is given.
    const own = structuredClone(figure);
    window.Plotly.react(place, own.data, layoutOf(own), CONFIG);
  }

  const places = () => Array.from(document.querySelectorAll(".plot[data-figure]"));
  const redraw = () => places().filter((place) => place.dataset.drawn).forEach(draw);

  // A page has many charts: each is drawn when it comes near the window, all of them for paper. One
  // takes a tenth of a second, so the reader gets a turn after each, and the nearest comes first.
  let waiting = [];
  const distance = (place) => Math.abs(place.getBoundingClientRect().top - window.innerHeight / 4);
  function drawNext() {
    if (!waiting.length) return;
    waiting.sort((a, b) => distance(a) - distance(b));
    draw(waiting.shift());
    setTimeout(drawNext);
  }
  const near = new IntersectionObserver((seen) => {
    const come = seen.filter((one) => one.isIntersecting).map((one) => one.target);
    come.forEach((place) => near.unobserve(place));
    const idle = !waiting.length;
    waiting = waiting.concat(come);
    if (idle) drawNext();
  }, { rootMargin: "800px 0px" });
  whenReadable(() => places().forEach((place) => near.observe(place)));
  // Paper cannot be clicked: what was ruled out is printed too. Rollouts are left folded: too long.
  const folded = () => Array.from(document.querySelectorAll("details.rest:not([open])"));
  let opened = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    loadPlotly();
    opened = folded();
    opened.forEach((box) => { box.open = true; });
    places().forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    opened.forEach((box) => { box.open = false; });
    redraw();
  });
  dark.addEventListener("change", redraw);
  narrow.addEventListener("change", redraw);

  // A link to something inside a closed <details> opens it.
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = target && target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    if (target) target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();

  window.flatline = {
    // New figures by their id, as in the JSON block: those on the page are drawn again.
    update(figures) {
      Object.assign(content.figures, figures);
      redraw();
    },
  };
})();
