// What every part of the report does: theme, sortable tables, CSV, single items, following a run that is going on.
// Text from a run reaches the page as text nodes only, never as markup.
"use strict";

/** An element with attributes and children; children that are texts become text nodes. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "circle", "rect", "text", "line", "title"].includes(name);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** A value kept while the page is reloaded; a browser that keeps nothing for files is no reason to fail. */
const kept = {
  get(key) { try { return sessionStorage.getItem(`cachecraft ${key}`); } catch { return null; } },
  set(key, value) { try { sessionStorage.setItem(`cachecraft ${key}`, value); } catch { /* nothing is kept */ } },
};

function dataOf(key) {
  const holder = document.getElementById(`data-${key}`);
  return holder ? JSON.parse(holder.textContent) : null;
}

/** A table from rows of cells; a cell is a text, a number or an element, a `null` is empty. */
function makeTable(columns, rows, { text = [], long = [] } = {}) {
  const cell = (tag, value, place) => {
    const shown = typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : value;
    const kind = [text.includes(place) ? "text" : "", long.includes(place) ? "long" : ""].join(" ").trim();
    return make(tag, kind ? { class: kind } : {}, shown === null || shown === undefined ? "" : shown instanceof Node ? shown : String(shown));
  };
  const head = make("tr", {}, ...columns.map((name, place) => cell("th", name, place)));
  const body = rows.map((row) => make("tr", {}, ...row.map((value, place) => cell("td", value, place))));
  const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { class: "table" }, table);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  kept.set("theme", theme);
}

function themeButton() {
  if (kept.get("theme")) setTheme(kept.get("theme"));
  const dark = () => document.documentElement.dataset.theme
    ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => setTheme(dark() ? "light" : "dark"));
}

const valueOf = (cell) => cell.dataset.v !== undefined ? Number(cell.dataset.v) : cell.textContent.trim();

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return (Number.isNaN(a) ? -Infinity : a) - (Number.isNaN(b) ? -Infinity : b);
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

function sortBy(table, place) {
  const headers = [...table.tHead.rows[0].cells];
  const descending = headers[place].getAttribute("aria-sort") !== "descending";
  headers.forEach((header) => header.removeAttribute("aria-sort"));
  headers[place].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => (descending ? -1 : 1) * compare(valueOf(a.cells[place]), valueOf(b.cells[place])));
  table.tBodies[0].append(...rows);
}

function sortable(table) {
  [...table.tHead.rows[0].cells].forEach((header, place) => {
    const button = make("button", { type: "button", title: "sort", onclick: () => sortBy(table, place) }, header.textContent);
    header.replaceChildren(button);
  });
}

const quoted = (value) => /[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;

function asCsv(table) {
  const rows = [...table.rows].map((row) => [...row.cells].map((cell) => quoted(cell.dataset.v ?? cell.textContent.trim())));
  return rows.map((row) => row.join(",")).join("\n") + "\n";
}

function offerCsv(table) {
  const save = () => {
    const link = make("a", { download: `${table.dataset.csv}.csv`, href: URL.createObjectURL(new Blob([asCsv(table)], { type: "text/csv" })) });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  table.parentElement.after(make("button", { type: "button", class: "csv", onclick: save }, "CSV"));
}

/** The items of an evaluation: one is chosen, its prompt and every answer are shown. */
function samples(place) {
  const { items } = dataOf(place.dataset.key);
  const labels = [...new Set(items.flatMap((item) => item.rows.map((row) => row[0])))];
  const choice = make("select", { "aria-label": "item" }, ...items.map((item, at) => make("option", { value: at }, `${item.task.replace("ruler:", "")}, item ${item.number}`)));
  const policy = make("select", { "aria-label": "policy" }, make("option", { value: "" }, "all policies"), ...labels.map((label) => make("option", { value: label }, label)));
  const shown = make("div");
  const show = () => {
    const item = items[Number(choice.value)];
    const rows = item.rows.filter((row) => !policy.value || row[0] === policy.value);
    const quote = (name, text) => text ? [make("dt", {}, name), make("dd", {}, make("blockquote", {}, text))] : [];
    shown.replaceChildren(
      make("dl", { class: "facts" },
        ...quote("context", `${item.context_start} … ${item.context_end}`), ...item.needles.flatMap((needle) => quote("needle", needle)),
        ...quote("question", item.question), ...quote("answer begins", item.answer_prefix), ...quote("expected", item.references.join(", "))),
      makeTable(["policy", "budget", "scoring", "score", "% kept", "answer"], rows, { text: [0, 2, 5], long: [5] }));
  };
  choice.addEventListener("change", show);
  policy.addEventListener("change", show);
  place.append(make("div", { class: "tools" }, choice, policy), shown);
  show();
}

/** While a run goes on: ask now and then whether there is something new, and load it when the reader is not busy. */
function follow() {
  const version = document.body.dataset.live;
  if (!version) return;
  const ask = async () => {
    try {
      const state = await (await fetch("state", { cache: "no-store" })).json();
      const busy = String(getSelection()) || document.hidden || document.activeElement?.matches("select, input");
      if (String(state.version) !== version && !busy) return location.reload();
      document.getElementById("live").textContent = "following";
    } catch {
      document.getElementById("live").textContent = "the watcher has ended";
    }
    setTimeout(ask, 3000);
  };
  setTimeout(ask, 3000);
}

/** Folded parts stay open over a reload. */
function rememberOpen(details, place) {
  const key = `open ${place} ${details.firstElementChild.textContent}`;
  if (kept.get(key) === "1") details.open = true;
  details.addEventListener("toggle", () => kept.set(key, details.open ? "1" : "0"));
}

document.addEventListener("DOMContentLoaded", () => {
  themeButton();
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("table[data-csv]").forEach(offerCsv);
  document.querySelectorAll(".samples").forEach((place) => {
    place.parentElement.addEventListener("toggle", () => { if (!place.children.length) samples(place); });
  });
  document.querySelectorAll("details").forEach(rememberOpen);
  document.querySelectorAll(".lineage").forEach((place) => new Lineage(place));
  document.querySelectorAll("button[data-candidate]").forEach((button) => button.addEventListener("click", () => {
    location.hash = `${button.dataset.key}-c${button.dataset.candidate}`;
  }));
  follow();
});
