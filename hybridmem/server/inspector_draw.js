"use strict";
/* Drawing: columns of hits, stacked bars, the reason for one memory, the recipe panel, and paths between columns. */

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 12;
const WORD = /[\p{L}\p{N}_]+/gu, SPEAKER = /^\p{L}[^:\n]{0,23}: /u;
const ARM_PASSAGE = {width: 36, lead: 8, most: 160}, FUSED_PASSAGE = {width: 60, lead: 16, most: 400};
const COMMON = 0.25; /* a query word below this weight is in most of the listed texts */
const colours = new Map();

/* --- small helpers */

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name === "text") element.textContent = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

function paint(element, name) {
  if (!colours.has(name)) colours.set(name, colours.size);
  const number = colours.get(name);
  element.style.setProperty("--swatch", `var(--c${number % COLOURS})`);
  element.classList.toggle("striped", number >= COLOURS && !element.matches(".column, .control"));
  return element;
}

const swatch = name => paint(make("span", {class: "swatch"}), name);
const lossSwatch = () => make("span", {class: "swatch minus"});
const precise = number => number === null ? "–" : Math.abs(number) >= 100 ? number.toFixed(0) : Number(number.toPrecision(3)).toString();
/* Three digits for the highest score of a list, and as many decimals for all others, so that the points are aligned. */
const decimals = scores => {
  const most = Math.max(0, ...scores.filter(score => score !== null).map(Math.abs));
  return most ? Math.max(0, Math.min(4, 2 - Math.floor(Math.log10(most)))) : 0;
};
const signed = number => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(3);

/* The weight of each query word: 1 if one of the texts has it, near 0 if all have it, such as the name of a speaker. */
function weighed(words, texts) {
  const counts = new Map(words.map(word => [word, 0]));
  for (const text of texts)
    for (const word of new Set(text.toLowerCase().match(WORD))) if (counts.has(word)) counts.set(word, counts.get(word) + 1);
  const whole = Math.log(texts.length + 1);
  const weights = [...counts].map(([word, count]) => [word, 1 - Math.log(Math.max(1, count)) / whole]);
  return new Map(weights.some(pair => pair[1] >= COMMON) ? weights : words.map(word => [word, 1]));
}

function highlighted(text, words) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(WORD)) {
    const weight = words.get(match[0].toLowerCase());
    if (weight === undefined) continue;
    parts.push(text.slice(last, match.index), make("mark", {class: weight < COMMON ? "common" : "", text: match[0]}));
    last = match.index + match[0].length;
  }
  return [...parts, text.slice(last)];
}

/* The text from the place where the query words with the most weight are near each other, so that they are visible. */
function passage(text, words, {width, lead, most: limit}) {
  const found = [...text.matchAll(WORD)].map(match => ({at: match.index, word: match[0].toLowerCase()})).filter(one => words.has(one.word));
  let best = 0, most = 0;
  found.forEach((one, n) => {
    const near = new Set();
    for (let i = n; i < found.length && found[i].at < one.at + width; i++) near.add(found[i].word);
    const weight = sum([...near].map(word => words.get(word)));
    if (weight > most + 1e-9) { most = weight; best = one.at; }
  });
  const from = text.indexOf(" ", Math.min(best - lead, text.length - width));
  const start = best < width / 2 || from >= best || from < lead ? 0 : from + 1;
  return (start ? "…" : "") + text.slice(start, start + limit);
}

/* A passage for the fused list: who says it stays in front. */
function excerpt(text, words) {
  const speaker = (SPEAKER.exec(text) || [""])[0];
  return speaker + passage(text.slice(speaker.length), words, FUSED_PASSAGE);
}

/* --- drawing the columns */

function render() {
  const began = performance.now();
  clearWires();
  $("welcome").hidden = current !== null;
  $("columns").hidden = current === null;
  if (current === null) {
    $("status").textContent = "";
    closeDetail({keep: true});
    welcome();
    return;
  }
  const before = tops();
  const places = new Map(current.results.map(one => [one.key, one.rank]));
  const columns = $("columns"), scrolled = [...columns.querySelectorAll(".rows")].map(list => list.scrollTop);
  const focused = columns.contains(document.activeElement) ? document.activeElement.closest(".row") : null;
  const column = focused ? [...columns.children].indexOf(focused.closest(".column")) : -1;
  columns.classList.toggle("many", current.arms.length > 3);
  const flow = document.createElementNS(SVG, "svg");
  flow.id = "flow";
  flow.setAttribute("aria-hidden", "true");
  columns.replaceChildren(flow, ...current.arms.map(arm => armColumn(arm, places)), fusedColumn());
  columns.style.setProperty("--arms", current.arms.length);
  columns.querySelectorAll(".rows").forEach((list, n) => { list.scrollTop = scrolled[n] || 0; });
  drawFlow();
  glide(before);
  if (focused) focusRow(columns.children[column], focused.dataset.key);
  markOpen();
  $("status").textContent = `${current.results.length} results, ${precise(current.milliseconds)} ms`;
  drawGroups(current.groups);
  document.body.dataset.turn = latest;
  document.body.dataset.renderMs = (performance.now() - began).toFixed(1);
}

/* Results that change places glide there, so that the eye can follow. */
const tops = () => new Map([...document.querySelectorAll("#fused .row")].map(row => [row.dataset.key, row.getBoundingClientRect().top]));

function glide(before) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  for (const [key, top] of tops()) {
    const by = before.get(key) - top;
    if (by) document.querySelector(`#fused .row[data-key="${CSS.escape(key)}"]`)
      .animate([{transform: `translateY(${by}px)`}, {transform: "none"}], {duration: 180, easing: "ease-out"});
  }
}

const gold = () => currentCase >= 0 && cases[currentCase] && cases[currentCase].query === state.query ? cases[currentCase].relevant : {};

function armColumn(arm, places) {
  const box = paint(make("section", {class: "column arm", "data-arm": arm.name, "aria-label": `Arm ${arm.name}`}), arm.name);
  const more = arm.count > arm.hits.length ? `, the first ${arm.hits.length} shown` : "";
  box.append(make("header", {}, make("h2", {}, swatch(arm.name), arm.name), make("p", {text: (arm.note || "no hits") + more})));
  const digits = decimals(arm.hits.map(hit => hit.score));
  const rows = arm.hits.map((hit, n) => armRow(arm.name, hit, n + 1, places.get(hit.key), digits));
  box.append(rows.length ? make("ol", {class: "rows"}, ...rows) : make("p", {class: "none", text: "This arm lists nothing for the question."}));
  roving(box);
  return box;
}

function armRow(arm, hit, rank, place, digits) {
  const text = current.texts[hit.key] || hit.key;
  const outcome = place ? `result ${place}` : `not a result: ${hit.reason || "ranked lower"}`;
  const row = make("button", {type: "button", class: "row" + (place ? "" : " lost") + (gold()[hit.key] ? " gold" : ""),
    "data-key": hit.key, "aria-label": `${arm} ${rank}, score ${precise(hit.score)}, ${outcome}: ${text}`},
    make("span", {class: "rank", text: rank}), make("span", {class: "text", dir: "auto"}, ...highlighted(passage(text, current.words, ARM_PASSAGE), current.words)),
    make("span", {class: "number", text: hit.score === null ? "" : hit.score.toFixed(digits)}),
    make("span", {class: "place", text: place ? place : "–"}));
  return make("li", {}, row);
}

function fusedColumn() {
  const box = make("section", {class: "column fused", "data-overlay": true, "aria-label": "Fused results"});
  const parts = current.results.flatMap(one => one.parts), has = (name, sign) => parts.some(part => part[0] === name && part[1] * sign > 0);
  const names = [...new Set([...current.arms.map(arm => arm.name), ...parts.map(part => part[0])])].filter(name => has(name, 1) || has(name, -1));
  const legend = make("div", {class: "legend"}, ...names.map(name => make("span", {"data-name": name}, has(name, 1) ? swatch(name) : lossSwatch(), name)));
  box.append(make("header", {}, make("h2", {text: "fused"}), legend, ...current.remarks.map(text => make("p", {class: "remark", text}))));
  const most = longest();
  const rows = current.results.map(one => make("li", {}, fusedRow(one, most)));
  box.append(rows.length ? make("ol", {class: "rows", id: "fused"}, ...rows) : make("p", {class: "none", text: `Nothing matches this question${state.filter || state.asOf ? " under the filter and the time above" : ""}.`}));
  roving(box);
  return box;
}

const sum = numbers => numbers.reduce((total, number) => total + number, 0);

/* The sum of gains that fills a bar: that of the result with the highest one. */
const gained = one => sum(one.parts.map(part => Math.max(0, part[1] || 0)));
const longest = () => Math.max(1e-9, ...(current ? current.results.map(gained) : []));

function fusedRow(one, most) {
  const text = current.texts[one.key] || one.key, moved = move(one);
  const said = one.parts.map(part => `${part[0]}: ${part[2]}`).join("; ");
  return make("button", {type: "button", class: "row" + (gold()[one.key] ? " gold" : ""), "data-key": one.key,
    "aria-label": `Result ${one.rank}, score ${precise(one.score)}${moved.say}: ${text}. ${said}`},
    make("span", {class: "rank", text: one.rank}), make("span", {class: "text", dir: "auto"}, ...highlighted(excerpt(text, current.words), current.words)),
    make("span", {class: "number"}, one.score === null ? "" : one.score.toFixed(3), make("span", {class: "move " + moved.kind, text: moved.text})),
    bar(one.parts, most));
}

function move(one) {
  const before = baseRanks && baseRanks.id === current.id ? baseRanks.of.get(one.key) : one.rank;
  if (before === undefined) return {kind: "up", text: "new", say: ", new"};
  const by = before - one.rank;
  if (!by) return {kind: "", text: "", say: ""};
  return by > 0 ? {kind: "up", text: `▲${by}`, say: `, up ${by}`} : {kind: "down", text: `▼${-by}`, say: `, down ${-by}`};
}

/* Parts that add are segments; what other parts take away is hatched at the end. */
function bar(parts, most) {
  const box = make("span", {class: "bar", "aria-hidden": "true"});
  const gains = sum(parts.map(part => Math.max(0, part[1] || 0))), loss = -sum(parts.map(part => Math.min(0, part[1] || 0)));
  for (const [name, value, text] of parts) {
    if (!(value > 0)) continue;
    const piece = paint(make("i", {"data-part": name, "data-tip": `${signed(value)}  ${text}`}), name);
    piece.style.width = `${100 * value * Math.max(0, gains - loss) / gains / most}%`;
    box.append(piece);
  }
  if (loss > 0) {
    const lost = parts.filter(part => part[1] < 0);
    const piece = make("i", {class: "minus", "data-part": lost.map(part => part[0]).join(", "), "data-tip": lost.map(part => `${signed(part[1])}  ${part[2]}`).join("\n")});
    piece.style.width = `${100 * Math.min(loss, gains) / most}%`;
    box.append(piece);
  }
  return box;
}

function welcome() {
  const box = $("welcome");
  if (start === null) { box.replaceChildren(); return; }
  if (start.count === 0) {
    box.replaceChildren(make("h2", {text: "This memory is empty."}), make("p", {text: "Add something, then ask a question here."}),
      make("pre", {text: 'memory.add("Ana has moved to Lisbon.", subject="ana")'}), guide(), keys());
    return;
  }
  const examples = cases.length ? cases.slice(0, 5).map(one => one.query) : start.examples;
  const size = start.count === null ? "" : `${start.count.toLocaleString("en")} ${start.unit} in this store. `;
  box.replaceChildren(make("h2", {text: "Ask a question"}),
    make("p", {text: size + (examples.length ? "Try one of these, or type your own." : "Type it above.")}),
    make("ul", {}, ...examples.map(text => make("li", {}, make("button", {type: "button", class: "example", dir: "auto", text, onclick: () => ask(text)})))), guide(), keys());
}

const guide = () => make("ul", {class: "guide"}, ...[["c0", "A column per arm", "What each arm listed, best first. The number on the right is the place in the results."],
  [null, "Fused", "One bar per result: a colour for each arm, and for each piece of evidence that added to its score."],
  ["c2", "Why, and why not", "Click any hit to read why it is a result, or what it lacks. Move a slider to see the ranking change."]]
  .map(([colour, title, text]) => {
    const card = make("li", {}, make("b", {text: title}), text);
    if (colour) card.style.setProperty("--swatch", `var(--${colour})`);
    return card;
  }));

const keys = () => make("p", {class: "keys"}, ...[["/", "ask"], ["↑ ↓ ← →", "move between hits"], ["Enter", "why"], ["Esc", "close"]]
  .map(([key, text]) => make("span", {}, make("kbd", {text: key}), " " + text)));

/* --- why (not) */

function drawDetail(answer) {
  const words = current ? current.words : new Map(), result = answer.result;
  const head = make("header", {"data-overlay": true}, make("span", {class: "verdict" + (result ? " in" : ""), text: result ? `result ${result.rank}` : "not in the results"}),
    make("span", {class: "key", dir: "auto", text: answer.key}), make("button", {type: "button", class: "icon", "aria-label": "Close", text: "×", onclick: () => closeDetail()}));
  const left = make("div"), right = make("div");
  if (answer.text) left.append(make("p", {class: "said", dir: "auto"}, ...highlighted(answer.text, words)));
  if (!result) {
    const said = answer.why.startsWith(answer.key + ": ") ? answer.why.slice(answer.key.length + 2) : answer.why;
    const near = answer.wide ? `. Its score is ${answer.wide.score.toFixed(4)}; the last result has ${answer.last.toFixed(4)}.` : ".";
    left.append(make("p", {class: "why", text: said.charAt(0).toUpperCase() + said.slice(1) + near}));
  }
  const scored = result || answer.wide, named = new Set(scored ? scored.parts.map(part => part[0]) : []);
  const ranks = Object.entries(answer.ranks).filter(([arm]) => !named.has(arm)).map(([arm, listed]) => {
    const place = listed || answer.beyond[arm];
    const said = place ? (place[1] === null ? "listed" : `raw score ${precise(place[1])}`) + (listed ? "" : ", below the hits that the arm lists") : "not listed by this arm";
    return make("li", {}, swatch(arm), make("span", {text: arm}), make("span", {class: "number", text: place ? `#${place[0]}` : "–"}), make("span", {class: "sentence", text: said}));
  });
  if (scored) {
    const parts = scored.parts.map(([name, value, text]) => make("li", {}, value < 0 ? lossSwatch() : swatch(name), make("span", {text: name}),
      make("span", {class: "number", text: value ? signed(value) : ""}), make("span", {class: "sentence", text})));
    left.append(block(`Score ${scored.score.toFixed(3)}`, bar(scored.parts, Math.max(longest(), gained(scored))), make("ul", {class: "parts"}, ...parts)));
    if (scored.degraded) left.append(make("p", {class: "why", text: "Nothing passed the gate: this is the list of the fallback arm."}));
  }
  if (!result && answer.text && ranks.length) left.append(block("In the arms", make("ul", {class: "parts"}, ...ranks)));
  if (answer.path.length) left.append(block("Graph path", make("p", {text: answer.path.join(" → ")})));
  if (Object.keys(answer.fields).length) right.append(block("Fields", fieldList(answer.fields)));
  if (answer.thread.length > 1) right.append(block("Thread", make("ul", {class: "thread"}, ...answer.thread.map(one => make("li", {},
    make("button", {type: "button", class: one.here ? "here" : "", dir: "auto", text: one.text, title: one.text, onclick: () => explain(one.id)}))))));
  if (answer.history.length > 1) right.append(block("History", make("ol", {class: "versions"}, ...answer.history.map(one => make("li", {},
    make("time", {text: one.at.replace("T", " ").slice(0, 16)}), make("span", {dir: "auto", text: one.status === "active" ? one.text : `${one.status}: ${one.text}`}))))));
  if (answer.text && !right.childElementCount) right.append(block("Fields", make("p", {class: "quiet", text: "This source stores no fields or history."})));
  $("detail").replaceChildren(head, make("div", {class: "facts"}, left, right));
  $("detail").hidden = false;
  $("detail").scrollTop = 0;
  clearWires();
}

const block = (title, ...content) => make("div", {}, make("h3", {text: title}), ...content);

function fieldList(fields) {
  const list = make("dl", {class: "fields"});
  for (const [name, value] of Object.entries(fields))
    list.append(make("dt", {text: name}), make("dd", {dir: "auto", text: typeof value === "object" ? JSON.stringify(value) : String(value)}));
  return list;
}

/* --- the recipe panel */

function drawGroups(groups) {
  const shape = JSON.stringify(groups.map(group => [group.id, group.on, group.controls.map(one => [one.path, one.kind, one.options])]));
  if (drawGroups.shape !== shape) {
    drawGroups.shape = shape;
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.path : null;
    $("groups").replaceChildren(...groups.map(groupBox));
    const again = focused && document.querySelector(`[data-path="${CSS.escape(focused)}"]`);
    if (again) again.focus();
  }
  for (const group of groups) for (const one of group.controls) showValue(one);
  for (const group of groups) $("group-" + group.id).querySelector(".help").textContent = group.help;
  const number = Object.keys(state.changes).length;
  $("changed").textContent = number ? `${number} changed` : "";
  $("reset").disabled = number === 0 && state.base === null;
}

const unfolded = new Set();

function groupBox(group) {
  const box = make("fieldset", {class: "group" + (group.on === false ? " off" : ""), id: "group-" + group.id});
  const title = make("legend");
  if (group.on === undefined) title.textContent = group.label;
  else title.append(make("label", {}, make("input", {type: "checkbox", "data-path": group.id, checked: group.on, onchange: event => change(group.id, event.target.checked)}), make("span", {text: group.label})));
  const further = group.controls.filter(one => one.further);
  box.append(title, make("p", {class: "help", text: group.help}), ...group.controls.filter(one => !one.further).map(controlBox));
  if (further.length) {
    const open = unfolded.has(group.id) || further.some(one => one.path in state.changes);
    box.append(make("details", {class: "further", open, ontoggle: event => unfolded[event.target.open ? "add" : "delete"](group.id)},
      make("summary", {text: `${further.length} more setting${further.length > 1 ? "s" : ""}`}), ...further.map(controlBox)));
  }
  return box;
}

function controlBox(one) {
  const id = "control-" + one.path, box = make("div", {class: "control", "data-control": one.path, "data-name": one.label});
  const name = make("span", {class: "name"}), label = make("label", {for: id}, name);
  if (start.arms.some(arm => one.path.endsWith("/" + arm))) {
    const arm = start.arms.find(name => one.path.endsWith("/" + name));
    paint(box, arm);
    name.append(swatch(arm));
  }
  if (one.path.startsWith("evidence/")) {
    paint(box, one.label);
    name.append(swatch(one.label));
  }
  name.append(one.label);
  let input;
  if (one.kind === "choice") {
    input = make("select", {id, "data-path": one.path, onchange: event => change(one.path, event.target.value)}, ...one.options.map(text => make("option", {text})));
    label.append(input);
    box.append(label);
  } else if (one.kind === "flag") {
    input = make("input", {type: "checkbox", id, "data-path": one.path, onchange: event => change(one.path, event.target.checked)});
    label.append(input);
    box.append(label);
  } else {
    input = make("input", {type: "range", id, "data-path": one.path, min: one.min, max: one.max, step: one.step, oninput: event => change(one.path, Number(event.target.value))});
    label.append(make("output", {for: id}));
    box.append(label, input);
  }
  if (one.help) box.append(make("small", {text: one.help}));
  return box;
}

function showValue(one) {
  const box = document.querySelector(`[data-control="${CSS.escape(one.path)}"]`), input = box.querySelector("[data-path]");
  const value = one.path in state.changes ? state.changes[one.path] : one.value;
  if (one.kind === "flag") input.checked = value;
  else if (input !== document.activeElement || one.kind === "choice" || Number(input.value) !== value) input.value = value;
  if (one.kind === "range") fill(input, value);
  box.classList.toggle("changed", one.path in state.changes);
}

function fill(input, value) {
  input.style.setProperty("--fill", `${100 * (value - input.min) / (input.max - input.min || 1)}%`);
  input.closest(".control").querySelector("output").textContent = precise(value);
}

/* --- cases */

function drawFigures(rows) {
  const now = figures(rows), whole = rows.length === cases.length;
  const figure = (label, value, before) => {
    const by = before === undefined || !whole ? 0 : value - before;
    return make("div", {}, make("b", {text: value.toFixed(3)}), Math.abs(by) > 5e-4 ? make("span", {class: by > 0 ? "up" : "down", text: " " + signed(by)}) : null, make("div", {}, make("span", {text: label})));
  };
  const failing = rows.filter(row => row.recall < 1).length;
  $("figures").replaceChildren(figure(`recall@${state.k}`, now.recall, baseFigures ? baseFigures.recall : undefined), figure(`MRR@${state.k}`, now.mrr, baseFigures ? baseFigures.mrr : undefined),
    make("p", {text: whole ? `${cases.length} questions, ${failing} miss a relevant memory` : `${rows.length} of ${cases.length} questions`}));
  $("figures").hidden = false;
  $("figures").dataset.done = whole;
}

function drawCases() {
  const only = $("only-failing").checked, rows = [];
  cases.forEach((one, n) => {
    const judged = measured[n];
    if (only && judged && judged.recall >= 1) return;
    const kind = !judged ? "" : judged.recall === 0 ? "miss" : judged.recall < 1 ? "part" : "hit";
    const sign = {miss: "✕", part: "◐", hit: "✓"}[kind] || "·", say = {miss: "missed", part: "partly found", hit: "found"}[kind] || "not measured";
    const note = [one.category, judged && judged.missing.length ? `${judged.missing.length} of ${Object.keys(one.relevant).length} missing` : ""].filter(Boolean).join(" · ");
    rows.push(make("li", {}, make("button", {type: "button", class: kind, "data-case": n, "aria-current": n === currentCase, onclick: () => openCase(n)},
      make("span", {class: "sign", role: "img", "aria-label": say, text: sign}), make("span", {dir: "auto", text: one.query}), note ? make("small", {text: note}) : null)));
  });
  $("case-list").replaceChildren(...(rows.length ? rows : [make("li", {class: "none", text: "Every question finds all its relevant memories."})]));
}

/* --- highlighting and paths */

function point(key) {
  clearWires();
  if (!key || !current) return;
  const rows = [...document.querySelectorAll(`.row[data-key="${CSS.escape(key)}"]`)];
  for (const row of rows) row.classList.add("same");
  if (getComputedStyle($("wires")).display === "none") return;
  const ends = rows.map(row => ({row, box: inList(row), arm: row.closest(".column").dataset.arm}));
  ends.forEach((end, n) => {
    const next = ends.slice(n + 1).find(other => other.box.left > end.box.right);
    if (next) wire(end.box.right, end.box.y, next.box.left, next.box.y, end.arm);
  });
  const path = current.paths[key], fused = ends.find(end => !end.arm);
  if (fused && path && path[0] !== key) {
    const seed = document.querySelector(`.fused .row[data-key="${CSS.escape(path[0])}"]`);
    if (seed) loop(inList(seed), fused.box);
  }
}

/* A line per result from each list to the next one that has it, behind the columns; rows out of view have none. */
function drawFlow() {
  const flow = $("flow");
  if (!flow || !current || getComputedStyle(flow).display === "none") return;
  const origin = $("columns").getBoundingClientRect();
  const columns = [...document.querySelectorAll(".column")].map(column => {
    const list = column.querySelector(".rows"), view = list && list.getBoundingClientRect(), heights = new Map();
    for (const row of list ? list.querySelectorAll(".row:not(.lost)") : []) {
      const box = row.getBoundingClientRect(), y = (box.top + box.bottom) / 2;
      if (y > view.top && y < view.bottom) heights.set(row.dataset.key, y - origin.top);
    }
    const box = column.getBoundingClientRect();
    return {arm: column.dataset.arm, left: box.left - origin.left, right: box.right - origin.left, heights};
  });
  flow.replaceChildren(...current.results.flatMap((one, n) => {
    const stops = columns.filter(column => column.heights.has(one.key));
    return stops.slice(1).map((next, i) => {
      const line = curve(stops[i].right, stops[i].heights.get(one.key), next.left, next.heights.get(one.key), stops[i].arm);
      line.style.opacity = Math.max(0.3, 0.85 - 0.08 * n);
      return line;
    });
  }));
}

/* The middle of a row, kept inside the visible part of its list. */
function inList(row) {
  const box = row.getBoundingClientRect(), list = row.closest(".rows").getBoundingClientRect();
  return {left: box.left - 1, right: box.right + 1, y: Math.max(list.top + 4, Math.min(list.bottom - 4, (box.top + box.bottom) / 2))};
}

function curve(x1, y1, x2, y2, arm) {
  const bend = Math.max(14, (x2 - x1) / 2);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1},${x2 - bend} ${y2},${x2} ${y2}`);
  path.style.stroke = `var(--c${(colours.get(arm) || 0) % COLOURS})`;
  return path;
}

function wire(x1, y1, x2, y2, arm) {
  const path = curve(x1, y1, x2, y2, arm);
  $("wires").append(path);
  for (const [x, y] of [[x1, y1], [x2, y2]]) {
    const dot = document.createElementNS(SVG, "circle");
    for (const [name, value] of [["cx", x], ["cy", y], ["r", 4]]) dot.setAttribute(name, value);
    dot.style.fill = path.style.stroke;
    $("wires").append(dot);
  }
}

function loop(seed, end) {
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("class", "link");
  path.setAttribute("d", `M${seed.right} ${seed.y}C${seed.right + 16} ${seed.y},${end.right + 16} ${end.y},${end.right} ${end.y}`);
  $("wires").append(path);
}

/* Points out one part in every bar; null shows all parts again. */
function emphasise(name) {
  const known = name !== null && document.querySelector(`.fused .bar i[data-part="${CSS.escape(name)}"]`);
  for (const piece of document.querySelectorAll(".fused .bar i")) piece.classList.toggle("dim", Boolean(known) && piece.dataset.part !== name);
}

function clearWires() {
  $("wires").replaceChildren();
  for (const row of document.querySelectorAll(".row.same")) row.classList.remove("same");
}

function tip(piece, x, y) {
  $("tip").hidden = !piece;
  if (!piece) return;
  $("tip").replaceChildren(make("b", {text: piece.dataset.part}), ...piece.dataset.tip.split("\n").map(line => make("div", {text: line})));
  const box = $("tip").getBoundingClientRect();
  $("tip").style.left = `${Math.max(6, Math.min(innerWidth - box.width - 6, x - box.width / 2))}px`;
  $("tip").style.top = `${y + box.height + 18 < innerHeight ? y + 18 : y - box.height - 14}px`; /* the text above the bar stays visible */
}

/* --- keyboard */

function roving(column) {
  column.querySelectorAll(".row").forEach((row, n) => { row.tabIndex = n ? -1 : 0; });
}

function focusRow(column, key) {
  const row = column && (column.querySelector(`.row[data-key="${CSS.escape(key)}"]`) || column.querySelector(".row"));
  if (!row) return;
  for (const other of column.querySelectorAll(".row")) other.tabIndex = -1;
  row.tabIndex = 0;
  row.focus({preventScroll: true});
}

function arrows(event, row) {
  const rows = [...row.closest(".column").querySelectorAll(".row")], columns = [...document.querySelectorAll(".column")];
  const n = rows.indexOf(row), here = columns.indexOf(row.closest(".column"));
  let target = {ArrowDown: rows[n + 1], ArrowUp: rows[n - 1], Home: rows[0], End: rows[rows.length - 1]}[event.key];
  if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
    const next = columns[here + (event.key === "ArrowRight" ? 1 : -1)];
    if (next) target = next.querySelector(`.row[data-key="${CSS.escape(row.dataset.key)}"]`) || next.querySelectorAll(".row")[Math.min(n, next.querySelectorAll(".row").length - 1)];
  }
  if (!target) return;
  event.preventDefault();
  focusRow(target.closest(".column"), target.dataset.key);
  target.scrollIntoView({block: "nearest"});
}
