/* A trace as one HTML file that needs nothing else: lanes, zoom, hover, search. What draws it is the script below, in
 * its user's browser. */
#ifndef TRACE_TIMELINE_H
#define TRACE_TIMELINE_H

#include "summary.h"

/* clang-format off */
static const char page_head[] =
    "<!doctype html>\n"
    "<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width"
    ",initial-scale=1\">\n"
    "<title>Timeline</title>\n"
    "<style>\n"
    ":root { --back:#fbfbfa; --ink:#222; --faint:#666; --line:#e2e2de; --band:#f1f1ee; --hit:#d11; color-"
    "scheme:light dark }\n"
    "@media (prefers-color-scheme:dark) { :root { --back:#16181b; --ink:#e6e6e3; --faint:#9a9a96; --line:"
    "#30343a; --band:#1e2125; --hit:#ff6b5e } }\n"
    "* { box-sizing:border-box }\n"
    "body { margin:0; background:var(--back); color:var(--ink); font:13px/1.45 system-ui,sans-serif }\n"
    "header { display:flex; flex-wrap:wrap; gap:6px 14px; align-items:center; padding:8px 14px; border-bo"
    "ttom:1px solid var(--line); position:sticky; top:0; background:var(--back); z-index:2 }\n"
    "h1 { font-size:15px; margin:0; overflow-wrap:anywhere }\n"
    "input,button { font:inherit; color:inherit; background:var(--band); border:1px solid var(--line); bo"
    "rder-radius:5px; padding:3px 9px }\n"
    "input { width:17em; max-width:60vw }\n"
    "#found,#span,.hint { color:var(--faint) } #found:empty { display:none }\n"
    "#legend { display:flex; flex-wrap:wrap; gap:2px 12px; padding:6px 14px; color:var(--faint) }\n"
    "#legend i { display:inline-block; width:10px; height:10px; border-radius:2px; margin-right:5px; vert"
    "ical-align:-1px }\n"
    "#chart { display:block; width:100%; cursor:grab; touch-action:pan-y; user-select:none }\n"
    "#chart.drag { cursor:grabbing }\n"
    ".lane { fill:var(--ink); font-weight:600; font-size:12px } .who { fill:var(--faint); font-size:11px "
    "}\n"
    ".tick { stroke:var(--line) } .time { fill:var(--faint); font-size:11px }\n"
    ".e { rx:2px } .e.dim { opacity:.18 } .e.hit { stroke:var(--hit); stroke-width:2px }\n"
    ".name { fill:#111; font-size:11px; pointer-events:none } .name.dim { opacity:.2 }\n"
    ".sep { fill:var(--band) }\n"
    "#tip { position:fixed; display:none; max-width:min(46em,92vw); background:var(--back); border:1px so"
    "lid var(--line); border-radius:6px; padding:7px 10px; box-shadow:0 4px 16px #0003; pointer-events:no"
    "ne; z-index:3; overflow-wrap:anywhere }\n"
    "#tip b { font-weight:600 } #tip table { border-spacing:0 } #tip td:first-child { color:var(--faint);"
    " padding-right:10px; white-space:nowrap; vertical-align:top }\n"
    "</style></head><body>\n"
    "<header><h1 id=\"title\"></h1><label>Search <input id=\"search\" type=\"search\" title=\"in names, s"
    "tages and details\"></label>\n"
    "<span id=\"found\"></span><span><button id=\"in\">+</button> <button id=\"out\">&minus;</button> <bu"
    "tton id=\"fit\">All</button></span>\n"
    "<span id=\"span\"></span><span class=\"hint\">wheel: zoom, drag: move, double click: to a span, Ente"
    "r: next match</span></header>\n"
    "<div id=\"legend\"></div><svg id=\"chart\" role=\"img\" aria-label=\"Timeline\"></svg><div id=\"tip"
    "\"></div>\n"
    "<script>\n"
    "\"use strict\";\n"
    "const T =\n";

static const char page_tail[] =
    ";\n"
    "const colours = { call:\"#9aa7b5\", initialise:\"#c9b458\", upload:\"#e59f4f\", input:\"#f0c05a\", p"
    "lan:\"#b79be0\", compile:\"#e08bb4\",\n"
    "  launch:\"#7fb3e6\", synchronise:\"#b9c4cf\", output:\"#8fd0c0\", free:\"#c8b8a4\", frame:\"#7cc7d8"
    "\", queue:\"#e58a7d\", driver:\"#a9c77a\", kernel:\"#5fb56b\" };\n"
    "const $ = id => document.getElementById(id), svg = $(\"chart\"), ROW = 18, HEAD = 22, TOP = 26;\n"
    "const colour = s => colours[s] || \"#bbb\";\n"
    "document.title = T.title; $(\"title\").textContent = T.title;\n"
    "// rows of each lane: what lies inside another goes below it\n"
    "const lanes = T.lanes.map(l => ({ process:l[0], name:l[1], rows:[] })), events = T.events.map(e => ("
    "{ lane:e[0], name:T.texts[e[1]],\n"
    "  stage:T.texts[e[2]], begin:e[3], end:e[3] + e[4], bytes:e[5], packed:e[6], detail:T.texts[e[7]] })"
    ");\n"
    "for (const e of events) {\n"
    "  const rows = lanes[e.lane].rows;\n"
    "  let r = 0;\n"
    "  while (r < rows.length && rows[r].length && rows[r][rows[r].length - 1].end > e.begin) r++;\n"
    "  (rows[r] = rows[r] || []).push(e);\n"
    "}\n"
    "let y = TOP;\n"
    "for (const l of lanes) { l.y = y; y += HEAD + l.rows.length * ROW + 8; }\n"
    "const height = y;\n"
    "let from = 0, to = T.length || 1, hits = null, at = -1;\n"
    "const words = ns => ns >= 1e9 ? (ns / 1e9).toFixed(3) + \" s\" : ns >= 1e6 ? (ns / 1e6).toFixed(3) +"
    " \" ms\" : ns >= 1e3 ? (ns / 1e3).toFixed(2) + \" µs\" : ns + \" ns\";\n"
    "const bytes = n => n >= 1 << 20 ? (n / 1048576).toFixed(1) + \" MiB\" : n >= 1024 ? (n / 1024).toFix"
    "ed(1) + \" KiB\" : n + \" B\";\n"
    "// what of a name fits into a width, with an ellipsis where it is cut\n"
    "const pen = document.createElement(\"canvas\").getContext(\"2d\"), widths = new Map();\n"
    "pen.font = \"11px system-ui,sans-serif\";\n"
    "function wide(text) {\n"
    "  if (!widths.has(text)) widths.set(text, pen.measureText(text).width);\n"
    "  return widths.get(text);\n"
    "}\n"
    "function fitted(text, room) {\n"
    "  if (wide(text) <= room) return text;\n"
    "  let n = Math.min(text.length - 1, Math.floor(text.length * room / wide(text)));\n"
    "  while (n > 1 && pen.measureText(text.slice(0, n) + \"…\").width > room) n--;\n"
    "  return n > 1 ? text.slice(0, n) + \"…\" : \"\";\n"
    "}\n"
    "function make(kind, values, text) {\n"
    "  const x = document.createElementNS(\"http://www.w3.org/2000/svg\", kind);\n"
    "  for (const k in values) x.setAttribute(k, values[k]);\n"
    "  if (text !== undefined) x.textContent = text;\n"
    "  return x;\n"
    "}\n"
    "// the first of a row that ends after a time\n"
    "function first(row, time) {\n"
    "  let a = 0, b = row.length;\n"
    "  while (a < b) { const m = a + b >> 1; if (row[m].end > time) b = m; else a = m + 1; }\n"
    "  return a;\n"
    "}\n"
    "function axis(all, w, scale) {\n"
    "  let step = Math.pow(10, Math.ceil(Math.log10((to - from) / w * 110)));\n"
    "  for (const d of [5, 2]) if (step / d * scale > 100) { step /= d; break; }\n"
    "  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {\n"
    "    const x = (t - from) * scale, label = words(Math.round(t)).replace(/(\\.\\d*?)0+ /, \"$1 \").rep"
    "lace(\". \", \" \");\n"
    "    all.append(make(\"line\", { class:\"tick\", x1:x, x2:x, y1:0, y2:height }));\n"
    "    if (x + 4 + wide(label) < w) all.append(make(\"text\", { class:\"time\", x:x + 3, y:13 }, label)"
    ");\n"
    "  }\n"
    "}\n"
    "function draw() {\n"
    "  const w = svg.clientWidth || 1200, scale = w / (to - from), all = document.createDocumentFragment("
    ");\n"
    "  svg.setAttribute(\"height\", height);\n"
    "  lanes.forEach((l, i) => { if (i % 2) all.append(make(\"rect\", { class:\"sep\", x:0, y:l.y, width:"
    "w, height:HEAD + l.rows.length * ROW + 8 })); });\n"
    "  axis(all, w, scale);\n"
    "  for (const l of lanes) {\n"
    "    const title = make(\"text\", { class:\"lane\", x:6, y:l.y + 15 }, l.name);\n"
    "    title.append(make(\"tspan\", { class:\"who\", dx:8 }, l.process));\n"
    "    l.rows.forEach((row, r) => {\n"
    "      let last = -1;\n"
    "      for (let i = first(row, from); i < row.length && row[i].begin < to; i++) {\n"
    "        const e = row[i], x = Math.max((e.begin - from) * scale, -2), right = Math.min((e.end - from"
    ") * scale, w + 2), hit = hits && hits.has(e);\n"
    "        if (right < last + .4 && !hit) continue;      // it would lie under the one before\n"
    "        const width = Math.max(right - x, .8), top = l.y + HEAD + r * ROW, box = make(\"rect\",\n"
    "          { class:\"e\" + (hits ? hit ? \" hit\" : \" dim\" : \"\"), x, y:top, width, height:ROW - 3"
    ", fill:colour(e.stage) });\n"
    "        box.event = e;\n"
    "        all.append(box);\n"
    "        const left = Math.max(x, 0) + 4, room = Math.min(right, w) - left - 3, name = room > 20 ? fi"
    "tted(e.name, room) : \"\";\n"
    "        if (name) all.append(make(\"text\", { class:\"name\" + (hits && !hit ? \" dim\" : \"\"), x:l"
    "eft, y:top + 12 }, name));\n"
    "        last = x + width;\n"
    "      }\n"
    "    });\n"
    "    all.append(title);\n"
    "  }\n"
    "  svg.replaceChildren(all);\n"
    "  $(\"span\").textContent = words(Math.round(to - from)) + \" of \" + words(T.length);\n"
    "}\n"
    "let waiting = false;\n"
    "function redraw() { if (!waiting) { waiting = true; requestAnimationFrame(() => { waiting = false; d"
    "raw(); }); } }\n"
    "function show(a, b) {\n"
    "  const most = T.length || 1, length = Math.min(Math.max(b - a, 100), most * 1.02);\n"
    "  const middle = (a + b) / 2;\n"
    "  from = Math.min(Math.max(middle - length / 2, -most * .01), most * 1.01 - length);\n"
    "  to = from + length;\n"
    "  redraw();\n"
    "}\n"
    "function zoom(factor, x) {\n"
    "  const time = from + (to - from) * x;\n"
    "  show(time - (time - from) * factor, time + (to - time) * factor);\n"
    "}\n"
    "svg.addEventListener(\"wheel\", e => {\n"
    "  if (!e.ctrlKey && e.shiftKey) show(from + e.deltaY * (to - from) / 1000, to + e.deltaY * (to - fro"
    "m) / 1000);\n"
    "  else zoom(Math.exp(e.deltaY * .0015), e.offsetX / svg.clientWidth);\n"
    "  e.preventDefault();\n"
    "}, { passive:false });\n"
    "let grip = null;\n"
    "svg.addEventListener(\"pointerdown\", e => { grip = { x:e.clientX, y:e.clientY + scrollY, from, to }"
    "; svg.classList.add(\"drag\"); svg.setPointerCapture(e.pointerId); });\n"
    "for (const end of [\"pointerup\", \"pointercancel\"]) svg.addEventListener(end, () => { grip = null;"
    " svg.classList.remove(\"drag\"); });\n"
    "svg.addEventListener(\"pointermove\", e => {\n"
    "  if (grip) { const d = (grip.x - e.clientX) / svg.clientWidth * (grip.to - grip.from); show(grip.fr"
    "om + d, grip.to + d); if (e.pointerType === \"mouse\") scrollTo(0, grip.y - e.clientY); }\n"
    "  const under = document.elementFromPoint(e.clientX, e.clientY);\n"
    "  tell(under && under.event, e.clientX, e.clientY);\n"
    "});\n"
    "svg.addEventListener(\"pointerleave\", () => tell(null));\n"
    "svg.addEventListener(\"dblclick\", e => { const x = document.elementFromPoint(e.clientX, e.clientY)."
    "event; if (x) show(x.begin - (x.end - x.begin) * .2, x.end + (x.end - x.begin) * .2); });\n"
    "function tell(e, x, y) {\n"
    "  const tip = $(\"tip\");\n"
    "  tip.style.display = e ? \"block\" : \"none\";\n"
    "  if (!e) return;\n"
    "  const rows = [[\"stage\", e.stage], [\"lane\", lanes[e.lane].name + \", \" + lanes[e.lane].process"
    "], [\"begin\", words(Math.round(e.begin))], [\"takes\", words(Math.round(e.end - e.begin))]];\n"
    "  if (e.bytes) rows.push([\"bytes\", bytes(e.bytes) + (e.packed && e.packed !== e.bytes ? \", packed"
    " \" + bytes(e.packed) : \"\")]);\n"
    "  if (e.detail) rows.push([\"\", e.detail.slice(0, 600)]);\n"
    "  const table = document.createElement(\"table\"), name = document.createElement(\"b\");\n"
    "  name.textContent = e.name;\n"
    "  for (const [k, v] of rows) { const r = table.insertRow(); r.insertCell().textContent = k; r.insert"
    "Cell().textContent = v; }\n"
    "  tip.replaceChildren(name, table);\n"
    "  const box = tip.getBoundingClientRect();\n"
    "  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - box.width - 8)) + \"px\";\n"
    "  tip.style.top = Math.max(4, y + 18 + box.height > innerHeight ? y - box.height - 12 : y + 18) + \""
    "px\";\n"
    "}\n"
    "function search() {\n"
    "  const want = $(\"search\").value.trim().toLowerCase();\n"
    "  at = -1;\n"
    "  hits = want ? new Set(events.filter(e => (e.name + \" \" + e.stage + \" \" + e.detail).toLowerCase"
    "().includes(want))) : null;\n"
    "  let sum = 0;\n"
    "  if (hits) for (const e of hits) sum += e.end - e.begin;\n"
    "  $(\"found\").textContent = hits ? hits.size + \" found, \" + words(Math.round(sum)) : \"\";\n"
    "  redraw();\n"
    "}\n"
    "$(\"search\").addEventListener(\"input\", search);\n"
    "$(\"search\").addEventListener(\"keydown\", e => {\n"
    "  if (e.key !== \"Enter\" || !hits || !hits.size) return;\n"
    "  const all = [...hits];\n"
    "  at = (at + (e.shiftKey ? all.length - 1 : 1)) % all.length;\n"
    "  const x = all[at], near = Math.max(x.end - x.begin, (to - from) / 50);\n"
    "  show(x.begin - near, x.end + near);\n"
    "  scrollTo(0, lanes[x.lane].y - 60);\n"
    "});\n"
    "addEventListener(\"keydown\", e => {\n"
    "  if (e.target === $(\"search\")) return;\n"
    "  const d = (to - from) / 5;\n"
    "  if (e.key === \"ArrowLeft\" || e.key === \"a\") show(from - d, to - d);\n"
    "  else if (e.key === \"ArrowRight\" || e.key === \"d\") show(from + d, to + d);\n"
    "  else if (e.key === \"+\" || e.key === \"w\") zoom(.7, .5);\n"
    "  else if (e.key === \"-\" || e.key === \"s\") zoom(1 / .7, .5);\n"
    "  else if (e.key === \"/\") { $(\"search\").focus(); e.preventDefault(); }\n"
    "});\n"
    "$(\"in\").onclick = () => zoom(.6, .5); $(\"out\").onclick = () => zoom(1 / .6, .5); $(\"fit\").oncl"
    "ick = () => show(0, T.length);\n"
    "for (const s of [...new Set(events.map(e => e.stage))]) {\n"
    "  const x = document.createElement(\"span\"), i = document.createElement(\"i\");\n"
    "  i.style.background = colour(s);\n"
    "  x.append(i, s);\n"
    "  $(\"legend\").append(x);\n"
    "}\n"
    "addEventListener(\"resize\", redraw);\n"
    "if (location.hash.length > 1) { $(\"search\").value = decodeURIComponent(location.hash.slice(1)); se"
    "arch(); }\n"
    "draw();\n"
    "</script></body></html>\n";
/* clang-format on */

/* A string of JSON that may stand in a script of HTML. Its texts are valid UTF-8, since they came out of JSON. */
static inline void page_text(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 32 || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&') fprintf(to, "\\u%04x", c);
        else fputc(c, to);
    }
    fputc('"', to);
}

typedef struct page {
    const trace *t;
    const char **lanes;
    int *processes;
    size_t *numbers; /* of the trace's texts, by their place in its table */
    size_t n_lanes, lanes_cap, processes_cap;
} page;

static inline void page_begin(page *p, const trace *t) {
    *p = (page){ .t = t, .numbers = calloc(t->texts_cap, sizeof *p->numbers) };
    if (!p->numbers) exit(1);
    for (size_t i = 0, n = 0; i < t->texts_cap; i++)
        if (t->texts[i]) p->numbers[i] = n++;
}

static inline size_t page_number(const page *p, const char *text) { return p->numbers[trace_slot(p->t, text)]; }

static inline size_t page_lane(page *p, const trace_event *e) {
    for (size_t i = 0; i < p->n_lanes; i++)
        if (p->lanes[i] == e->lane && p->processes[i] == e->process) return i;
    p->lanes = trace_room((void *)p->lanes, p->n_lanes, &p->lanes_cap, sizeof *p->lanes);
    p->processes = trace_room(p->processes, p->n_lanes, &p->processes_cap, sizeof *p->processes);
    p->lanes[p->n_lanes] = e->lane;
    p->processes[p->n_lanes] = e->process;
    return p->n_lanes++;
}

static inline bool page_shows(const trace_event *e) { return !trace_is(e, "note") && !trace_is(e, "clock"); }

/* Times are ns since the first event. */
static inline void page_data(FILE *to, const trace *t, const char *title) {
    page p;
    page_begin(&p, t);
    fputs("{ \"title\":", to);
    page_text(to, title);
    fprintf(to, ", \"length\":%lld, \"events\":[", (long long)(t->end - t->begin));
    for (size_t i = 0, n = 0; i < t->n; i++) {
        const trace_event *e = &t->all[i];
        if (!page_shows(e)) continue;
        fprintf(to, "%s\n[%zu,%zu,%zu,%lld,%lld,%lld,%lld,%zu]", n++ ? "," : "", page_lane(&p, e),
                page_number(&p, e->name), page_number(&p, e->stage), (long long)(e->begin - t->begin),
                (long long)(e->end - e->begin), (long long)e->bytes, (long long)e->packed, page_number(&p, e->detail));
    }
    fputs("],\n\"lanes\":[", to);
    for (size_t i = 0; i < p.n_lanes; i++) {
        fputs(i ? ",[" : "[", to);
        page_text(to, process_name(t, p.processes[i]));
        fputc(',', to);
        page_text(to, p.lanes[i]);
        fputc(']', to);
    }
    fputs("],\n\"texts\":[", to);
    for (size_t i = 0, n = 0; i < t->texts_cap; i++) {
        if (!t->texts[i]) continue;
        if (n++) fputc(',', to);
        page_text(to, t->texts[i]);
    }
    fputs("] }", to);
    free(p.numbers);
    free((void *)p.lanes);
    free(p.processes);
}

static inline bool page_write(const trace *t, const char *path, const char *title) {
    FILE *to = fopen(path, "wb");
    if (!to) {
        fprintf(stderr, "genie_trace: %s: %s\n", path, strerror(errno));
        return false;
    }
    fputs(page_head, to);
    page_data(to, t, title);
    fputs(page_tail, to);
    bool ok = !ferror(to);
    ok = fclose(to) == 0 && ok;
    if (!ok) fprintf(stderr, "genie_trace: %s could not be written: %s\n", path, strerror(errno));
    return ok;
}

#endif
