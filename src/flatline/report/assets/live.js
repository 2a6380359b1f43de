// Follows a run while it trains: asks for new steps, then puts in what changed. No page is reloaded.
"use strict";
(() => {
  const live = document.querySelector(".live[data-run]");
  if (!live) return;
  const SHORTEST = 2000;
  const main = document.querySelector("main");
  let last = Number(live.dataset.last), state = live.dataset.state;
  let tag = null, before = null, fresh = live.dataset.fresh === "yes";

  function say(answer) {
    live.querySelector(".state").textContent = answer.state;
    live.querySelector(".at").textContent = `step ${answer.last}`;
    live.dataset.state = answer.state;
  }

  function figuresOf(page) {
    const block = page.getElementById("chart-data");
    return block ? JSON.parse(block.textContent).figures : {};
  }

  const charts = (part) => Array.from(part.querySelectorAll(".plot"), (plot) => plot.dataset.figure).join();
  const titled = (details) => details.querySelector("summary")?.firstChild?.textContent.trim();

  // A part that the server wrote as before is left alone. Charts stay as long as they are the same
  // ones: they get new figures. What the reader opened stays open.
  function put(page) {
    const fresh = page.querySelector("main"), old = before;
    const opened = new Set(Array.from(main.querySelectorAll("details[open]"), titled));
    const alike = main.children.length === fresh.children.length && charts(main) === charts(fresh);
    Array.from(fresh.children).forEach((part, at) => {
      const known = alike && (old ? part.outerHTML === old.children[at]?.outerHTML : charts(part));
      if (alike && !known) main.children[at].replaceWith(document.importNode(part, true));
    });
    if (!alike) main.replaceChildren(...Array.from(fresh.children, (part) => document.importNode(part, true)));
    before = fresh;
    for (const one of main.querySelectorAll("details")) if (opened.has(titled(one))) one.open = true;
    for (const plot of main.querySelectorAll(".plot")) plot.dataset.drawn = "yes";
    window.flatline?.update(figuresOf(page));
  }

  async function look() {
    const headers = tag && fresh ? { "If-None-Match": tag } : {};
    const answer = await fetch(`/api/run/${live.dataset.run}/steps?after=${last}`, { headers, cache: "no-store" });
    if (answer.status !== 200) return answer.status === 304;
    tag = answer.headers.get("etag");
    const said = await answer.json();
    say(said);
    const changed = said.last !== last || said.state !== state || !fresh;
    state = said.state;
    if (changed) {
      last = said.last;
      tag = null;
      const page = await fetch(location.pathname, { cache: "no-store" });
      if (page.ok) {
        const made = new DOMParser().parseFromString(await page.text(), "text/html");
        fresh = made.querySelector(".live")?.dataset.fresh === "yes";
        put(made);
      }
    }
    return true;
  }

  // A run that is over may go on: it is resumed in the same folder. Then one looks less often.
  async function follow() {
    const began = performance.now();
    let well = true;
    try { well = document.hidden || await look(); } catch { well = false; }
    const took = performance.now() - began;
    const pause = Math.max(SHORTEST, 5 * took) * (state === "still running" ? 1 : 5) * (well ? 1 : 3);
    setTimeout(follow, pause);
  }
  setTimeout(follow, SHORTEST / 2);
})();

// The list of runs: states, steps and rewards of running ones, and runs that begin.
(() => {
  const list = document.querySelector("#runs");
  if (!list) return;
  let tag = null;

  async function look() {
    const answer = await fetch(location.pathname, { headers: tag ? { "If-None-Match": tag } : {}, cache: "no-store" });
    if (answer.status !== 200) return;
    tag = answer.headers.get("etag");
    const made = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("#runs");
    if (!made) return;
    const here = document.activeElement?.getAttribute("href");
    list.replaceChildren(...Array.from(made.children, (part) => document.importNode(part, true)));
    if (here) Array.from(list.querySelectorAll("a")).find((link) => link.getAttribute("href") === here)?.focus();
    document.querySelector('form.search input[name="q"]')?.dispatchEvent(new Event("input"));
  }

  const follow = async () => {
    try { if (!document.hidden) await look(); } catch { /* the server may be gone for a while */ }
    setTimeout(follow, 4000);
  };
  setTimeout(follow, 4000);
})();
