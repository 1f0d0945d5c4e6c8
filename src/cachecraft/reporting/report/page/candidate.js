// One candidate of a discovery: its family as a small tree, who made it and why, its scores, its program and the diff.
"use strict";

const BOX = 96, ROW = 46, COLUMN = 132, MOST_YOUNG = 8, MOST_LINES = 2000;

/** Ancestors from left to right, the chosen one, and its children. */
function drawFamily(lineage, depth, young) {
  const deepest = Math.max(...depth.values()), columns = new Map();
  const put = (number, column) => columns.set(column, [...(columns.get(column) ?? []), number]);
  [...depth].sort(([a], [b]) => a - b).forEach(([number, level]) => put(number, deepest - level));
  young.slice(0, MOST_YOUNG).forEach((number) => put(number, deepest + 1));
  const most = Math.max(...[...columns.values()].map((column) => column.length));
  const high = most * ROW, wide = Math.max(...columns.keys()) * COLUMN + BOX + 4;
  const places = new Map();
  for (const [column, numbers] of columns) {
    numbers.forEach((number, row) => places.set(number, [column * COLUMN + 2, (row + 0.5 + (most - numbers.length) / 2) * ROW]));
  }
  const tree = make("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": "family" });
  for (const [number, [x, y]] of places) {
    for (const parent of lineage.all.get(number).p.filter((each) => places.has(each))) {
      const [px, py] = places.get(parent), from = px + BOX, middle = (from + x) / 2;
      tree.append(make("path", { class: depth.has(number) ? "line" : "young", d: `M${from} ${py}C${middle} ${py} ${middle} ${y} ${x} ${y}` }));
    }
  }
  for (const [number, [x, y]] of places) {
    const each = lineage.all.get(number), go = () => lineage.choose(number);
    tree.append(make("g", { class: number === lineage.chosen ? "member chosen" : "member", tabindex: 0, role: "button", "data-n": number, onclick: go,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); go(); } } },
    make("rect", { x, y: y - 18, width: BOX, height: 36 }),
    make("text", { x: x + BOX / 2, y: y - 3, "text-anchor": "middle" }, nameOf(number)),
    make("text", { x: x + BOX / 2, y: y + 12, "text-anchor": "middle" }, each.f ? each.f[0].toFixed(3) : lineage.word(each.s)),
    make("title", {}, each.why)));
  }
  return tree;
}

function links(lineage, numbers) {
  return numbers.flatMap((number, place) => [place ? ", " : "",
    make("button", { type: "button", class: "link", onclick: () => lineage.choose(number) }, nameOf(number))]);
}

function facts(lineage, each, young) {
  const [sent, got, money] = each.cost;
  const cost = sent || got || money !== 0 ? `${sent} tokens in, ${got} out, ${money === null ? "money unknown" : `$${money.toFixed(4)}`}` : null;
  const state = lineage.word(each.s), stage = lineage.word(each.t);
  const rows = [
    ["fitness", each.f ? `${each.f[0].toFixed(4)} over ${each.f[1]} items${each.gain === null ? "" : `, ${each.gain >= 0 ? "+" : ""}${each.gain.toFixed(4)} on what it came from`}` : null],
    ["outcome", each.f ? null : state === "seen" ? "no outcome yet" : `${state}${stage ? ` at stage ${stage}` : ""}: ${each.r}`],
    ["made by", `${lineage.word(each.by)}: ${lineage.word(each.op)}`], ["why", each.why], ["cost", cost],
    ["batch", `${each.g + 1}${each.i ? `, island ${each.i + 1}` : ""}`], ["behaviour", lineage.word(each.b)],
  ].filter(([, value]) => value).map(([name, value]) => [name, [value]]);
  if (each.p.length) rows.push([each.p.length > 1 ? "parents" : "parent", links(lineage, each.p)]);
  if (young.length) rows.push(["children", links(lineage, young)]);
  return make("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, ...value)]));
}

const STAGES = ["full", "quick", "error"];  // the last one first

/** Scores per task and budget, a table for each stage and model, the last stage first. */
function scores(lineage, each) {
  const groups = new Map();
  const rank = ([stage]) => (STAGES.indexOf(lineage.word(stage)) + STAGES.length + 1) % (STAGES.length + 1);
  for (const [stage, model, task, budget, value, items] of [...each.sc].sort((a, b) => rank(a) - rank(b))) {
    const key = `${lineage.word(stage)}, ${lineage.word(model)}`;
    groups.set(key, [...(groups.get(key) ?? []), [lineage.word(task), lineage.word(budget), value, items]]);
  }
  return [...groups].map(([key, rows], place) => {
    const budgets = [...new Set(rows.map((row) => row[1]))], tasks = [...new Set(rows.map((row) => row[0]))];
    const at = (task, budget) => rows.find((row) => row[0] === task && row[1] === budget)?.[2] ?? null;
    const items = (task) => rows.find((row) => row[0] === task)[3];
    const table = makeTable(["task", ...budgets.map((budget) => budget === "all" ? "all" : `at ${budget}`), "items"], tasks.map((task) => [task, ...budgets.map((budget) => at(task, budget)), items(task)]), { text: [0] });
    return make("details", place === 0 ? { open: "" } : {}, make("summary", {}, `scores, stage ${key}`), table);
  });
}

function code(rows) {
  const kinds = { "+": "plus", "-": "minus", "…": "gap" };
  return make("pre", {}, ...rows.map(([mark, line]) => kinds[mark] ? make("span", { class: kinds[mark] }, `${mark} ${line}\n`) : `  ${line}\n`));
}

/** Changed lines with three around them; what is further away becomes one line. */
function shortened(rows) {
  const near = rows.map((_, place) => rows.slice(Math.max(0, place - 3), place + 4).some(([mark]) => mark !== " "));
  return rows.flatMap((row, place) => near[place] ? [row] : place === 0 || near[place - 1] ? [["…", ""]] : []);
}

function programs(lineage, each) {
  const own = lineage.source(each), parent = lineage.all.get(each.p[0]), found = [];
  if (parent && own.length < MOST_LINES && parent.src.length < MOST_LINES) {
    found.push(make("h4", {}, `What changed from ${nameOf(parent.n)}`), code(shortened(difference(lineage.source(parent), own))));
  }
  const source = make("details", found.length ? {} : { open: "" }, make("summary", {}, "the whole program"), code(own.map((line) => [" ", line])));
  return [...found, source];
}

function describe(lineage, each, young) {
  const replies = (each.says ?? []).map(([model, outcome, text]) =>
    make("details", {}, make("summary", {}, `what ${model} said${outcome ? ` (${outcome})` : ""}`), make("blockquote", {}, text)));
  return [make("h4", { class: "chosen" }, nameOf(each.n)), facts(lineage, each, young), ...scores(lineage, each), ...programs(lineage, each), ...replies];
}
