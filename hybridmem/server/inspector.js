"use strict";
/* The inspector page. State lives in `state` and in the URL; the server answers api/<action> without keeping state. */

const state = {query: "", k: 8, filter: "", asOf: "", namespace: null, changes: {}, base: null, open: null};
const LARGEST = 3.5e6;
let start = null, current = null, baseRanks = null, baseValues = {}, latest = 0, timer = 0;
let cases = [], measured = [], baseFigures = null, caseTurn = 0, currentCase = -1;

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
    if (fail.action === action || fail.action === "network") $("error").hidden = true;
    return data;
  } catch (error) {
    const gone = error.name === "AbortError" || error instanceof TypeError;
    fail(gone ? "The inspector does not answer. Is it still running?" : error.message, gone ? "network" : action);
    return null;
  } finally { clearTimeout(late); }
}

/* Shows an error until the same action succeeds, another question is typed, or it is clicked. */
function fail(text, action = "") {
  fail.action = action;
  $("error").textContent = text;
  $("error").hidden = false;
}

/* --- state and URL */

/* The filter as JSON; undefined where the text is not JSON. */
function filterValue() {
  if (!state.filter.trim()) return null;
  try { return JSON.parse(state.filter); } catch { return undefined; }
}

function request(more = {}) {
  return {query: state.query, k: state.k, filter: filterValue() || null, as_of: state.asOf || null, namespace: state.namespace,
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
  document.title = state.query ? `${state.query} – hybridmem inspector` : "hybridmem inspector";
  history.replaceState(null, "", values.size ? "#" + values : location.pathname);
}

function readUrl() {
  const values = new URLSearchParams(location.hash.slice(1));
  const json = name => { try { return JSON.parse(values.get(name)); } catch { return null; } };
  state.query = values.get("q") || "";
  state.k = Math.max(0, Math.min(100, parseInt(values.get("k"), 10) || 0));
  state.filter = values.get("filter") || "";
  state.asOf = values.get("as_of") || "";
  state.namespace = values.get("namespace");
  state.base = json("base");
  state.changes = json("changes") || {};
  state.open = values.get("open");
  if (/^\d{4}-\d\d-\d\d$/.test(state.asOf)) state.asOf += "T00:00";
  $("query").value = state.query; $("filter").value = state.filter; $("as-of").value = state.asOf;
  if (state.asOf && !$("as-of").value) {
    fail(`as_of ${state.asOf} is not a date and time like 2026-03-31T18:00.`, "url");
    state.asOf = "";
  }
  showAsOf();
}

const showAsOf = () => $("as-of").classList.toggle("empty", !state.asOf);

/* --- search */

function soon(delay = 40) { clearTimeout(timer); timer = setTimeout(search, delay); }

async function search() {
  const turn = ++latest;
  clearTimeout(timer);
  writeUrl();
  if (!state.query.trim()) { current = null; render(); return; }
  const wrong = filterValue() === undefined;
  $("filter").setAttribute("aria-invalid", wrong);
  if (wrong) {
    fail('The filter is not JSON. Example: {"tags": {"$contains": "home"}}', "search");
    if (current === null) render();
    return;
  }
  const body = request();
  $("status").textContent = "…";
  const changed = Object.keys(state.changes).length > 0;
  const id = JSON.stringify([body.query, body.k, body.filter, body.as_of, body.namespace, body.base]);
  if (changed && (baseRanks === null || baseRanks.id !== id)) {
    const plain = await call("search", {...body, changes: {}});
    if (plain === null || turn !== latest) return;
    baseRanks = {id, of: new Map(plain.results.map(one => [one.key, one.rank]))};
  }
  const answer = await call("search", body);
  if (turn !== latest) return;
  if (answer === null) {
    $("status").textContent = "";
    if (current === null) render();
    return;
  }
  current = {...answer, id, words: weighed(answer.words, Object.values(answer.texts))};
  if (!changed) baseRanks = {id, of: new Map(answer.results.map(one => [one.key, one.rank]))};
  render();
  if (state.open) explain(state.open, {quiet: true});
}

function ask(text, {asOf = state.asOf} = {}) {
  state.query = text; state.asOf = asOf; state.open = null;
  $("query").value = text; $("as-of").value = asOf;
  showAsOf();
  closeDetail();
  return search();
}

/* --- why (not) */

async function explain(key, {quiet = false} = {}) {
  state.open = key;
  writeUrl();
  markOpen();
  const turn = explain.turn = (explain.turn || 0) + 1;
  const answer = await call("why", request({key}));
  if (answer === null || turn !== explain.turn || state.open !== key) return;
  drawDetail(answer);
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

/* --- the recipe panel */

function change(path, value) {
  if (baseValues[path] === value) delete state.changes[path];
  else state.changes[path] = value;
  const input = document.querySelector(`input[type=range][data-path="${CSS.escape(path)}"]`);
  if (input) fill(input, value);
  recipeChanged();
}

function recipeChanged() {
  if (state.query.trim()) soon(); else { writeUrl(); refresh(); }
  clearTimeout(recipeChanged.timer);
  if (cases.length) recipeChanged.timer = setTimeout(measureAll, 250);
}

/* Reads the controls again when no question is asked; false if the server refuses the changes. */
async function refresh() {
  const answer = await call("start", {namespace: state.namespace, base: state.base, changes: state.changes});
  if (answer !== null) drawGroups(answer.groups);
  return answer !== null;
}

async function rememberBase() {
  const answer = await call("start", {namespace: state.namespace, base: state.base, changes: {}});
  if (answer === null) return false;
  for (const name of [...answer.arms, ...answer.parts]) if (!colours.has(name)) colours.set(name, colours.size);
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

/* Starts with the page's own recipe and namespace where the server refuses those of the URL; the reason stays visible. */
async function startPlain() {
  const reason = $("error").textContent;
  state.base = null; state.namespace = null;
  if (!await rememberBase()) return false;
  fail(reason, "url");
  return true;
}

async function loadRecipe(data) {
  const before = state.base;
  state.base = data; state.changes = {}; drawGroups.shape = "";
  if (!await rememberBase()) {
    const reason = $("error").textContent;
    state.base = before;
    await rememberBase();
    fail(reason);
    return;
  }
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

async function loadCases(file) {
  if (file.size > LARGEST) { fail(`${file.name} is too large: at most ${LARGEST / 1e6} MB.`); return; }
  const text = await file.text();
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

/* One click from a failed question to the reason: ask it, and explain the first relevant memory that is missing. */
async function openCase(n) {
  currentCase = n;
  drawCases();
  await ask(cases[n].query, {asOf: cases[n].as_of ? cases[n].as_of.slice(0, 19) : ""});
  const missing = measured[n] ? measured[n].missing : Object.keys(cases[n].relevant);
  if (missing.length) explain(missing[0]);
}

function listen() {
  $("ask").addEventListener("submit", event => { event.preventDefault(); search(); });
  $("error").addEventListener("click", () => { $("error").hidden = true; });
  $("query").addEventListener("input", () => { $("error").hidden = true; state.query = $("query").value; state.open = null; closeDetail(); soon(120); });
  $("query").addEventListener("keydown", event => {
    const first = event.key === "ArrowDown" && document.querySelector("#fused .row");
    if (first) { event.preventDefault(); first.focus(); }
  });
  $("k").addEventListener("input", () => { const k = parseInt($("k").value, 10); if (k >= 1 && k <= 100) { state.k = k; baseFigures = null; recipeChanged(); } });
  $("filter").addEventListener("input", () => { state.filter = $("filter").value; soon(250); });
  $("as-of").addEventListener("input", () => { state.asOf = $("as-of").value; showAsOf(); soon(); });
  $("namespace").addEventListener("change", async () => { state.namespace = $("namespace").value; await rememberBase(); search(); });
  $("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("reset").addEventListener("click", () => { if (state.base) loadRecipe(null); else { state.changes = {}; drawGroups.shape = ""; recipeChanged(); } });
  $("save").addEventListener("click", saveRecipe);
  $("copy").addEventListener("click", copyPython);
  $("load").addEventListener("change", async event => {
    const [file] = event.target.files;
    try { if (file) await loadRecipe(JSON.parse(await file.text())); } catch (error) { fail(`The recipe file is not JSON: ${error.message}`); }
    event.target.value = "";
  });
  $("load-cases").addEventListener("change", async event => { const [file] = event.target.files; if (file) await loadCases(file); event.target.value = ""; });
  $("only-failing").addEventListener("change", drawCases);
  $("cases-close").addEventListener("click", () => { cases = []; currentCase = -1; $("cases").hidden = true; $("figures").hidden = true; $("app").classList.remove("with-cases"); if (current) render(); });
  const over = event => { const row = event.target.closest && event.target.closest(".row"); point(row ? row.dataset.key : null); };
  const columns = $("columns");
  columns.addEventListener("mouseover", event => { over(event); const piece = event.target.closest(".bar i"); tip(piece, event.clientX, event.clientY); });
  columns.addEventListener("mouseleave", () => { clearWires(); tip(null); });
  for (const area of [columns, $("groups")]) {
    area.addEventListener("mouseover", event => { const named = event.target.closest("[data-name]"); emphasise(named ? named.dataset.name : null); });
    area.addEventListener("mouseleave", () => emphasise(null));
  }
  columns.addEventListener("focusin", over);
  columns.addEventListener("scroll", () => { clearWires(); requestAnimationFrame(drawFlow); }, true);
  new ResizeObserver(() => requestAnimationFrame(drawFlow)).observe(columns);
  columns.addEventListener("click", event => { const row = event.target.closest(".row"); if (row) explain(row.dataset.key); });
  columns.addEventListener("keydown", event => { const row = event.target.closest(".row"); if (row) arrows(event, row); });
  addEventListener("resize", () => { clearWires(); if (current) render(); });
  addEventListener("keydown", event => {
    if (event.key === "Escape" && !$("detail").hidden) { const key = state.open; closeDetail(); const row = document.querySelector(`.row[data-key="${CSS.escape(key || "")}"]`); if (row) row.focus(); }
    if (event.key === "/" && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("query").focus(); $("query").select(); }
  });
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("hybridmem-theme", name); } catch { /* private windows keep nothing */ }
}

async function begin() {
  let kept = null;
  try { kept = localStorage.getItem("hybridmem-theme"); } catch { /* private windows keep nothing */ }
  document.documentElement.dataset.theme = kept || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  if (matchMedia("(max-width: 899px)").matches) $("recipe-box").open = false;
  listen();
  readUrl();
  if (!await rememberBase() && !await startPlain()) return;
  if (Object.keys(state.changes).length && !await refresh()) state.changes = {};
  state.k = state.k || start.k;
  $("k").value = state.k;
  $("namespace").replaceChildren(...start.namespaces.map(name => make("option", {value: name, text: name || "(default)"})));
  $("namespace").value = state.namespace;
  $("namespace-label").hidden = start.namespaces.length < 2;
  $("as-of-label").hidden = !start.asOf;
  if (state.query) search(); else render();
}

begin();
