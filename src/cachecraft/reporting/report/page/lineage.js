// The candidates of a discovery: all of them over time and fitness, the family of the chosen one, and what it is.
"use strict";

const WIDE = 920, HIGH = 380, LEFT = 46, RIGHT = 12, TOP = 12, FLOOR = 330, FAILED = 352;
const nameOf = (number) => `c${String(number).padStart(4, "0")}`;

/** Lines that stayed, went and came, from the longest common subsequence: [" " | "-" | "+", line] in order. */
function difference(before, after) {
  let start = 0, end = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;
  while (end < before.length - start && end < after.length - start && before.at(-1 - end) === after.at(-1 - end)) end += 1;
  const a = before.slice(start, before.length - end), b = after.slice(start, after.length - end), wide = b.length + 1;
  const same = new Uint32Array((a.length + 1) * wide);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      same[i * wide + j] = a[i] === b[j] ? same[(i + 1) * wide + j + 1] + 1 : Math.max(same[(i + 1) * wide + j], same[i * wide + j + 1]);
    }
  }
  const found = before.slice(0, start).map((line) => [" ", line]);
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i]]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && same[(i + 1) * wide + j] >= same[i * wide + j + 1])) { found.push(["-", a[i]]); i += 1; }
    else { found.push(["+", b[j]]); j += 1; }
  }
  return [...found, ...before.slice(before.length - end).map((line) => [" ", line])];
}

class Lineage {
  constructor(place) {
    this.key = place.dataset.key;
    this.data = dataOf(this.key);
    this.all = new Map(this.data.candidates.map((each) => [each.n, each]));
    this.children = new Map();
    for (const each of this.all.values()) {
      for (const parent of each.p) this.children.set(parent, [...(this.children.get(parent) ?? []), each.n]);
    }
    this.scale();
    this.map = this.drawMap();
    this.family = make("div", { class: "family" });
    this.detail = make("div", { class: "detail" });
    this.said = make("p", { class: "soft", role: "status" });
    const find = make("input", { type: "search", placeholder: "c0042 or a word", "aria-label": "find a candidate; Enter goes to the next one",
      onkeydown: (event) => { if (event.key === "Enter") this.find(find.value); } });
    const step = (way, label) => make("button", { type: "button", "aria-label": label, onclick: () => this.step(way) }, way < 0 ? "←" : "→");
    const best = make("button", { type: "button", onclick: () => this.choose(this.data.best) }, "the best one");
    place.append(make("div", { class: "tools" }, step(-1, "earlier candidate"), step(1, "later candidate"), this.data.best ? best : null, find),
      make("figure", {}, make("div", { class: "wide" }, this.map)), this.said, this.family, this.detail, this.table());
    addEventListener("hashchange", () => this.fromHash(true));
    if (!this.fromHash(false)) this.show(this.data.best ?? this.data.candidates[0]?.n);
  }

  word(number) { return this.data.words[number]; }

  source(each) { return each.src.map((line) => this.data.lines[line]); }

  /** Hopeless candidates are drawn at the lower edge, so that the others stay apart. */
  scale() {
    const values = this.data.candidates.filter((each) => each.f).map((each) => each.f[0]).sort((a, b) => a - b);
    const last = this.data.candidates.at(-1)?.n ?? 1;
    const low = values.length ? Math.max(values[0], Math.min(-0.1, values[Math.floor(values.length / 10)])) : 0;
    const high = Math.max(values.at(-1) ?? 1, low + 0.1);
    this.bounds = [low, high];
    this.x = (each) => LEFT + (WIDE - LEFT - RIGHT) * (last > 1 ? (each.n - 1) / (last - 1) : 0.5);
    this.y = (each) => each.f ? FLOOR - (FLOOR - TOP) * (Math.max(low, each.f[0]) - low) / (high - low) : FAILED;
  }

  edges(pairs) {
    return pairs.map(([a, b]) => `M${this.x(a).toFixed(1)} ${this.y(a).toFixed(1)}L${this.x(b).toFixed(1)} ${this.y(b).toFixed(1)}`).join("");
  }

  /** All candidates as a table, made when it is unfolded: thousands of rows are no burden on a page that is only read. */
  table() {
    const place = make("details", { class: "screen" }, make("summary", {}, "All candidates as a table"));
    const link = (number) => make("button", { type: "button", class: "link", "data-key": this.key, "data-candidate": number }, nameOf(number));
    fillWhenOpened(place, () => {
      const rows = this.data.candidates.map((each) => [link(each.n), this.word(each.s), each.f?.[0] ?? null, each.f?.[1] ?? null,
        each.p.map(nameOf).join(" "), this.word(each.op), this.word(each.b)]);
      const holder = makeTable(["candidate", "state", "fitness", "items", "parents", "operator", "behaviour"], rows,
        { text: [1, 4, 5, 6], csv: `${this.key}-candidates` });
      place.append(holder);
      sortable(holder.firstElementChild);
      offerCsv(holder.firstElementChild);
    });
    return place;
  }

  drawMap() {
    const map = make("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: 0, "aria-label": "Candidates by order and fitness; arrow keys go from one to the next" });
    const [low, high] = this.bounds;
    for (let mark = 0; mark <= 4; mark += 1) {
      const height = FLOOR - (FLOOR - TOP) * mark / 4;
      map.append(make("line", { class: "axis", x1: LEFT, x2: WIDE - RIGHT, y1: height, y2: height }),
        make("text", { x: LEFT - 6, y: height + 4, "text-anchor": "end" }, (low + (high - low) * mark / 4).toFixed(2)));
    }
    map.append(make("text", { x: LEFT - 6, y: FAILED + 4, "text-anchor": "end" }, "none"),
      make("text", { x: WIDE - RIGHT, y: HIGH - 6, "text-anchor": "end" }, "candidates in the order of being proposed →"));
    const parents = this.data.candidates.flatMap((each) => each.p.filter((p) => this.all.has(p)).map((p) => [this.all.get(p), each]));
    this.old = make("path", { class: "line" });
    this.young = make("path", { class: "young" });
    map.append(make("path", { class: "edge", d: this.edges(parents) }), this.young, this.old);
    const size = this.data.candidates.length > 800 ? 2.5 : 4;
    this.dots = new Map();
    for (const each of this.data.candidates) {
      const x = this.x(each), y = this.y(each), state = this.word(each.s);
      const kind = each.f ? "dot" : state === "seen" ? "dot seen" : "dot failed";
      const dot = kind === "dot failed"
        ? make("path", { class: kind, d: `M${x - 3} ${y - 3}L${x + 3} ${y + 3}M${x - 3} ${y + 3}L${x + 3} ${y - 3}`, "data-n": each.n })
        : make("circle", { class: kind, cx: x, cy: y, r: size, "data-n": each.n });
      dot.append(make("title", {}, `${nameOf(each.n)} ${each.f ? each.f[0].toFixed(3) : state}`));
      this.dots.set(each.n, dot);
      map.append(dot);
    }
    map.addEventListener("click", (event) => this.nearest(event));
    map.addEventListener("keydown", (event) => {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (way) { event.preventDefault(); this.step(way); }
    });
    return map;
  }

  /** A click near a dot means that dot: on a phone they are small. */
  nearest(event) {
    const box = this.map.getBoundingClientRect();
    const x = (event.clientX - box.left) * WIDE / box.width, y = (event.clientY - box.top) * HIGH / box.height;
    let found = null, least = 400;
    for (const each of this.data.candidates) {
      const far = (this.x(each) - x) ** 2 + (this.y(each) - y) ** 2;
      if (far < least) { least = far; found = each.n; }
    }
    if (found !== null) this.choose(found);
  }

  step(way) {
    const numbers = this.data.candidates.map((each) => each.n);
    const next = numbers[numbers.indexOf(this.chosen) + way];
    if (next !== undefined) this.choose(next);
  }

  /** Choose a candidate by its number, or the next one that holds a word, from the last one on to the first. */
  find(text) {
    const word = text.trim().toLowerCase(), number = Number(word.replace(/^c/, ""));
    if (!word) return;
    if (this.all.has(number)) return this.choose(number);
    const holds = (each) => this.told(each).includes(word);
    const found = this.data.candidates.find((each) => each.n > this.chosen && holds(each)) ?? this.data.candidates.find(holds);
    if (!found) this.said.textContent = `No candidate holds “${text.trim()}”.`;
    else if (found.n === this.chosen) this.said.textContent = `Only ${nameOf(found.n)} holds “${text.trim()}”.`;
    else this.choose(found.n);
  }

  told(each) { return [each.why, each.r, this.word(each.op), ...this.source(each)].join("\n").toLowerCase(); }

  choose(number) { location.hash = `${this.key}-${`c${number}`}`; }

  fromHash(scroll) {
    const [, key, number] = /^#(.*)-c(\d+)$/.exec(decodeURIComponent(location.hash)) ?? [];
    if (key !== this.key || !this.all.has(Number(number))) return false;
    this.show(Number(number));
    const box = this.map.getBoundingClientRect();
    if (scroll && (box.bottom < 0 || box.top > innerHeight)) this.map.scrollIntoView({ block: "center" });
    return true;
  }

  ancestors(number) {
    const depth = new Map([[number, 0]]), waiting = [number];
    while (waiting.length) {
      const each = this.all.get(waiting.pop());
      for (const parent of each.p.filter((p) => this.all.has(p))) {
        if ((depth.get(parent) ?? -1) < depth.get(each.n) + 1) { depth.set(parent, depth.get(each.n) + 1); waiting.push(parent); }
      }
    }
    return depth;
  }

  show(number) {
    if (number === undefined) return;
    this.dots.get(this.chosen)?.classList.remove("chosen");
    this.chosen = number;
    this.dots.get(number).classList.add("chosen");
    this.map.append(this.dots.get(number));
    const depth = this.ancestors(number), young = this.children.get(number) ?? [];
    const pairs = [...depth.keys()].flatMap((n) => this.all.get(n).p.filter((p) => depth.has(p)).map((p) => [this.all.get(p), this.all.get(n)]));
    this.old.setAttribute("d", this.edges(pairs));
    this.young.setAttribute("d", this.edges(young.map((n) => [this.all.get(number), this.all.get(n)])));
    const inside = [this.family, this.detail].some((part) => part.contains(document.activeElement));
    this.family.replaceChildren(...(depth.size + young.length > 1 ? [drawFamily(this, depth, young)] : []));
    this.family.scrollLeft = this.family.scrollWidth; // the chosen one stands at the right end
    const each = this.all.get(number);
    this.detail.replaceChildren(...describe(this, each, young));
    this.said.textContent = `${nameOf(number)}: ${each.f ? `fitness ${each.f[0].toFixed(3)}` : this.word(each.s)}, ${this.word(each.op)}`;
    if (inside) this.family.querySelector(".chosen")?.focus({ preventScroll: true }); // what had the focus is gone
  }
}
