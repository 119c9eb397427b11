"use strict";
/* The graph page: draws boxes and arrows where Python placed them; search, details, keys. No library, no request. */
const G = JSON.parse(document.getElementById("data").textContent);
const [WIDTH, HEAD, ROW, FOOT, ROWS] = G.box;
const $ = (id) => document.getElementById(id);
const canvas = $("graph"), map = $("map"), list = $("list"), right = $("right"), tip = $("tip");
const view = { x: 0, y: 0, k: 1 };
let chosen = -1, hits = null, tab = "kernels", shown = [], cursor = -1, marked = -1;

const HUES = { gemm: 212, conv2d: 160, winograd: 125, depthwise: 190, attention: 275, rows: 30, reduce: 8,
  pool: 330, elementwise: 48, layout: 0, generic: 0, input: 0, output: 0, runtime: 0 };
const GREY = new Set(["layout", "input", "output", "runtime", "none"]);
function hueOf(family) {
  if (family in HUES) return HUES[family];
  let h = 0;
  for (const c of family) h = (h * 31 + c.charCodeAt(0)) % 360;
  return h;
}
const dark = () => document.documentElement.dataset.theme === "dark";
const colour = (family) => `hsl(${hueOf(family)} ${GREY.has(family) ? 6 : family === "generic" ? 75 : 52}% ${dark() ? 58 : 42}%)`;

// -- words ---------------------------------------------------------------------------------------------------
const esc = (s) => String(s).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
function si(x, unit) {
  for (const [p, s] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]])
    if (Math.abs(x) >= s) return `${(x / s).toPrecision(3)} ${p}${unit}`;
  return `${+(+x).toPrecision(3)} ${unit}`;
}
const time = (s) => s >= 1e-3 ? `${(s * 1e3).toFixed(2)} ms` : `${(s * 1e6).toFixed(1)} µs`;
const percent = (x) => `${(100 * x).toFixed(x < 0.0995 ? 1 : 0)} %`;
const dims = (shape) => shape.length ? shape.join("×") : "scalar";
const last = (name) => name.length > 30 ? name.slice(0, 12) + "…" + name.slice(-17) : name;
const nodeWords = (n) => `${n.op || "compiler"} ${n.name}`;
const many = (n, word) => `${n} ${word}${n === 1 ? "" : word.endsWith("x") ? "es" : "s"}`;
const title = (b) => b.kind === "kernel" && b.nodes.some((i) => G.nodes[i].op) ? b.nodes.map((i) => G.nodes[i].op || "·").join(" + ") : b.kernel;

G.boxes.forEach((b, i) => { b.id = i; b.h = b.height; b.near = b.near || []; b.to = []; b.from = []; });
for (const a of G.arrows) { G.boxes[a.a].to.push(a); G.boxes[a.b].from.push(a); }
const MAKER = {}, MAX = Math.max(...G.boxes.map((b) => b.share), 1e-9);
G.nodes.forEach((n, i) => n.out.forEach((t) => { MAKER[t] = i; }));
G.boxes.forEach((b) => {
  const names = b.nodes.concat(b.near).map((i) => G.nodes[i]);
  const tensors = (b.reads || []).concat(b.writes, b.weights).map((v) => G.values[v][0]);
  b.text = {
    kernel: `${b.kernel} ${b.family} ${b.source}`.toLowerCase(), op: names.map((n) => n.op.toLowerCase()),
    node: names.map((n) => n.name).join("\n").toLowerCase(),
    tensor: tensors.concat(...names.map((n) => [...n.in, ...n.out])).join("\n").toLowerCase(),
  };
});

// -- drawing -------------------------------------------------------------------------------------------------
let palette = {}, frame = 0;
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["bg", "panel", "ink", "dim", "line", "box", "edge", "accent", "mark", "soft", "hit"])
    palette[name] = style.getPropertyValue("--" + name).trim();
}
function redraw() { if (!frame) frame = requestAnimationFrame(() => { frame = 0; draw(); }); }
function fitCanvas(c, w, h) {
  const d = window.devicePixelRatio || 1;
  if (c.width !== Math.round(w * d) || c.height !== Math.round(h * d)) { c.width = Math.round(w * d); c.height = Math.round(h * d); }
  const g = c.getContext("2d");
  g.setTransform(d, 0, 0, d, 0, 0);
  return g;
}
function cut(g, text, room) {
  if (g.measureText(text).width <= room) return text;
  let keep = Math.max(4, Math.floor(text.length * room / g.measureText(text).width) - 1);
  const front = Math.ceil(keep * 0.4);
  return text.slice(0, front) + "…" + text.slice(text.length - (keep - front));
}
function path(g, p) {
  g.moveTo(p[0], p[1]);
  for (let i = 2; i < p.length; i += 2) {
    const x0 = p[i - 2], y0 = p[i - 1], x1 = p[i], y1 = p[i + 1], m = (y0 + y1) / 2;
    if (Math.abs(x1 - x0) < 0.5) g.lineTo(x1, y1); else g.bezierCurveTo(x0, m, x1, m, x1, y1);
  }
}
function draw() {
  const r = canvas.getBoundingClientRect(), g = fitCanvas(canvas, r.width, r.height), { x, y, k } = view;
  g.fillStyle = palette.bg; g.fillRect(0, 0, r.width, r.height);
  g.save(); g.translate(-x * k, -y * k); g.scale(k, k);
  const seen = (b) => b.x < x + r.width / k && b.x + WIDTH > x && b.y < y + r.height / k && b.y + b.h > y;
  const top = y - 20, bottom = y + r.height / k + 20;
  for (const a of G.arrows) {
    const p = a.p;
    if (p[1] > bottom || p[p.length - 1] < top) continue;
    const near = a.a === chosen || a.b === chosen;
    const faint = hits && !(hits.has(a.a) && hits.has(a.b));
    g.beginPath(); path(g, p);
    g.strokeStyle = near ? palette.accent : palette.edge; g.globalAlpha = near ? 1 : faint ? 0.2 : 0.75;
    g.lineWidth = Math.max(near ? 2.5 : 1.3, (near ? 2 : 0.8) / k); g.stroke();
    const ex = p[p.length - 2], ey = p[p.length - 1];
    if (k > 0.3) { g.fillStyle = g.strokeStyle; g.beginPath(); g.moveTo(ex, ey); g.lineTo(ex - 4, ey - 8); g.lineTo(ex + 4, ey - 8); g.fill(); }
  }
  for (const b of G.boxes) if (seen(b)) drawBox(g, b, k);
  g.restore(); g.globalAlpha = 1;
  drawMap(r);
}
function drawBox(g, b, k) {
  const c = colour(b.family), real = b.kind === "kernel";
  g.globalAlpha = hits && !hits.has(b.id) ? 0.22 : 1;
  g.beginPath(); g.roundRect(b.x, b.y, WIDTH, b.h, real ? 6 : 16); g.fillStyle = palette.box; g.fill();
  g.save(); g.clip();
  g.fillStyle = c; g.fillRect(b.x, b.y, k < 0.42 ? 14 : 5, b.h);
  if (k < 0.25) { g.globalAlpha *= 0.6; g.fillRect(b.x, b.y, WIDTH, b.h); g.globalAlpha = hits && !hits.has(b.id) ? 0.22 : 1; }
  if (real) { g.globalAlpha *= 0.22; g.fillRect(b.x, b.y, WIDTH, HEAD); g.globalAlpha = hits && !hits.has(b.id) ? 0.22 : 1;
    g.fillRect(b.x, b.y + b.h - 4, WIDTH * b.share / MAX, 4); }
  g.restore();
  g.beginPath(); g.roundRect(b.x, b.y, WIDTH, b.h, real ? 6 : 16);
  g.strokeStyle = b.id === chosen ? palette.accent : hits && hits.has(b.id) ? palette.mark : palette.line;
  g.lineWidth = b.id === chosen ? 3 : hits && hits.has(b.id) ? 2 : 1; g.stroke();
  if (k < 0.18) return;
  g.textBaseline = "middle"; g.fillStyle = palette.ink;
  const share = b.share >= 0.0005 ? percent(b.share) : "";
  if (k < 0.42) {
    g.font = `600 ${Math.min(26, b.h * 0.5)}px system-ui, sans-serif`;
    g.fillText(cut(g, real ? `${b.family} ${share}` : b.kernel, WIDTH - 20), b.x + 12, b.y + b.h / 2);
    return;
  }
  g.font = "600 13px system-ui, sans-serif";
  g.fillText(cut(g, real ? b.family : `${b.kind} ${b.kernel}`, WIDTH - (real ? 90 : 24)), b.x + 12, b.y + HEAD / 2 + 1);
  g.font = "12px system-ui, sans-serif"; g.textAlign = "right"; g.fillStyle = palette.dim;
  g.fillText(b.seconds === null ? share : `${time(b.seconds)}  ${share}`, b.x + WIDTH - 8, b.y + HEAD / 2 + 1); g.textAlign = "left";
  const row = (i, op, name, hit) => {
    const at = b.y + HEAD + ROW * (i + 0.5) + 1;
    if (hit) { g.fillStyle = palette.hit; g.fillRect(b.x + 6, at - ROW / 2, WIDTH - 7, ROW); }
    g.font = "600 12px system-ui, sans-serif"; g.fillStyle = palette.ink; g.fillText(op, b.x + 12, at);
    const used = g.measureText(op).width + 7;
    g.font = "12px system-ui, sans-serif"; g.fillStyle = palette.dim; g.fillText(cut(g, name, WIDTH - 22 - used), b.x + 12 + used, at);
  };
  if (real) {
    b.nodes.slice(0, ROWS).forEach((i, n) => row(n, G.nodes[i].op || "·", G.nodes[i].op ? G.nodes[i].name : "made by the compiler", i === marked));
    if (b.nodes.length > ROWS) row(ROWS, "", `and ${b.nodes.length - ROWS} more`);
    if (!b.nodes.length) row(0, "", b.kernel);
  }
  const v = G.values[b.writes.length ? b.writes[0] : b.reads[0]];
  g.font = "11px ui-monospace, monospace"; g.fillStyle = palette.dim;
  if (v) g.fillText(cut(g, `→ ${dims(v[1])} ${v[2]}`, WIDTH - 52), b.x + 12, b.y + b.h - FOOT / 2 - (real ? 2 : 4));
  if (b.near.length && k > 0.5) { g.textAlign = "right"; g.fillText(`+${b.near.length}`, b.x + WIDTH - 8, b.y + b.h - FOOT / 2 - 2); g.textAlign = "left"; }
}
let mapScale = 1;
function drawMap(r) {
  mapScale = Math.min(64 / G.width, (r.height - 24) / G.height, 0.12);
  const w = Math.max(16, G.width * mapScale + 8), h = G.height * mapScale + 8, g = fitCanvas(map, w, h);
  map.style.width = w + "px"; map.style.height = h + "px";
  g.clearRect(0, 0, w, h); g.translate(4, 4);
  for (const b of G.boxes) {
    g.globalAlpha = hits && !hits.has(b.id) ? 0.2 : 1;
    g.fillStyle = b.id === chosen ? palette.accent : colour(b.family);
    g.fillRect(b.x * mapScale, b.y * mapScale, Math.max(2, WIDTH * mapScale), Math.max(1.2, b.h * mapScale));
  }
  g.globalAlpha = 1; g.strokeStyle = palette.mark; g.lineWidth = 1.5;
  g.strokeRect(view.x * mapScale, view.y * mapScale, r.width / view.k * mapScale, r.height / view.k * mapScale);
}

// -- moving --------------------------------------------------------------------------------------------------
const size = () => canvas.getBoundingClientRect();
function clamp() {
  const r = size(), w = r.width / view.k, h = r.height / view.k;
  view.x = Math.max(-w + 60, Math.min(G.width - 60, view.x)); view.y = Math.max(-h + 60, Math.min(G.height - 60, view.y));
}
function zoom(f, cx, cy) {
  const r = size(), k = Math.max(0.02, Math.min(4, view.k * f));
  cx = cx === undefined ? r.width / 2 : cx; cy = cy === undefined ? r.height / 2 : cy;
  view.x += cx / view.k - cx / k; view.y += cy / view.k - cy / k; view.k = k; clamp(); redraw();
}
function fit() {
  const r = size(), room = r.width - map.offsetWidth - 16; view.k = Math.min(1.2, (room - 40) / G.width, (r.height - 40) / G.height);
  view.x = G.width / 2 - room / 2 / view.k; view.y = G.height / 2 - r.height / 2 / view.k; redraw();
}
function start() { fit(); const r = size(); if (view.k < 0.8) { view.k = 0.9; const b = G.boxes.reduce((a, c) => c.y < a.y ? c : a);
  view.x = b.x + WIDTH / 2 - r.width / 2 / view.k; view.y = -20; redraw(); } }
function centre(b) {
  const r = size(); if (view.k < 0.5) view.k = 0.9;
  view.x = b.x + WIDTH / 2 - r.width / 2 / view.k; view.y = b.y + b.h / 2 - r.height / 2 / view.k; clamp(); redraw();
}
function inside(b) {
  const r = size(), x = (b.x - view.x) * view.k, y = (b.y - view.y) * view.k;
  return x > -WIDTH * view.k / 2 && y > -b.h * view.k / 2 && x + WIDTH * view.k / 2 < r.width && y + b.h * view.k / 2 < r.height;
}
function at(px, py) {
  const x = view.x + px / view.k, y = view.y + py / view.k;
  return G.boxes.find((b) => x >= b.x && x <= b.x + WIDTH && y >= b.y && y <= b.y + b.h);
}
function choose(i, move, node) {
  chosen = i; marked = node === undefined ? -1 : node; right.hidden = i < 0;
  if (i >= 0) { details(G.boxes[i]); if (move || !inside(G.boxes[i])) centre(G.boxes[i]); history.replaceState(null, "", `#${i}`); }
  else history.replaceState(null, "", "#");
  for (const e of list.querySelectorAll(".item")) e.classList.toggle("on", +e.dataset.box === i && (marked < 0 || !e.dataset.node || +e.dataset.node === marked));
  redraw();
}

// -- details -------------------------------------------------------------------------------------------------
const link = (box, words, node) => box >= 0 ? `<a tabindex="0" data-box="${box}"${node === undefined ? "" : ` data-node="${node}"`}>${esc(words)}</a>` : esc(words);
const section = (name, items) => items.length ? `<h2>${name}</h2><ul>${items.map((i) => `<li>${i}</li>`).join("")}</ul>` : "";
const nodeLine = (i) => { const n = G.nodes[i]; return `<b>${esc(n.op || "·")}</b> ${esc(n.name)}${n.shape.length ? ` <span class="dim">${dims(n.shape)}</span>` : ""}${n.flops ? ` <span class="num">${si(n.flops, "FLOP")}</span>` : ""}`; };
const valueLine = (v, ends) => { const [name, shape, dtype, bytes] = G.values[v]; return `${ends.length ? ends.map((e) => link(e, last(name))).join(", ") : esc(last(name))} <span class="dim">${dims(shape)} ${dtype}, ${si(bytes, "B")}</span>`; };
function reasons(ids, verdict) {
  const mine = new Set(ids);
  return G.decisions.filter((d) => d.verdict === verdict && d.stage !== "ApplyFamilies" && d.nodes.some((n) => mine.has(n)))
    .map((d) => `<b>${esc(d.stage)}</b> ${esc(d.reason)} <span class="dim">${d.nodes.filter((n) => mine.has(n)).map((n) => esc(G.nodes[n].name)).join(", ")}</span>`);
}
function details(b) {
  const rows = [], add = (k, v) => v !== "" && v !== null && rows.push(`<dt>${k}</dt><dd>${v}</dd>`);
  if (b.kind === "kernel") {
    const m = G.memory;
    add("kernel", `<code>${esc(b.kernel)}</code>`);
    add("schedule", `<span class="chip" style="background:${colour(b.family)}">${esc(b.family)}</span> ${esc(b.source)}`);
    add("knobs", esc(Object.entries(b.knobs).map(([k, v]) => `${k}=${v}`).join(" ")));
    add("note", esc(b.note));
    if (b.seconds !== null) add("time", `${time(b.seconds)}, ${percent(b.share)} of the run`);
    else add("share", `${percent(b.share)} of the FLOPs`);
    add("bound by", b.bound);
    add("executed", si(b.flops, "FLOP") + (b.seconds ? `, ${si(b.flops / b.seconds, "FLOP/s")}` : ""));
    if (b.onnx) add("by ONNX", si(b.onnx, "FLOP"));
    add("touches", `${si(b.bytes, "B")}${b.flops ? `, ${(b.flops / b.bytes).toPrecision(3)} FLOP/B` : ""}`);
    add("step", `${b.step + 1} of ${m.alive.length}`);
    add("alive then", `${si(m.alive[b.step], "B")}${b.step === m.peak ? " (the peak)" : ""}`);
  } else add(b.kind, esc(b.kernel));
  const ids = b.nodes.concat(b.near), twins = G.boxes.filter((o) => o.kernel === b.kernel && o.kind === "kernel" && o !== b);
  const reads = (b.reads || []).map((v) => valueLine(v, b.from.filter((a) => a.v === v).map((a) => a.a)));
  const writes = b.writes.map((v) => valueLine(v, b.to.filter((a) => a.v === v).map((a) => a.b)));
  right.innerHTML = `<h2>${esc(title(b))}</h2><dl>${rows.join("")}</dl>` +
    (b.nodes.length ? `<h2>ONNX nodes fused here</h2><ul>${b.nodes.map((i) => `<li${i === marked ? ' class="hit"' : ""}>${nodeLine(i)}</li>`).join("")}</ul>` : "") +
    section("nodes with no kernel, next to it", b.near.map(nodeLine)) + section("reads", reads) +
    section("weights", b.weights.map((v) => valueLine(v, []))) + section("writes", writes) +
    section("why fusion stops here", [...new Set(b.why || [])].map(esc)) +
    section("declined", reasons(ids, "declined")) + section("done by passes", reasons(ids, "applied")) +
    section("the same kernel is called for", twins.slice(0, 12).map((o) => link(o.id, o.nodes.map((i) => G.nodes[i].name).join(" + ") || o.kernel)).concat(twins.length > 12 ? [`and ${twins.length - 12} more`] : []));
  right.scrollTop = 0;
}

// -- lists and search ----------------------------------------------------------------------------------------
const item = (box, head, small, num, extra, node) => `<button class="item" role="option" data-box="${box}"${node === undefined ? "" : ` data-node="${node}"`}><span class="top"><b>${esc(head)}</b><span class="num">${num}</span></span><small>${esc(small)}</small>${extra || ""}</button>`;
const kernelItem = (b) => item(b.id, title(b), `${b.family}, ${b.source}  ${b.nodes.length ? G.nodes[b.nodes[b.nodes.length - 1]].name : b.kernel}`, b.seconds === null ? percent(b.share) : `${time(b.seconds)}  ${percent(b.share)}`, `<div class="bar"><i style="width:${100 * b.share / MAX}%;background:${colour(b.family)}"></i></div>`);
const nodeItem = (i) => { const n = G.nodes[i]; return item(n.home, nodeWords(n), n.boxes.length ? `in ${G.boxes[n.home].kernel}` : n.near >= 0 ? "no kernel: folded away or a view" : "not in the compiled program", n.flops ? si(n.flops, "FLOP") : "", "", i); };
const CAP = 400;
const capped = (all, one) => all.slice(0, CAP).map(one).join("") + (all.length > CAP ? `<div class="say">and ${all.length - CAP} more: search narrows</div>` : "");
function memoryPlot() {
  const m = G.memory, n = m.alive.length, top = Math.max(...m.held, ...m.alive, 1), w = 300, h = 120;
  const bars = m.alive.map((a, i) => `<rect data-box="${i}" x="${i * w / n}" y="${h - h * a / top}" width="${Math.max(w / n - (w / n > 4), 0.6)}" height="${h * a / top}" fill="${i === m.peak ? palette.mark : palette.accent}" fill-opacity="${i === m.peak ? 1 : 0.55}"><title>step ${i + 1}: ${si(a, "B")}</title></rect>`).join("");
  const held = "M" + m.held.map((a, i) => `${i * w / n},${h - h * a / top}H${(i + 1) * w / n}`).join("L");
  return `<div class="say"><svg viewBox="0 -4 ${w} ${h + 8}" width="${w}" role="img" aria-label="activations over the run">${bars}<path d="${held}" fill="none" stroke="${palette.ink}" stroke-width="1"/></svg>` +
    `Bars: bytes alive in each step; line: held by the plan. Peak <b>${si(m.alive[m.peak], "B")}</b> in ${link(m.peak, title(G.boxes[m.peak]))}, planned <b>${si(m.planned, "B")}</b>; weights and inputs not counted.</div><div class="say"><b>alive at the peak</b><ul>${m.tensors.map((v) => `<li>${valueLine(v, G.boxes.filter((b) => b.kind === "kernel" && b.writes.includes(v)).map((b) => b.id))}</li>`).join("")}</ul></div>`;
}
function decisionList(verdict) {
  const groups = G.decisions.filter((d) => d.verdict === verdict && (verdict === "declined" || d.stage !== "ApplyFamilies")).sort((a, b) => b.times - a.times);
  const one = (d) => `<div class="say"><b>${esc(d.stage)}</b> <span class="num">${d.times}×</span> ${esc(d.reason)}<br>${d.nodes.slice(0, 30).map((n) => typeof n === "number" ? link(G.nodes[n].home, G.nodes[n].name, n) : esc(n)).join(", ")}${d.nodes.length > 30 ? ` and ${d.nodes.length - 30} more` : ""}</div>`;
  const why = new Map();
  if (verdict === "declined") for (const b of G.boxes) for (const w of new Set(b.why || [])) why.set(w, (why.get(w) || []).concat(b.id));
  const stops = [...why].sort((a, b) => b[1].length - a[1].length).map(([w, ids]) => `<div class="say">${esc(w)} <span class="num">${ids.length}×</span><br>${ids.slice(0, 12).map((i) => link(i, title(G.boxes[i]))).join(", ")}${ids.length > 12 ? ` and ${ids.length - 12} more` : ""}</div>`).join("");
  return (groups.length ? `<div class="say"><b>Rewrites that ${verdict === "declined" ? "declined" : "applied"}</b></div>` + groups.map(one).join("") : `<div class="say">No rewrite ${verdict}.</div>`) +
    (stops ? `<div class="say"><b>Why a kernel ends where it ends</b></div>${stops}` : "");
}
const TABS = {
  kernels: ["kernels", () => capped(G.boxes.filter((b) => b.kind === "kernel").sort((a, b) => b.share - a.share), kernelItem)],
  nodes: ["nodes", () => capped(G.nodes.map((n, i) => i).filter((i) => G.nodes[i].op).sort((a, b) => (G.nodes[a].boxes[0] ?? 1e9) - (G.nodes[b].boxes[0] ?? 1e9)), nodeItem)],
  folded: ["folded", () => { const gone = G.nodes.map((n, i) => i).filter((i) => G.nodes[i].op && !G.nodes[i].boxes.length);
    return gone.length ? `<div class="say">${gone.length} of ${G.nodes.filter((n) => n.op).length} ONNX nodes have no kernel: folded into others or into constants, or views that cost nothing.</div>` + capped(gone, nodeItem) : '<div class="say">Every node has a kernel.</div>'; }],
  declined: ["declined", () => decisionList("declined")], applied: ["applied", () => decisionList("applied")], memory: ["memory", memoryPlot],
};
function showTab(name) {
  tab = name; $("tabs").innerHTML = Object.entries(TABS).map(([k, [w]]) => `<button role="tab" data-tab="${k}" aria-selected="${k === tab && !hits}">${w}</button>`).join("");
  list.innerHTML = TABS[tab][1](); list.scrollTop = 0;
}
function search(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean).map((w) => { const m = /^(op|kernel|tensor|node):(.*)$/.exec(w); return m ? [m[1], m[2]] : ["", w]; }).filter((w) => w[1]);
  if (!words.length) { hits = null; shown = []; showTab(tab); redraw(); return; }
  const has = (b, [kind, w]) => (kind !== "" ? [kind] : ["kernel", "op", "node", "tensor"]).some((k) => k === "op" ? b.text.op.some((o) => kind ? o === w || o.startsWith(w) : o.includes(w)) : b.text[k].includes(w));
  const found = G.boxes.filter((b) => words.every((w) => has(b, w)));
  hits = new Set(found.map((b) => b.id)); shown = found.map((b) => [b.id, undefined]); cursor = -1;
  const nodes = []; // nodes that match by themselves come first
  G.nodes.forEach((n, i) => { const t = { node: n.name.toLowerCase(), op: n.op.toLowerCase(), tensor: [...n.in, ...n.out].join("\n").toLowerCase() };
    if (n.op && words.every(([k, w]) => (k ? [k] : ["node", "op", "tensor"]).some((f) => f in t && t[f].includes(w)))) { nodes.push(i); if (n.home >= 0) hits.add(n.home); } });
  if (nodes.length) shown = nodes.filter((i) => G.nodes[i].home >= 0).map((i) => [G.nodes[i].home, i]);
  $("tabs").querySelectorAll("button").forEach((b) => b.setAttribute("aria-selected", "false"));
  list.innerHTML = `<div class="say">${many(nodes.length, "node")}, ${many(hits.size, "box")}</div>` + capped(nodes, nodeItem) + capped(found.filter((b) => !nodes.some((i) => G.nodes[i].boxes.includes(b.id))), kernelItem);
  redraw();
}
function step(by) { if (!shown.length) return; cursor = (cursor + by + shown.length) % shown.length; choose(shown[cursor][0], true, shown[cursor][1]); }

// -- events --------------------------------------------------------------------------------------------------
document.addEventListener("click", (e) => {
  const t = e.target.closest("[data-box],[data-tab]"); if (!t) return;
  if (t.dataset.tab) { $("search").value = ""; hits = null; showTab(t.dataset.tab); redraw(); }
  else if (+t.dataset.box >= 0) choose(+t.dataset.box, true, t.dataset.node === undefined ? undefined : +t.dataset.node);
});
let drag = null; const fingers = new Map();
canvas.addEventListener("pointerdown", (e) => { canvas.setPointerCapture(e.pointerId); fingers.set(e.pointerId, [e.offsetX, e.offsetY]); drag = { x: e.offsetX, y: e.offsetY, far: 0 }; });
canvas.addEventListener("pointermove", (e) => {
  if (!fingers.has(e.pointerId)) { hover(e); return; }
  const before = [...fingers.values()].map((p) => [...p]), old = fingers.get(e.pointerId);
  fingers.set(e.pointerId, [e.offsetX, e.offsetY]); tip.hidden = true;
  if (fingers.size === 2) {
    const now = [...fingers.values()], d = (p) => Math.hypot(p[0][0] - p[1][0], p[0][1] - p[1][1]) || 1;
    zoom(d(now) / d(before), (now[0][0] + now[1][0]) / 2, (now[0][1] + now[1][1]) / 2); drag.far = 99;
  } else { view.x -= (e.offsetX - old[0]) / view.k; view.y -= (e.offsetY - old[1]) / view.k; drag.far += Math.abs(e.offsetX - old[0]) + Math.abs(e.offsetY - old[1]); clamp(); redraw(); }
});
for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (e) => {
  fingers.delete(e.pointerId);
  if (end === "pointerup" && drag && drag.far < 5) { const b = at(e.offsetX, e.offsetY); choose(b ? b.id : -1); }
});
canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
function hover(e) {
  const b = at(e.offsetX, e.offsetY); canvas.style.cursor = b ? "pointer" : ""; tip.hidden = !b; if (!b) return;
  tip.textContent = `${b.kind === "kernel" ? `${b.kernel} (${b.family})\n${b.nodes.map((i) => nodeWords(G.nodes[i])).join("\n")}` : b.kernel}`;
  const r = size(); tip.style.left = Math.min(e.offsetX + 14, r.width - tip.offsetWidth - 8) + "px"; tip.style.top = Math.min(e.offsetY + 16, r.height - tip.offsetHeight - 8) + "px";
}
canvas.addEventListener("wheel", (e) => {
  e.preventDefault(); const unit = e.deltaMode ? 30 : 1;
  if (e.ctrlKey || e.metaKey) zoom(Math.exp(-e.deltaY * unit * 0.004), e.offsetX, e.offsetY);
  else { view.x += (e.shiftKey ? e.deltaY : e.deltaX) * unit / view.k; view.y += (e.shiftKey ? 0 : e.deltaY) * unit / view.k; clamp(); redraw(); }
}, { passive: false });
const jump = (e) => { const r = size(); view.x = (e.offsetX - 4) / mapScale - r.width / view.k / 2; view.y = (e.offsetY - 4) / mapScale - r.height / view.k / 2; clamp(); redraw(); };
map.addEventListener("pointerdown", (e) => { map.setPointerCapture(e.pointerId); jump(e); });
map.addEventListener("pointermove", (e) => { if (e.buttons) jump(e); });
$("search").addEventListener("input", (e) => search(e.target.value));
function walk(key) {
  if (chosen < 0) { choose(G.boxes.reduce((a, b) => b.y < a.y ? b : a).id, true); return; }
  const b = G.boxes[chosen];
  const to = key === "ArrowDown" ? b.to.map((a) => a.b) : key === "ArrowUp" ? b.from.map((a) => a.a) : G.boxes.filter((o) => Math.abs(o.y + o.h / 2 - b.y - b.h / 2) < 4 && (key === "ArrowLeft" ? o.x < b.x : o.x > b.x)).map((o) => o.id);
  if (to.length) choose(to.reduce((x, y) => Math.abs(G.boxes[y].x - b.x) + Math.abs(G.boxes[y].y - b.y) < Math.abs(G.boxes[x].x - b.x) + Math.abs(G.boxes[x].y - b.y) ? y : x), true);
}
function theme(name) { document.documentElement.dataset.theme = name; readPalette(); if (!hits) showTab(tab); if (chosen >= 0) details(G.boxes[chosen]); redraw(); }
const kernels = G.memory.alive.length;
const KEYS = { "/": () => { $("search").focus(); $("search").select(); }, "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), "0": fit,
  f: () => chosen >= 0 && centre(G.boxes[chosen]), t: () => theme(dark() ? "light" : "dark"), "?": () => $("keys").showModal(),
  n: () => choose(chosen < 0 ? 0 : (chosen + 1) % kernels, true), p: () => choose(chosen <= 0 ? kernels - 1 : (chosen - 1) % kernels, true), Escape: () => choose(-1) };
document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || $("keys").open) return;
  if (e.target === $("search")) {
    if (e.key === "Enter") { step(e.shiftKey ? -1 : 1); e.preventDefault(); }
    if (e.key === "Escape") { e.target.value = ""; search(""); canvas.focus(); }
    return;
  }
  if (e.key === "Enter" && e.target.dataset && e.target.dataset.box) { e.target.click(); return; }
  if (e.key.startsWith("Arrow") && !e.target.closest("aside")) { walk(e.key); e.preventDefault(); }
  else if (KEYS[e.key]) { KEYS[e.key](); e.preventDefault(); }
});
for (const [id, key] of [["in", "+"], ["out", "-"], ["fit", "0"], ["theme", "t"], ["help", "?"]]) $(id).addEventListener("click", () => KEYS[key]());
let touched = false; // until somebody moves it, the graph starts anew at every size: a frame of another page gets its own late
for (const what of ["pointerdown", "wheel", "keydown"]) document.addEventListener(what, () => { touched = true; }, { capture: true });
new ResizeObserver(() => touched ? redraw() : start()).observe($("stage"));

const unique = new Set(G.boxes.filter((b) => b.kind === "kernel").map((b) => b.kernel)).size;
$("totals").textContent = `${G.nodes.filter((n) => n.op).length} ONNX nodes in ${kernels} calls of ${unique} kernels; ${si(G.flops, "FLOP")}${G.latency ? `, ${time(G.latency)}` : ""}; shares are of the ${G.by}`;
theme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
start();
const asked = parseInt(location.hash.slice(1), 10);
if (asked >= 0 && asked < G.boxes.length) { touched = true; choose(asked, true); }
window.tvmopt = { data: G, view, where: (i) => { const b = G.boxes[i], r = size(); return [r.left + (b.x + WIDTH / 2 - view.x) * view.k, r.top + (b.y + b.h / 2 - view.y) * view.k]; }, chosen: () => chosen, hits: () => hits && [...hits] };
