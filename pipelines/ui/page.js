"use strict";
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const DASH = "–";
const REFRESH_MS = { live: 2000, ended: 30000 };
const MODELS = { student: "student", no_teacher: "twin without teacher", teacher: "teacher", constant: "running base rate", champion: "champion" };
const TONES = { running: "good", done: "good", restarting: "warn", starting: "warn", draining: "good", failed: "bad", stopped: "warn", "not running": "warn" };

function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}
function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const whole = (value) => (value === null || value === undefined ? DASH : Math.round(value).toLocaleString("en"));
const short = (value) => (value >= 1e6 ? (value / 1e6).toFixed(1) + "M" : value >= 1e4 ? (value / 1e3).toFixed(0) + "k" : value >= 1e3 ? (value / 1e3).toFixed(1) + "k" : whole(value));
const when = (ms, days) => new Date(ms).toISOString().replace("T", " ").slice(5, days ? 10 : 16);
function age(seconds) {
  if (seconds === null || seconds === undefined) return DASH;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return s < 86400 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${(s / 86400).toFixed(1)} days`;
}
async function get(path) {
  const answer = await fetch(path, { credentials: "same-origin" });
  const value = await answer.json();
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}
function table(title, head, rows) {
  const cells = (row) => row.map((cell, at) => el(at ? "td" : "th", at ? {} : { scope: "row" }, cell ?? DASH));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
    el("table", {}, el("caption", {}, title),
      el("thead", {}, el("tr", {}, ...head.map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...cells(row))))));
}
function replace(place, ...children) {
  const id = document.activeElement && place.contains(document.activeElement) ? document.activeElement.id : "";
  place.replaceChildren(...children);
  if (id && $(id)) $(id).focus({ preventScroll: true });
}

// --- the flow -------------------------------------------------------------------------------------------------------
const WIDE = {
  size: [1190, 300], box: [172, 88],
  at: { source: [4, 10], kafka: [256, 10], augmentation: [508, 10], lake: [760, 10], teacher: [634, 196], students: [1012, 10], registry: [1012, 196] },
};
const TALL = {
  size: [344, 924], box: [160, 88],
  at: { source: [4, 4], kafka: [4, 144], augmentation: [4, 284], lake: [4, 544], teacher: [180, 414], students: [4, 704], registry: [180, 832] },
};
function side(layout, name, other) {
  const [w, h] = layout.box, [x, y] = layout.at[name], [u, v] = layout.at[other];
  const dx = u - x, dy = v - y;
  if (Math.abs(dx) >= w && Math.abs(dx) / w >= Math.abs(dy) / h - 0.4 && Math.abs(dy) < h) return [dx > 0 ? x + w : x, y + h / 2];
  const lean = Math.sign(dx) * Math.min(Math.abs(dx) / 2, w / 2 - 16);
  return [x + w / 2 + lean, dy > 0 ? y + h : y];
}
function edgeWords(edge) {
  if (edge.label) return [edge.label];
  const words = [];
  if (edge.rows_per_s !== null && edge.rows_per_s !== undefined) words.push(`${short(edge.rows_per_s)} rows/s`);
  if (edge.lag_known === false) words.push("lag unknown");
  else if (edge.lag_rows !== null && edge.lag_rows !== undefined) words.push(`${short(edge.lag_rows)} wait`);
  return words;
}
function drawFlow(flow) {
  const tall = matchMedia("(max-width: 46rem)").matches, layout = tall ? TALL : WIDE;
  const [w, h] = layout.box, drawn = [], said = [];
  for (const edge of flow.edges) {
    const [x1, y1] = side(layout, edge.from, edge.to), [x2, y2] = side(layout, edge.to, edge.from);
    const words = edgeWords(edge), length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const ux = (x2 - x1) / length, uy = (y2 - y1) / length, bx = x2 - 9 * ux, by = y2 - 9 * uy;
    drawn.push(svg("path", { class: "edge", d: `M${x1} ${y1}L${bx} ${by}` }));
    drawn.push(svg("path", { class: "tip", d: `M${x2} ${y2}L${bx - 5 * uy} ${by + 5 * ux}L${bx + 5 * uy} ${by - 5 * ux}Z` }));
    const flat = Math.abs(uy) < 0.3, mx = (x1 + x2) / 2, my = (y1 + y2) / 2;
    words.forEach((word, at) => {
      const y = flat ? (at ? my + 16 + 14 * (at - 1) : my - 7) : my + 4 + 15 * (at - (words.length - 1) / 2);
      const right = !flat && edge.from !== "teacher";
      const x = flat ? mx : right ? mx + 10 : mx - 10;
      drawn.push(svg("text", { x, y, class: "soft", "font-size": 12.5, "text-anchor": flat ? "middle" : right ? "start" : "end" }, word));
    });
    said.push(`${flow.nodes[edge.from].title} to ${flow.nodes[edge.to].title}${words.length ? ": " + words.join(", ") : ""}`);
  }
  for (const [name, node] of Object.entries(flow.nodes)) {
    const [x, y] = layout.at[name];
    drawn.push(svg("rect", { class: `box ${TONES[node.state] || ""}`, x, y, width: w, height: h, rx: 7 }));
    drawn.push(svg("text", { x: x + 10, y: y + 22, class: "title", "font-size": 15 }, node.title));
    const lines = [node.state, ...node.lines].filter(Boolean);
    lines.forEach((line, at) => drawn.push(svg("text", { x: x + 10, y: y + 40 + 16 * at, class: at ? "" : "soft", "font-size": 12.5 },
      line.length > 24 ? line.slice(0, 23) + "…" : line)));
  }
  $("picture").className = tall ? "tall" : "";
  const picture = svg("svg", { viewBox: `0 0 ${layout.size.join(" ")}`, role: "img", "aria-label": said.join("; ") }, ...drawn);
  replace($("picture"), picture);
}

// --- alarms, students, dead letters -----------------------------------------------------------------------------------
function drawAlarms(view) {
  const cards = view.alarms.map((alarm) => el("div", { class: `card ${alarm.severity === "note" ? "warn" : "bad"}`, role: "note" },
    el("div", { class: "word" }, alarm.alarm), el("p", { class: "said" }, alarm.words),
    el("button", { class: "link", id: `alarm-${alarm.alarm}`, onclick: () => ask("alarm", alarm.alarm) }, "why, and what to do")));
  for (const words of (view.losses && view.losses.words) || []) cards.push(el("div", { class: "card warn" }, words));
  if (!cards.length) cards.push(el("p", {}, view.lives ? "No alarm stands." : "No alarm stood when the run last wrote its status."));
  replace($("alarm-list"), ...cards);
}
function neText(ne) {
  return Object.entries(ne || {}).filter((each) => each[1] !== null).map(([task, value]) => `${task} ${value.toFixed(4)}`).join("  ") || null;
}
function trialText(student) {
  if (!student.trial) return student.candidate;
  const tasks = Object.entries(student.trial.tasks || {}).filter((each) => each[1].difference !== null);
  return `${student.candidate}: ` + tasks.map(([task, t]) => `${task} ${t.difference > 0 ? "+" : ""}${t.difference.toFixed(4)}`).join(", ");
}
function drawStudents(view) {
  const rows = view.students.map((s) => [
    el("button", { class: "link", id: `student-${s.name}`, onclick: () => ask("student", s.name) }, s.name),
    el("span", { class: TONES[s.state] || "soft" }, s.state), whole(s.rows), s.rows_per_s === null ? null : whole(s.rows_per_s),
    s.lag_known ? whole(s.lag_rows) : "unknown", neText(s.ne), s.teacher_version === null ? null : String(s.teacher_version), age(s.logit_age_s),
    s.champion, trialText(s)]);
  const head = ["student", "state", "rows", "rows/s", "lag rows", "NE as learned", "teacher", "logit age", "champion", "candidate, saved log loss"];
  replace($("student-table"), rows.length ? table("A name shows where that student comes from", head, rows) : el("p", {}, "The run has no students."));
}
const opened = new Map();
async function drawLetters(view) {
  const items = view.dead_letters.map(({ kind, reason, rows }) => {
    const body = el("div", {});
    const key = `${kind} ${reason}`;
    if (opened.has(key)) body.replaceChildren(...opened.get(key));
    return el("details", { id: `letter-${key}`, open: opened.has(key) ? "" : null, ontoggle: (event) => showLetters(event, key, kind, reason, body) },
      el("summary", {}, `${whole(rows)} ${kind === "impression" ? "impressions" : "rows of feedback"}: ${reason}`), body);
  });
  replace($("letter-list"), ...(items.length ? items : [el("p", {}, "Nothing was refused.")]));
}
async function showLetters(event, key, kind, reason, body) {
  if (!event.target.open) return opened.delete(key);
  if (opened.has(key)) return;
  opened.set(key, []);
  let found;
  try {
    const letters = await get(`dead-letters.json?kind=${encodeURIComponent(kind)}&reason=${encodeURIComponent(reason)}`);
    found = letters.map((l) => el("div", {}, el("p", {}, el("b", {}, l.place), ` ${l.detail}`), el("pre", { tabindex: 0 }, l.record)));
    if (!found.length) found = [el("p", { class: "soft" }, "No record of it is kept beside the lake.")];
  } catch (error) { found = [el("p", { class: "bad" }, error.message)]; }
  opened.set(key, found);
  body.replaceChildren(...found);
}

// --- curves -----------------------------------------------------------------------------------------------------------
function chart(student, task, curve, champions) {
  const narrow = matchMedia("(max-width: 46rem)").matches;
  const W = narrow ? 344 : 520, H = narrow ? 190 : 230, left = 46, right = 10, top = 12, bottom = 26;
  const models = Object.keys(curve.ne), t = curve.t, days = t.length && t[t.length - 1] - t[0] > 3 * 864e5;
  const later = models.flatMap((m) => curve.ne[m].slice(Math.floor(t.length / 10))).filter((v) => v !== null);
  const all = models.flatMap((m) => curve.ne[m]).filter((v) => v !== null);
  if (!all.length) return el("p", { class: "soft" }, `${student} · ${task}: too few rows with both labels yet`);
  let low = Math.min(...all), high = Math.min(Math.max(...later, low + 0.02), 1.25);
  if (high <= low) high = low + 0.05;
  const pad = 0.06 * (high - low); low -= pad; high += pad;
  const span = t[t.length - 1] - t[0] || 1;
  const X = (ms) => left + (W - left - right) * (t.length > 1 ? (ms - t[0]) / span : 0.5);
  const Y = (v) => top + (H - top - bottom) * (1 - (Math.min(v, high) - low) / (high - low));
  const drawn = [];
  for (let at = 0; at <= 3; at++) {
    const v = low + ((high - low) * at) / 3;
    drawn.push(svg("line", { class: "grid", x1: left, x2: W - right, y1: Y(v), y2: Y(v) }));
    drawn.push(svg("text", { class: "soft", x: left - 6, y: Y(v) + 4, "text-anchor": "end", "font-size": 11.5 }, v.toFixed(3)));
  }
  for (let at = 0; at <= 2; at++) {
    const ms = t[0] + (span * at) / 2;
    drawn.push(svg("text", { class: "soft", x: X(ms), y: H - 8, "text-anchor": ["start", "middle", "end"][at], "font-size": 11.5 }, when(ms, days)));
    if (t.length < 2) break;
  }
  const inside = champions.filter((c) => c.t >= t[0] && c.t <= t[t.length - 1]);
  for (const c of inside) drawn.push(svg("line", { class: "mark", x1: X(c.t), x2: X(c.t), y1: top, y2: H - bottom }));
  models.forEach((model) => {
    const n = Object.keys(MODELS).indexOf(model);
    let pen = "M", d = "";
    curve.ne[model].forEach((v, at) => { if (v === null) pen = "M"; else { d += `${pen}${X(t[at]).toFixed(1)} ${Y(v).toFixed(1)}${pen === "M" ? "h.1" : ""}`; pen = "L"; } });
    if (t.length === 1 && d) d = `M${left} ${Y(curve.ne[model][0])}H${W - right}`;
    drawn.push(svg("path", { class: `curve m${n}`, d }));
  });
  const last = models.map((m) => `${MODELS[m]} ${curve.ne[m].filter((v) => v !== null).at(-1)}`).join(", ");
  const title = `${student} · ${task}`;
  const swatch = (n) => svg("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" }, svg("path", { class: `curve m${n}`, d: "M0 4H28" }));
  const marks = inside.length ? [el("li", {}, `dotted: ${inside.length} new champion${inside.length > 1 ? "s" : ""}`)] : [];
  const rows = t.map((ms, at) => [when(ms), ...models.map((m) => (curve.ne[m][at] === null ? null : curve.ne[m][at].toFixed(4))), whole(curve.rows[at]), whole(curve.positives[at])]);
  return el("figure", {}, el("figcaption", {}, el("b", {}, title)),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `NE of ${title} by event time; last: ${last}` }, ...drawn),
    el("ul", { class: "legend" }, ...models.map((m) => el("li", {}, swatch(Object.keys(MODELS).indexOf(m)), MODELS[m])), ...marks),
    el("details", {}, el("summary", {}, "The table behind it"),
      table(`NE of ${title}`, ["event time, UTC", ...models.map((m) => MODELS[m]), "rows", "positives"], rows)));
}
const cards = new Map();
async function showCurves(place, student) {
  try {
    const found = await get(`curves.json?student=${encodeURIComponent(student)}`);
    const text = JSON.stringify(found);
    if (place.dataset.seen === text) return;
    if (place.querySelector("details[open]")) return;
    place.dataset.seen = text;
    const tasks = Object.entries(found.tasks);
    replace(place, ...(tasks.length ? tasks.map(([task, curve]) => chart(student, task, curve, found.champions))
      : [el("p", { class: "soft" }, `${student}: no predictions have been read yet`)]));
    place.classList.remove("chart");
  } catch (error) { replace(place, el("p", { class: "bad" }, `${student}: ${error.message}`)); }
}
const visible = new Set();
const watcher = new IntersectionObserver((changes) => {
  for (const { target, isIntersecting } of changes) {
    if (!isIntersecting) { visible.delete(target); continue; }
    visible.add(target);
    showCurves(target, target.dataset.student);
  }
}, { rootMargin: "200px" });
function placeCharts(view) {
  for (const { name } of view.students) {
    if (cards.has(name)) continue;
    const place = el("div", { class: "chart", "data-student": name }, el("p", { class: "soft" }, `${name} …`));
    cards.set(name, place);
    $("charts").append(place);
    watcher.observe(place);
  }
}

// --- questions --------------------------------------------------------------------------------------------------------
async function ask(kind, name) {
  const section = $("answer"), body = $("answer-body");
  $("kind").value = kind; $("name").value = name; $("topics-label").hidden = kind !== "impression";
  section.hidden = false;
  replace(body, el("p", { class: "soft" }, `looking for ${kind} ${name} …`));
  section.focus(); section.scrollIntoView({ block: "start" });
  try {
    const topics = kind === "impression" && $("topics").checked ? "&topics=1" : "";
    const answers = await get(`why.json?of=${kind}&name=${encodeURIComponent(name)}${topics}`);
    replace(body, ...answers.map((answer) => el("ul", { class: "lines" }, ...answer.lines.map((line) => {
      const depth = line.length - line.trimStart().length;
      return el("li", { class: depth >= 4 ? "in2" : depth ? "in1" : "top" }, line.trim());
    }))));
  } catch (error) { replace(body, el("p", { class: "bad", role: "alert" }, error.message)); }
}
$("kind").addEventListener("change", () => { $("topics-label").hidden = $("kind").value !== "impression"; });
$("search").addEventListener("submit", (event) => { event.preventDefault(); ask($("kind").value, $("name").value.trim()); });
document.addEventListener("keydown", (event) => {
  const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName);
  if (event.key === "/" && !typing) { event.preventDefault(); $("name").focus(); }
  if (event.key === "Escape") { $("answer").hidden = true; }
});

// --- the whole --------------------------------------------------------------------------------------------------------
let view = JSON.parse($("view").textContent), shown = "", first = true;
function draw() {
  const { updated_at, wall_s, ...rest } = view, text = JSON.stringify(rest);
  const done = view.fraction === null ? "" : `, ${Math.floor(100 * view.fraction)} %`;
  replace($("state"), el("span", { class: `badge ${TONES[view.state] || ""}` }, view.state), `${done}${view.reason ? ": " + view.reason : ""}`);
  $("foot").textContent = `${view.folder}, as of ${updated_at.slice(0, 19).replace("T", " ")} UTC; read-only`;
  if (text === shown) return;
  shown = text;
  drawFlow(view.flow);
  if (first) { first = false; requestAnimationFrame(() => setTimeout(drawRest)); } else drawRest();  // the flow is painted first
}
function drawRest() {
  drawAlarms(view); drawStudents(view); drawLetters(view); placeCharts(view);
  replace($("counts"), el("dl", { class: "facts" }, ...Object.entries(view.counts).map(([name, value]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, whole(value))))));
}
async function refresh() {
  try { view = await get("view.json"); draw(); } catch (error) { $("foot").textContent = `cannot be read: ${error.message}`; }
  for (const place of visible) showCurves(place, place.dataset.student);
  setTimeout(refresh, view.lives ? REFRESH_MS.live : REFRESH_MS.ended);
}
draw();
matchMedia("(max-width: 46rem)").addEventListener("change", () => drawFlow(view.flow));
setTimeout(refresh, view.lives ? REFRESH_MS.live : REFRESH_MS.ended);
