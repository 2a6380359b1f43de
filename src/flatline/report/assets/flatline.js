// Draws the charts of a page from its JSON block. Also used by the live pages: `flatline.update`.
"use strict";
(() => {
  const block = document.getElementById("chart-data");
  const figures = block ? JSON.parse(block.textContent) : {};

  function draw(place) {
    const figure = figures[place.dataset.figure];
    if (!figure) return;
    place.dataset.drawn = "yes";
    window.flatlinePlots.draw(place, figure);
  }

  const places = () => Array.from(document.querySelectorAll(".plot[data-figure]"));
  const redraw = () => places().filter((place) => place.dataset.drawn).forEach(draw);

  // Each chart is drawn when it comes near the window, all of them for paper.
  const near = new IntersectionObserver((seen) => {
    for (const one of seen.filter((place) => place.isIntersecting)) {
      near.unobserve(one.target);
      draw(one.target);
    }
  }, { rootMargin: "800px 0px" });
  places().forEach((place) => near.observe(place));
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return; // a phone hides its address bar
    width = window.innerWidth;
    redraw();
  });

  // Paper cannot be clicked: what was ruled out is printed too. Rollouts are left folded: too long.
  const folded = () => Array.from(document.querySelectorAll("details.rest:not([open])"));
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = folded();
    opened.forEach((box) => { box.open = true; });
    places().forEach(draw);
  });
  window.addEventListener("afterprint", () => {
    opened.forEach((box) => { box.open = false; });
    redraw();
  });

  // A link to something inside a closed <details> opens it.
  function reveal() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let box = target && target.closest("details"); box; box = box.parentElement.closest("details")) box.open = true;
    if (target) target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();

  // Two texts beside each other are read together.
  for (const pair of document.querySelectorAll(".sides")) {
    const texts = Array.from(pair.querySelectorAll(".text"));
    for (const text of texts) {
      text.addEventListener("scroll", () => {
        if (!text.matches(":hover, :focus")) return;
        const share = text.scrollTop / Math.max(1, text.scrollHeight - text.clientHeight);
        for (const one of texts) if (one !== text) one.scrollTop = share * (one.scrollHeight - one.clientHeight);
      }, { passive: true });
    }
  }

  window.flatline = {
    // New figures by their id, as in the JSON block: those on the page are drawn again.
    update(fresh) {
      Object.assign(figures, fresh);
      redraw();
    },
  };
})();
