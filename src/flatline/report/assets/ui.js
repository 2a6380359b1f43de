// Keys and search of the live pages. Everything works without it; it only makes it quicker.
"use strict";
(() => {
  const shown = () => Array.from(document.querySelectorAll(".rows a.row")).filter((one) => one.offsetParent);
  const typing = (target) => target.closest("input, select, textarea");
  const help = document.querySelector("dialog.keys");

  function move(by) {
    const rows = shown();
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement);
    rows[at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + by, 0), rows.length - 1)].focus();
  }

  const follow = (selector) => document.querySelector(selector)?.click();
  const ACTIONS = {
    j: () => move(1),
    k: () => move(-1),
    n: () => follow('a[rel="next"]'),
    p: () => follow('a[rel="prev"]'),
    u: () => follow("a.up"),
    "/": () => document.querySelector("form[role=search] input, form[role=search] select")?.focus(),
    "?": () => help?.showModal(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
    if (typing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const action = ACTIONS[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  document.querySelector("button.help")?.addEventListener("click", () => help?.showModal());

  // The list of runs narrows while one types; the address keeps what was typed.
  const search = document.querySelector('form.search input[name="q"]');
  search?.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = Array.from(document.querySelectorAll("table.runs tbody tr"));
    for (const row of rows) {
      const text = row.dataset.text.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
    document.querySelector("form.search .count").textContent = `${rows.filter((row) => !row.hidden).length} shown`;
    history.replaceState(null, "", search.value ? "?" + new URLSearchParams({ q: search.value }) : location.pathname);
  });

  // Two runs are compared, no more: the button says how many are missing.
  const picked = () => Array.from(document.querySelectorAll('input[form="compare"]'));
  function count() {
    const many = picked().filter((one) => one.checked).length;
    const form = document.getElementById("compare");
    if (!form) return;
    form.querySelector("button").disabled = many !== 2;
    form.querySelector(".aside").textContent = many === 2 ? "" : many > 2 ? `${many} are ticked: leave two.` : `Tick ${many ? "one more" : "two of them"} below.`;
  }
  document.addEventListener("change", (event) => { if (picked().includes(event.target)) count(); });
  window.addEventListener("pageshow", count);

  // Empty fields stay out of the address, so that it can be read and shared.
  document.querySelector("form.filters")?.addEventListener("submit", (event) => {
    for (const field of event.target.elements) if (field.name && !field.value) field.disabled = true;
  });
  window.addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll("form.filters :disabled")) field.disabled = false;
  });
})();
