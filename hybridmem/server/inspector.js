"use strict";
/* The inspector page. State lives in `state` and in the URL; the server answers api/<action> without keeping state. */

const $ = id => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const COLOURS = 8;
const state = {query: "", k: 8, filter: "", asOf: "", namespace: null, changes: {}, base: null, open: null};
let start = null, shown = null, baseRanks = null, baseValues = {}, latest = 0, timer = 0;
let cases = [], measured = [], baseFigures = null, caseTurn = 0, currentCase = -1;
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
const precise = number => number === null ? "–" : Math.abs(number) >= 100 ? number.toFixed(0) : Number(number.toPrecision(3)).toString();
const signed = number => (number < 0 ? "−" : "+") + Math.abs(number).toFixed(3);

function highlighted(text, words) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(/[\p{L}\p{N}_]+/gu)) {
    if (!words.has(match[0].toLowerCase())) continue;
    parts.push(text.slice(last, match.index), make("mark", {text: match[0]}));
    last = match.index + match[0].length;
  }
  return [...parts, text.slice(last)];
}

function toast(text) {
  $("toast").textContent = text;
  $("toast").hidden = false;
  clearTimeout(toast.timer);
  toast.timer = setTimeout(() => { $("toast").hidden = true; }, 2600);
}

async function call(action, body) {
  const stop = new AbortController(), late = setTimeout(() => stop.abort(), 30000);
  try {
    const reply = await fetch("api/" + action, {method: "POST", body: JSON.stringify(body), signal: stop.signal});
    const data = await reply.json();
    if (!reply.ok) throw new Error(data.error || reply.statusText);
    $("error").hidden = true;
    return data;
  } catch (error) {
    const gone = error.name === "AbortError" || error instanceof TypeError;
    fail(gone ? "The inspector does not answer. Is it still running?" : error.message);
    return null;
  } finally { clearTimeout(late); }
}

function fail(text) { $("error").textContent = text; $("error").hidden = false; }

/* --- state and URL */

function request(more = {}) {
  let filter = null;
  if (state.filter.trim()) filter = JSON.parse(state.filter);
  return {query: state.query, k: state.k, filter, as_of: state.asOf || null, namespace: state.namespace,
    base: state.base, changes: state.changes, ...more};
}

function writeUrl() {
  const values = new URLSearchParams();
  if (state.query) values.set("q", state.query);
  if (start && state.k !== start.k) values.set("k", state.k);
  if (state.filter) values.set("filter", state.filter);
  if (state.asOf) values.set("as_of", state.asOf);
  if (start && state.namespace !== start.home) values.set("namespace", state.namespace);
  if (state.base) values.set("base", JSON.stringify(state.base));
  if (Object.keys(state.changes).length) values.set("changes", JSON.stringify(state.changes));
  if (state.open) values.set("open", state.open);
  history.replaceState(null, "", values.size ? "#" + values : location.pathname);
}

function readUrl() {
  const values = new URLSearchParams(location.hash.slice(1));
  const json = name => { try { return JSON.parse(values.get(name)); } catch { return null; } };
  state.query = values.get("q") || "";
  state.k = Math.max(1, Math.min(100, parseInt(values.get("k"), 10) || 8));
  state.filter = values.get("filter") || "";
  state.asOf = values.get("as_of") || "";
  state.namespace = values.get("namespace");
  state.base = json("base");
  state.changes = json("changes") || {};
  state.open = values.get("open");
  $("query").value = state.query; $("k").value = state.k; $("filter").value = state.filter; $("as-of").value = state.asOf;
}

/* --- search */

function soon(delay = 40) { clearTimeout(timer); timer = setTimeout(search, delay); }

async function search({fresh = false} = {}) {
  const turn = ++latest;
  writeUrl();
  if (!state.query.trim()) { shown = null; render(); return; }
  let body;
  try { body = request(); } catch { fail("The filter is not JSON. Example: {\"tags\": {\"$contains\": \"home\"}}"); return; }
  $("status").textContent = "…";
  const changed = Object.keys(state.changes).length > 0;
  const id = JSON.stringify([body.query, body.k, body.filter, body.as_of, body.namespace, body.base]);
  if (changed && (fresh || baseRanks === null || baseRanks.id !== id)) {
    const plain = await call("search", {...body, changes: {}});
    if (plain === null || turn !== latest) return;
    baseRanks = {id, of: new Map(plain.results.map(one => [one.key, one.rank]))};
  }
  const answer = await call("search", body);
  if (turn !== latest) return;
  if (answer === null) { $("status").textContent = ""; return; }
  shown = {...answer, id, words: new Set(answer.words)};
  if (!changed) baseRanks = {id, of: new Map(answer.results.map(one => [one.key, one.rank]))};
  render();
  if (state.open) explain(state.open, {quiet: true});
}

/* --- drawing the columns */

function render() {
  const began = performance.now();
  clearWires();
  $("welcome").hidden = shown !== null;
  $("columns").hidden = shown === null;
  if (shown === null) {
    $("status").textContent = "";
    closeDetail({keep: true});
    welcome();
    return;
  }
  const places = new Map(shown.results.map(one => [one.key, one.rank]));
  const columns = $("columns"), scrolled = [...columns.querySelectorAll(".rows")].map(list => list.scrollTop);
  columns.classList.toggle("many", shown.arms.length > 3);
  columns.replaceChildren(...shown.arms.map(arm => armColumn(arm, places)), fusedColumn());
  columns.style.gridTemplateColumns = matchMedia("(min-width: 900px)").matches && shown.arms.length <= 3
    ? `repeat(${shown.arms.length}, minmax(0, 1fr)) minmax(0, 1.45fr)` : "";
  columns.querySelectorAll(".rows").forEach((list, n) => { list.scrollTop = scrolled[n] || 0; });
  $("status").textContent = `${shown.results.length} results, ${shown.milliseconds} ms`;
  drawGroups(shown.groups);
  document.body.dataset.turn = latest;
  document.body.dataset.renderMs = (performance.now() - began).toFixed(1);
}

const gold = () => currentCase >= 0 && cases[currentCase] && cases[currentCase].query === state.query ? cases[currentCase].relevant : {};

function armColumn(arm, places) {
  const box = paint(make("section", {class: "column arm", "data-arm": arm.name, "aria-label": `Arm ${arm.name}`}), arm.name);
  const more = arm.count > arm.hits.length ? `, first ${arm.hits.length} shown` : "";
  box.append(make("header", {}, make("h2", {}, swatch(arm.name), arm.name), make("p", {text: (arm.note || "no hits") + more})));
  const rows = arm.hits.map((hit, n) => armRow(arm.name, hit, n + 1, places.get(hit.key)));
  box.append(rows.length ? make("ol", {class: "rows"}, ...rows) : make("p", {class: "none", text: "No hits."}));
  roving(box);
  return box;
}

function armRow(arm, hit, rank, place) {
  const text = shown.texts[hit.key] || hit.key;
  const state_ = place ? `result ${place}` : `not a result: ${hit.lost || "ranked lower"}`;
  const row = make("button", {type: "button", class: "row" + (place ? "" : " lost") + (gold()[hit.key] ? " gold" : ""),
    "data-key": hit.key, "aria-label": `${arm} ${rank}, score ${precise(hit.score)}, ${state_}: ${text}`},
    make("span", {class: "rank", text: rank}), make("span", {class: "text"}, ...highlighted(text, shown.words)),
    make("span", {class: "number", text: hit.score === null ? "" : precise(hit.score)}),
    make("span", {class: "place", text: place ? place : "–"}));
  return make("li", {}, row);
}

function fusedColumn() {
  const box = make("section", {class: "column fused", "aria-label": "Fused results"});
  const names = [...new Set([...shown.arms.map(arm => arm.name), ...shown.results.flatMap(one => one.parts.filter(part => part[1]).map(part => part[0]))])]
    .filter(name => shown.results.some(one => one.parts.some(part => part[0] === name && part[1])));
  const legend = make("div", {class: "legend"}, ...names.map(name => make("span", {}, swatch(name), name)));
  box.append(make("header", {}, make("h2", {text: "fused"}), legend));
  const most = Math.max(1e-9, ...shown.results.map(one => sum(one.parts.map(part => Math.max(0, part[1] || 0)))));
  const rows = shown.results.map(one => make("li", {}, fusedRow(one, most)));
  box.append(rows.length ? make("ol", {class: "rows", id: "fused"}, ...rows) : make("p", {class: "none", text: "Nothing matches this question."}));
  roving(box);
  return box;
}

const sum = numbers => numbers.reduce((total, number) => total + number, 0);

function fusedRow(one, most) {
  const text = shown.texts[one.key] || one.key, moved = move(one);
  const said = one.parts.map(part => `${part[0]}: ${part[2]}`).join("; ");
  return make("button", {type: "button", class: "row" + (gold()[one.key] ? " gold" : ""), "data-key": one.key,
    "aria-label": `Result ${one.rank}, score ${precise(one.score)}${moved.say}: ${text}. ${said}`},
    make("span", {class: "rank", text: one.rank}), make("span", {class: "text"}, ...highlighted(text, shown.words)),
    make("span", {class: "number"}, one.score === null ? "" : one.score.toFixed(3), make("span", {class: "move " + moved.kind, text: moved.text})),
    bar(one.parts, most));
}

function move(one) {
  const before = baseRanks && baseRanks.id === shown.id ? baseRanks.of.get(one.key) : one.rank;
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
      make("pre", {text: 'memory.add("Ana has moved to Lisbon.", subject="ana")'}), keys());
    return;
  }
  const examples = cases.length ? cases.slice(0, 5).map(one => one.query) : start.examples;
  const size = start.count === null ? "" : `${start.count.toLocaleString("en")} ${start.unit} in this store. `;
  box.replaceChildren(make("h2", {text: "Ask a question"}),
    make("p", {text: `${size}Every arm shows what it found, and the fused list shows what each part of the recipe added.`}),
    make("ul", {}, ...examples.map(text => make("li", {}, make("button", {type: "button", class: "example", text, onclick: () => ask(text)})))), keys());
}

const keys = () => make("p", {class: "keys"}, make("kbd", {text: "/"}), " question   ", make("kbd", {text: "↑↓←→"}), " move between hits   ",
  make("kbd", {text: "Enter"}), " why   ", make("kbd", {text: "Esc"}), " close");

function ask(text, {asOf = state.asOf} = {}) {
  state.query = text; state.asOf = asOf; state.open = null;
  $("query").value = text; $("as-of").value = asOf;
  closeDetail();
  return search();
}

/* --- why (not) */

async function explain(key, {quiet = false} = {}) {
  state.open = key;
  writeUrl();
  markOpen();
  const turn = explain.turn = (explain.turn || 0) + 1;
  const told = await call("why", request({key}));
  if (told === null || turn !== explain.turn || state.open !== key) return;
  drawDetail(told);
  if (!quiet) $("detail").focus({preventScroll: true});
}

function markOpen() {
  for (const row of document.querySelectorAll(".row")) row.classList.toggle("open", row.dataset.key === state.open);
}

function closeDetail({keep = false} = {}) {
  $("detail").hidden = true;
  if (!keep) { state.open = null; writeUrl(); }
  markOpen();
}

function drawDetail(told) {
  const words = shown ? shown.words : new Set(), result = told.result;
  const head = make("header", {}, make("span", {class: "verdict" + (result ? " in" : ""), text: result ? `result ${result.rank}` : "not in the results"}),
    make("span", {class: "key", text: told.key}), make("button", {type: "button", class: "icon", "aria-label": "Close", text: "×", onclick: () => closeDetail()}));
  const left = make("div"), right = make("div");
  left.append(make("p", {class: "said"}, ...highlighted(told.text || told.key, words)));
  if (!result) left.append(make("p", {class: "why", text: told.why}));
  const ranks = Object.entries(told.ranks).map(([arm, place]) => make("li", {}, swatch(arm), make("span", {text: arm}),
    make("span", {class: "number", text: place ? `#${place[0]}` : "–"}), make("span", {class: "sentence", text: place ? (place[1] === null ? "listed" : `raw score ${precise(place[1])}`) : "not listed by this arm"})));
  if (result) {
    const parts = result.parts.map(([name, value, text]) => make("li", {}, swatch(name), make("span", {text: name}),
      make("span", {class: "number", text: value ? signed(value) : ""}), make("span", {class: "sentence", text})));
    left.append(block(`Score ${result.score.toFixed(3)}`, make("ul", {class: "parts"}, ...parts)));
    if (result.degraded) left.append(make("p", {class: "why", text: "Nothing passed the gate: this is the list of the fallback arm."}));
  } else left.append(block("In the arms", make("ul", {class: "parts"}, ...ranks)));
  if (told.path.length) left.append(block("Graph path", make("p", {text: told.path.join(" → ")})));
  if (told.thread.length > 1) right.append(block("Thread", make("ul", {class: "thread"}, ...told.thread.map(one => make("li", {},
    make("button", {type: "button", class: one.here ? "here" : "", text: one.text, onclick: () => explain(one.id)}))))));
  if (Object.keys(told.fields).length) right.append(block("Fields", fieldList(told.fields)));
  if (told.history.length > 1) right.append(block("History", make("ol", {class: "versions"}, ...told.history.map(one => make("li", {},
    make("time", {text: one.at.replace("T", " ").slice(0, 16)}), make("span", {text: one.status === "active" ? one.text : `${one.status}: ${one.text}`}))))));
  if (!right.childElementCount) right.append(block("Fields", make("p", {class: "quiet", text: "This source stores no fields or history."})));
  $("detail").replaceChildren(head, make("div", {class: "facts"}, left, right));
  $("detail").hidden = false;
  $("detail").scrollTop = 0;
}

const block = (title, content) => make("div", {}, make("h3", {text: title}), content);

function fieldList(fields) {
  const list = make("dl", {class: "fields"});
  for (const [name, value] of Object.entries(fields))
    list.append(make("dt", {text: name}), make("dd", {text: typeof value === "object" ? JSON.stringify(value) : String(value)}));
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

function groupBox(group) {
  const box = make("fieldset", {class: "group" + (group.on === false ? " off" : ""), id: "group-" + group.id});
  const title = make("legend");
  if (group.on === undefined) title.textContent = group.label;
  else title.append(make("label", {}, make("input", {type: "checkbox", "data-path": group.id, checked: group.on, onchange: event => change(group.id, event.target.checked)}), group.label));
  box.append(title, make("p", {class: "help", text: group.help}), ...group.controls.map(controlBox));
  return box;
}

function controlBox(one) {
  const id = "control-" + one.path, box = make("div", {class: "control", "data-control": one.path});
  const name = make("span", {class: "name"}), label = make("label", {for: id}, name);
  if (start.arms.some(arm => one.path.endsWith("/" + arm))) {
    const arm = start.arms.find(name => one.path.endsWith("/" + name));
    paint(box, arm);
    name.append(swatch(arm));
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
  if (one.kind === "range") box.querySelector("output").textContent = precise(value);
  box.classList.toggle("changed", one.path in state.changes);
}

function change(path, value) {
  if (baseValues[path] === value) delete state.changes[path];
  else state.changes[path] = value;
  const box = document.querySelector(`[data-control="${CSS.escape(path)}"] output`);
  if (box) box.textContent = precise(value);
  recipeChanged();
}

function recipeChanged() {
  if (state.query.trim()) soon(); else { writeUrl(); refresh(); }
  clearTimeout(recipeChanged.timer);
  if (cases.length) recipeChanged.timer = setTimeout(measureAll, 250);
}

/* Reads the controls again when no question is asked. */
async function refresh() {
  const answer = await call("start", {namespace: state.namespace, base: state.base, changes: state.changes});
  if (answer !== null) drawGroups(answer.groups);
}

async function rememberBase() {
  const answer = await call("start", {namespace: state.namespace, base: state.base, changes: {}});
  if (answer === null) return false;
  start = {...answer, home: start ? start.home : answer.namespace};
  if (state.namespace === null) state.namespace = answer.namespace;
  baseValues = {};
  for (const group of answer.groups) {
    if (group.on !== undefined) baseValues[group.id] = group.on;
    for (const one of group.controls) baseValues[one.path] = one.value;
  }
  drawGroups(answer.groups);
  return true;
}

async function loadRecipe(data) {
  const before = state.base;
  state.base = data; state.changes = {}; drawGroups.shape = "";
  if (!await rememberBase()) { state.base = before; await rememberBase(); return; }
  baseRanks = null; baseFigures = null;
  toast(data === null ? "The recipe is as it was." : "Recipe loaded.");
  search();
  if (cases.length) measureAll();
}

async function saveRecipe() {
  const saved = await call("save", {base: state.base, changes: state.changes});
  if (saved === null) return;
  const address = URL.createObjectURL(new Blob([saved.json], {type: "application/json"}));
  make("a", {href: address, download: "recipe.json"}).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
  toast("recipe.json saved: HybridMemory(path, recipe=\"recipe.json\")");
}

async function copyPython() {
  const saved = await call("save", {base: state.base, changes: state.changes});
  if (saved === null) return;
  try { await navigator.clipboard.writeText(saved.python); } catch {
    const area = make("textarea", {text: saved.python});
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  toast("Python code copied.");
}

/* --- cases */

async function loadCases(text) {
  const answer = await call("cases", {text});
  if (answer === null) return;
  cases = answer.cases; measured = []; baseFigures = null; currentCase = -1;
  $("cases").hidden = false;
  $("app").classList.add("with-cases");
  drawCases();
  welcome();
  measureAll();
}

/* Measures in batches, so that figures appear while a slider moves; a newer call ends an older one. */
async function measureAll() {
  const turn = ++caseTurn, changed = Object.keys(state.changes).length > 0;
  if (changed && baseFigures === null) baseFigures = figures(await batches({changes: {}}, turn) || []);
  if (turn !== caseTurn) return;
  const rows = await batches({}, turn, rows => drawFigures(rows));
  if (rows === null || turn !== caseTurn) return;
  measured = rows;
  if (!changed) baseFigures = figures(rows);
  drawFigures(rows);
  drawCases();
}

async function batches(more, turn, progress) {
  const rows = [], size = 20;
  for (let n = 0; n < cases.length; n += size) {
    const answer = await call("measure", request({...more, filter: null, cases: cases.slice(n, n + size)}));
    if (answer === null || turn !== caseTurn) return null;
    rows.push(...answer.measured);
    if (progress) progress(rows);
  }
  return rows;
}

const figures = rows => ({recall: sum(rows.map(row => row.recall)) / rows.length, mrr: sum(rows.map(row => row.rank)) / rows.length, size: rows.length});

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
      make("span", {class: "sign", role: "img", "aria-label": say, text: sign}), make("span", {text: one.query}), note ? make("small", {text: note}) : null)));
  });
  $("case-list").replaceChildren(...(rows.length ? rows : [make("li", {class: "none", text: "Every question finds all its relevant memories."})]));
}

/* One click from a failed question to the reason: ask it, and explain the first relevant memory that is missing. */
async function openCase(n) {
  currentCase = n;
  drawCases();
  await ask(cases[n].query, {asOf: cases[n].as_of ? cases[n].as_of.slice(0, 19) : ""});
  const missing = measured[n] ? measured[n].missing : Object.keys(cases[n].relevant);
  if (missing.length) explain(missing[0]);
}

/* --- highlighting and paths */

function point(key) {
  clearWires();
  if (!key || !shown) return;
  const rows = [...document.querySelectorAll(`.row[data-key="${CSS.escape(key)}"]`)];
  for (const row of rows) row.classList.add("same");
  if (getComputedStyle($("wires")).display === "none") return;
  const ends = rows.map(row => ({row, box: inList(row), arm: row.closest(".column").dataset.arm}));
  for (let n = 0; n + 1 < ends.length; n++) wire(ends[n].box.right, ends[n].box.y, ends[n + 1].box.left, ends[n + 1].box.y, ends[n].arm);
  const path = shown.paths[key], fused = ends.find(end => !end.arm);
  if (fused && path && path[0] !== key) {
    const seed = document.querySelector(`.fused .row[data-key="${CSS.escape(path[0])}"]`);
    if (seed) loop(inList(seed), fused.box);
  }
}

/* The middle of a row, kept inside the visible part of its list. */
function inList(row) {
  const box = row.getBoundingClientRect(), list = row.closest(".rows").getBoundingClientRect();
  return {left: box.left + 3, right: box.right - 3, y: Math.max(list.top + 4, Math.min(list.bottom - 4, (box.top + box.bottom) / 2))};
}

function wire(x1, y1, x2, y2, arm) {
  const bend = Math.max(14, (x2 - x1) / 2);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", `M${x1} ${y1}C${x1 + bend} ${y1},${x2 - bend} ${y2},${x2} ${y2}`);
  path.style.stroke = `var(--c${(colours.get(arm) || 0) % COLOURS})`;
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
  $("tip").style.top = `${y - box.height - 14 > 0 ? y - box.height - 14 : y + 18}px`;
}

/* --- keyboard */

function roving(column) {
  column.querySelectorAll(".row").forEach((row, n) => { row.tabIndex = n ? -1 : 0; });
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
  for (const other of target.closest(".column").querySelectorAll(".row")) other.tabIndex = -1;
  target.tabIndex = 0;
  target.focus();
}

function listen() {
  const text = file => file.text();
  $("ask").addEventListener("submit", event => { event.preventDefault(); search(); });
  $("query").addEventListener("input", () => { state.query = $("query").value; state.open = null; closeDetail(); soon(120); });
  $("k").addEventListener("input", () => { const k = parseInt($("k").value, 10); if (k >= 1 && k <= 100) { state.k = k; baseFigures = null; recipeChanged(); } });
  $("filter").addEventListener("input", () => { state.filter = $("filter").value; soon(250); });
  $("as-of").addEventListener("input", () => { state.asOf = $("as-of").value; soon(); });
  $("namespace").addEventListener("change", async () => { state.namespace = $("namespace").value; await rememberBase(); search(); });
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("reset").addEventListener("click", () => { if (state.base) loadRecipe(null); else { state.changes = {}; drawGroups.shape = ""; recipeChanged(); } });
  $("save").addEventListener("click", saveRecipe);
  $("copy").addEventListener("click", copyPython);
  $("load").addEventListener("change", async event => {
    const [file] = event.target.files;
    try { if (file) await loadRecipe(JSON.parse(await text(file))); } catch (error) { fail(`The recipe file is not JSON: ${error.message}`); }
    event.target.value = "";
  });
  $("load-cases").addEventListener("change", async event => { const [file] = event.target.files; if (file) await loadCases(await text(file)); event.target.value = ""; });
  $("only-failing").addEventListener("change", drawCases);
  $("cases-close").addEventListener("click", () => { cases = []; currentCase = -1; $("cases").hidden = true; $("figures").hidden = true; $("app").classList.remove("with-cases"); if (shown) render(); });
  const over = event => { const row = event.target.closest && event.target.closest(".row"); point(row ? row.dataset.key : null); };
  const columns = $("columns");
  columns.addEventListener("mouseover", event => { over(event); const piece = event.target.closest(".bar i"); tip(piece, event.clientX, event.clientY); });
  columns.addEventListener("mouseleave", () => { clearWires(); tip(null); });
  columns.addEventListener("focusin", over);
  columns.addEventListener("scroll", clearWires, true);
  columns.addEventListener("click", event => { const row = event.target.closest(".row"); if (row) explain(row.dataset.key); });
  columns.addEventListener("keydown", event => { const row = event.target.closest(".row"); if (row) arrows(event, row); });
  addEventListener("resize", () => { clearWires(); if (shown) render(); });
  addEventListener("keydown", event => {
    if (event.key === "Escape" && !$("detail").hidden) { const key = state.open; closeDetail(); const row = document.querySelector(`.row[data-key="${CSS.escape(key || "")}"]`); if (row) row.focus(); }
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("query").focus(); $("query").select(); }
  });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("hybridmem-theme", name); } catch { /* private windows keep nothing */ }
}

async function open() {
  let kept = null;
  try { kept = localStorage.getItem("hybridmem-theme"); } catch { /* private windows keep nothing */ }
  document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (matchMedia("(max-width: 899px)").matches) $("recipe-box").open = false;
  listen();
  readUrl();
  if (!await rememberBase()) return;
  for (const arm of start.arms) paint(make("i"), arm);
  $("namespace").replaceChildren(...start.namespaces.map(name => make("option", {value: name, text: name || "(default)"})));
  $("namespace").value = state.namespace;
  $("namespace-label").hidden = start.namespaces.length < 2;
  $("as-of-label").hidden = !start.asOf;
  if (state.query) search(); else { render(); if (Object.keys(state.changes).length) refresh(); }
}

open();
