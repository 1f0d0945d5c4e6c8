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

/** A table from rows of cells; a cell is a text, a number or an element, a `null` is empty; `csv` names its file. */
function makeTable(columns, rows, { text = [], long = [], csv = "" } = {}) {
  const cell = (tag, value, place) => {
    const shown = typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : value;
    const kind = [text.includes(place) ? "text" : "", long.includes(place) ? "long" : ""].join(" ").trim();
    const number = typeof value === "number" || value === null ? { "data-v": value ?? "" } : {};
    return make(tag, { ...(kind ? { class: kind } : {}), ...number }, shown === null || shown === undefined ? "" : shown instanceof Node ? shown : String(shown));
  };
  const head = make("tr", {}, ...columns.map((name, place) => cell("th", name, place)));
  const body = rows.map((row) => make("tr", {}, ...row.map((value, place) => cell("td", value, place))));
  const table = make("table", csv ? { "data-csv": csv } : {}, make("thead", {}, head), make("tbody", {}, ...body));
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

/** What a cell is sorted by; a number that is missing is NaN. */
function valueOf(cell) {
  if (cell.dataset.v === undefined) return cell.textContent.trim();
  return cell.dataset.v === "" ? NaN : Number(cell.dataset.v);
}

const letters = new Intl.Collator(undefined, { numeric: true });
const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : letters.compare(a, b);

/** Sort a table's rows; those without a number come last either way. */
function sortBy(table, place, descending) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header) => header.removeAttribute("aria-sort"));
  headers[place].setAttribute("aria-sort", descending ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: valueOf(row.cells[place]) }));
  const missing = ({ value }) => Number(Number.isNaN(value));
  rows.sort((a, b) => missing(a) || missing(b) ? missing(a) - missing(b) : (descending ? -1 : 1) * compare(a.value, b.value));
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

/** Headings sort; the order is kept over a reload. */
function sortable(table) {
  const key = `${document.title} sort ${table.dataset.csv}`, headers = [...table.tHead.rows[0].cells];
  const sort = (place, descending) => {
    sortBy(table, place, descending);
    kept.set(key, `${place} ${descending ? 1 : 0}`);
  };
  headers.forEach((header, place) => {
    const button = make("button", { type: "button", title: "sort",
      onclick: () => sort(place, header.getAttribute("aria-sort") !== "descending") }, header.textContent);
    header.replaceChildren(button);
  });
  const [place, descending] = (kept.get(key) ?? "").split(" ");
  if (place && headers[place]) sortBy(table, Number(place), descending === "1");
}

/** A cell of a CSV; a text that a spreadsheet would run as a formula gets an apostrophe. */
function quoted(value) {
  const safe = /^[=+\-@]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

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
  const called = (item) => `${item.task.replace("ruler:", "")}, ${item.length ? `${item.length} tokens, ` : ""}item ${item.number}`;
  const choice = make("select", { "aria-label": "item" }, ...items.map((item, at) => make("option", { value: at }, called(item))));
  const policy = make("select", { "aria-label": "policy" }, make("option", { value: "" }, "all policies"), ...labels.map((label) => make("option", { value: label }, label)));
  const shown = make("div");
  const show = () => {
    const item = items[Number(choice.value)];
    const rows = item.rows.filter((row) => !policy.value || row[0] === policy.value);
    const quote = (name, text) => text ? [make("dt", {}, name), make("dd", {}, make("blockquote", {}, text))] : [];
    shown.replaceChildren(
      make("dl", { class: "facts" },
        ...quote("context", item.context), ...item.needles.flatMap((needle) => quote("needle", needle)),
        ...quote("question", item.question), ...quote("answer begins", item.answer_prefix), ...quote("expected", item.references.join(", "))),
      makeTable(["policy", "budget", "scoring", "score", "% kept", "answer"], rows, { text: [0, 2, 5], long: [5] }));
  };
  const key = `${document.title} items ${place.dataset.key}`;
  const chosen = JSON.parse(kept.get(key) ?? "{}");
  choice.value = Math.max(0, items.findIndex((item) => called(item) === chosen.item));
  policy.value = labels.includes(chosen.policy) ? chosen.policy : "";
  for (const each of [choice, policy]) {
    each.addEventListener("change", () => {
      kept.set(key, JSON.stringify({ item: called(items[Number(choice.value)]), policy: policy.value }));
      show();
    });
  }
  place.append(make("div", { class: "tools" }, choice, policy), shown);
  show();
}

/** While a run goes on: ask now and then whether there is something new, and load it when the reader is not busy. */
function follow() {
  const version = document.body.dataset.live, place = document.getElementById("live");
  if (!version) return;
  let told = place.textContent;
  const tell = (text, ...more) => { // only what is new, or a screen reader would say it again and again
    if (text === told) return;
    told = text;
    place.replaceChildren(text, ...more);
  };
  const ask = async () => {
    try {
      const state = await (await fetch("state", { cache: "no-store" })).json();
      const busy = String(getSelection()) || document.hidden || document.activeElement?.matches("select, input");
      if (state.version !== version && !busy) return location.reload();
      if (state.version !== version) tell("there is something new: ", make("button", { type: "button", class: "link", onclick: () => location.reload() }, "reload"));
      else tell(state.error ? "the run cannot be read now" : "following");
      place.title = state.error;
    } catch {
      tell("the watcher has ended");
    }
    setTimeout(ask, 3000);
  };
  setTimeout(ask, 3000);
}

const fillers = new Map();

/** What is in a folded part is made when it is first opened, by a click or for paper. */
function fillWhenOpened(details, fill) {
  fillers.set(details, fill);
  details.addEventListener("toggle", () => { if (details.open) filled(details); });
}

function filled(details) {
  const fill = fillers.get(details);
  fillers.delete(details);
  fill?.();
}

/** Folded parts stay open, and closed, over a reload, whatever else has come into the page. */
function rememberOpen() {
  const seen = new Map();
  document.querySelectorAll("details").forEach((details) => {
    const name = `${details.closest("section")?.id} ${details.firstElementChild.textContent}`, place = seen.get(name) ?? 0;
    seen.set(name, place + 1);
    const key = `${document.title} open ${name} ${place}`, before = kept.get(key);
    if (before) details.open = before === "1";
    details.addEventListener("toggle", () => kept.set(key, details.open ? "1" : "0"));
  });
}

/** On paper every folded part is open, but for what only a screen has room for. */
function unfoldForPaper() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open], .screen)")];
    for (const each of opened) { filled(each); each.open = true; }
  });
  addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
}

document.addEventListener("DOMContentLoaded", () => {
  themeButton();
  document.querySelectorAll("table.sortable").forEach(sortable);
  document.querySelectorAll("table[data-csv]").forEach(offerCsv);
  document.querySelectorAll(".samples").forEach((place) => fillWhenOpened(place.parentElement, () => samples(place)));
  document.querySelectorAll(".prose").forEach((place) => fillWhenOpened(place.parentElement, () => prose(place)));
  document.querySelectorAll(".lineage").forEach((place) => new Lineage(place));
  rememberOpen();
  unfoldForPaper();
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-candidate]");
    if (button) location.hash = `${button.dataset.key}-c${button.dataset.candidate}`;
  });
  follow();
});
