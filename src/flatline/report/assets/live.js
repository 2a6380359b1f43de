// Follows what a page shows. A run is asked for new steps; other pages are asked for as a whole,
// which is nothing where they are as before. What changed is put in: no page is loaded again.
"use strict";
(() => {
  const SHORTEST = 2000, EVERY = 4000;
  const main = document.querySelector("main");
  let before = null; // the content as the server wrote it last

  function figuresOf(page) {
    const block = page.getElementById("chart-data");
    return block ? JSON.parse(block.textContent) : {};
  }

  const charts = (part) => Array.from(part.querySelectorAll(".plot"), (plot) => plot.dataset.figure).join();
  const titled = (details) => details.querySelector("summary")?.firstChild?.textContent.trim();

  // A part that the server wrote as before is left alone. Charts stay as long as they are the same
  // ones: they get new figures. What the reader opened or closed stays so.
  function put(page) {
    const fresh = page.querySelector("main"), old = before;
    const open = new Map(Array.from(main.querySelectorAll("details"), (one) => [titled(one), one.open]));
    const alike = main.children.length === fresh.children.length && charts(main) === charts(fresh);
    Array.from(fresh.children).forEach((part, at) => {
      const known = alike && (old ? part.outerHTML === old.children[at]?.outerHTML : charts(part));
      if (alike && !known) main.children[at].replaceWith(document.importNode(part, true));
    });
    if (!alike) main.replaceChildren(...Array.from(fresh.children, (part) => document.importNode(part, true)));
    before = fresh;
    for (const one of main.querySelectorAll("details")) one.open = open.get(titled(one)) ?? one.open;
    for (const plot of main.querySelectorAll(".plot")) plot.dataset.drawn = "yes";
    window.flatline?.update(figuresOf(page));
  }

  const parsed = async (answer) => new DOMParser().parseFromString(await answer.text(), "text/html");

  function followRun(live) {
    let last = Number(live.dataset.last), state = live.dataset.state;
    let tag = null, fresh = live.dataset.fresh === "yes";

    function say(answer) {
      live.querySelector(".state").textContent = answer.state;
      live.querySelector(".at").textContent = `step ${answer.last}`;
      live.dataset.state = answer.state;
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
          const made = await parsed(page);
          fresh = made.querySelector(".live")?.dataset.fresh === "yes";
          put(made);
        }
      }
      return true;
    }

    // A run that is over may go on: it is resumed in the same folder. Then one looks less often.
    async function again() {
      const began = performance.now();
      let well = true;
      try { well = document.hidden || await look(); } catch { well = false; }
      const took = performance.now() - began;
      const pause = Math.max(SHORTEST, 5 * took) * (state === "still running" ? 1 : 5) * (well ? 1 : 3);
      setTimeout(again, pause);
    }
    setTimeout(again, SHORTEST / 2);
  }

  // The first answer is what the reader has: the browser's own copy, unless it changed just now.
  function followPage(take) {
    let tag = null;
    async function look() {
      const asked = tag ? { headers: { "If-None-Match": tag }, cache: "no-store" } : { cache: "no-cache" };
      const answer = await fetch(location.pathname, asked);
      if (answer.status !== 200) return;
      const page = await parsed(answer);
      if (tag) take(page);
      before = page.querySelector("main");
      tag = answer.headers.get("etag");
    }
    async function again() {
      try { if (!document.hidden || !tag) await look(); } catch { /* the server may be gone for a while */ }
      setTimeout(again, document.querySelector(".under-way") ? EVERY / 4 : EVERY);
    }
    again();
  }

  // States, steps and rewards of running runs, and runs that begin. The search stays as it is.
  function putList(page) {
    const list = document.querySelector("div#runs"), made = page.querySelector("div#runs");
    if (!made) return;
    const here = document.activeElement?.getAttribute("href");
    const ticked = Array.from(list.querySelectorAll("input:checked"), (one) => one.value);
    list.replaceChildren(...Array.from(made.children, (part) => document.importNode(part, true)));
    for (const one of list.querySelectorAll("input[type=checkbox]")) one.checked = ticked.includes(one.value);
    if (here) Array.from(list.querySelectorAll("a")).find((link) => link.getAttribute("href") === here)?.focus();
    document.querySelector('form.search input[name="q"]')?.dispatchEvent(new Event("input"));
  }

  // A diagnosis is asked for without leaving the list, which shows how it goes.
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (!form.matches("form.diagnose")) return;
    event.preventDefault();
    try {
      const answer = await fetch(form.action, { method: "POST" });
      if (!answer.ok) throw new Error(answer.statusText);
      putList(await parsed(answer));
    } catch { form.submit(); }
  });

  const live = document.querySelector(".live[data-run]");
  if (live) followRun(live);
  else followPage(document.querySelector("div#runs") ? putList : put);
})();
