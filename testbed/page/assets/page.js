/* The page itself: choices, keys, light and dark. */

const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const runs = data.timelines.filter((run) => run.cases.length);
const cases = runs.flatMap((run) => run.cases.map((one) => ({ run, ...one })));
const state = { at: 0, iteration: 0, other: -1 };
const MOST_LANES_BESIDE = 16;
let timeline = null, chart = null, shownNow = 0, shownLast = 0;

/* --- light and dark --- */

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function themed() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

function redrawn() {
  themed();
  timeline?.draw();
  drawChart();
}

function drawChart() {
  chart?.destroy();
  chart = iterationsChart(byId("iterations-chart"), data.iterations, data.happened);
}

function switchTheme() {
  root.dataset.theme = isDark() ? "light" : "dark";
  redrawn();
}

/* Paper is light, and shows what was out of sight. */
function printed() {
  const before = root.dataset.theme;
  root.dataset.theme = "light";
  timeline?.draw(true);
  drawChart();
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    redrawn();
  }, { once: true });
}

/* --- what is shown --- */

function nameOf(one) {
  return [one.run.name, one.label].filter(Boolean).join(": ");
}

function timesOf(strip) {
  return strip.times.map(([job, seconds, bubble]) => `${job} ${shownTime(seconds)}, bubble ${percent(bubble)}`.trim()).join("; ");
}

async function panelsOf(one, wanted) {
  const measured = one.measured.reduce((best, strip) => Math.abs(strip.iteration - wanted) < Math.abs(best.iteration - wanted) ? strip : best);
  const predicted = one.predicted[measured.predicted];
  const typical = measured.iteration === one.typical ? ", the nearest to the median" : measured.warmup ? ", warm-up" : "";
  const [first, second] = await Promise.all([lanesOf(predicted), lanesOf(measured)]);
  return [
    { run: one.run, strip: first, title: `${nameOf(one)}, predicted`, said: timesOf(predicted) },
    { run: one.run, strip: second, title: `${nameOf(one)}, measured`, said: `iteration ${measured.iteration}${typical}: ${timesOf(measured)}` },
  ];
}

async function show(keep) {
  const number = ++shownNow;
  const chosen = [[cases[state.at], state.iteration]];
  if (state.other >= 0) chosen.push([cases[state.other], cases[state.other].typical]);
  const panels = (await Promise.all(chosen.map(([one, iteration]) => panelsOf(one, iteration)))).flat();
  if (number !== shownNow) return;
  timeline.show(panels, keep);
  legend();
  byId("timeline-said").textContent = "";
  shownLast = number;
}

function legend() {
  if (!timeline) return;
  const kinds = new Set();
  let collectives = false, cuts = false, dashed = false;
  for (const { strip, run } of timeline.panels) {
    for (let i = 0; i < strip.actions.rows; i++) kinds.add(strip.actions.kinds[strip.actions.kind[i]]);
    collectives ||= strip.collectives.length > 0;
    for (let i = 0; i < strip.messages.rows && !dashed; i++) dashed = !isArrivalKnown(strip.messages, i) && !strip.collective[strip.messages.kind[i]];
    cuts ||= strip.lanes.some((lane, index) => index && siteOf(run, lane.rank) !== siteOf(run, strip.lanes[index - 1].rank));
  }
  const entries = Object.keys(MEANINGS).filter((kind) => kinds.has(kind)).map((kind) => [`box-${kind.toLowerCase()}`, `${kind} ${MEANINGS[kind]}`]);
  entries.push(["box-idle", "idle"], ["arrow-activation", "activation on its way"], ["arrow-gradient", "gradient on its way"]);
  if (dashed) entries.push(["line-dashed", "until taken, of one that lay ready: its arrival is not known"]);
  if (collectives) entries.push(["box-collective", "from another replica, on its way"]);
  if (cuts) entries.push(["line-cut", "datacenter boundary"]);
  byId("timeline-legend").replaceChildren(...entries.map(([name, said]) => {
    const item = document.createElement("li"), swatch = document.createElement("span");
    swatch.className = `swatch ${name}`;
    item.append(swatch, said);
    return item;
  }));
}

/* The fastest schedule of the first run, beside that of the second one, or beside 1F1B. */
function first() {
  const numberOf = (run, label) => cases.findIndex((one) => one.run === run && one.label === label);
  state.at = Math.max(0, numberOf(runs[0], runs[0].first[0]));
  state.other = runs.length > 1 ? numberOf(runs[1], runs[1].first[0]) : numberOf(runs[0], runs[0].first[1]);
  if (runs.some((run) => run.nodes.length > MOST_LANES_BESIDE)) state.other = -1;
  state.iteration = cases[state.at].typical;
}

/* --- choices --- */

const ARROWS = [["crossing", "between datacenters"], ["all", "all"], ["selected", "of what is selected"]];

function chooser(label, key, options, value, changed) {
  const frame = document.createElement("label"), select = document.createElement("select");
  frame.textContent = label;
  select.setAttribute("aria-keyshortcuts", key);
  select.append(...options.map(([value, text]) => new Option(text, value)));
  select.value = String(value);
  select.addEventListener("change", () => changed(select.value));
  frame.append(select);
  return frame;
}

function button(text, label, pressed) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.setAttribute("aria-label", label);
  made.title = label;
  made.addEventListener("click", pressed);
  return made;
}

function controls() {
  const one = cases[state.at];
  const focused = document.activeElement?.closest?.("#timeline-controls label, #timeline-controls button");
  const place = focused ? [...byId("timeline-controls").querySelectorAll("label, button")].indexOf(focused) : -1;
  const all = cases.map((each, index) => [String(index), nameOf(each)]);
  const left = one.left_out ? ` (${one.left_out} not on this page)` : "";
  byId("timeline-controls").replaceChildren(
    chooser("schedule", "j k", all, state.at, (value) => choose(Number(value))),
    chooser(`iteration${left}`, "[ ]", one.measured.map((strip) => [String(strip.iteration), `${strip.iteration}${strip.iteration === one.typical ? " (typical)" : strip.warmup ? " (warm-up)" : ""}`]), state.iteration, (value) => turn(Number(value))),
    chooser("compare with", "c", [["-1", "nothing"], ...all.filter(([index]) => index !== String(state.at))], state.other, (value) => compare(Number(value))),
    chooser("messages", "m", ARROWS, timeline.arrows, (value) => arrows(value)),
    button("−", "zoom out", () => timeline.zoom(2)),
    button("+", "zoom in", () => timeline.zoom(0.5)),
    button("◀", "earlier", () => timeline.pan(-0.25)),
    button("▶", "later", () => timeline.pan(0.25)),
    button("whole", "whole iteration", () => timeline.span(0, timeline.whole)),
  );
  const again = byId("timeline-controls").querySelectorAll("label, button")[place];
  (again?.querySelector("select") ?? again)?.focus({ preventScroll: true });
}

function choose(at) {
  state.at = (at + cases.length) % cases.length;
  if (state.other === state.at) state.other = -1;
  turn(cases[state.at].typical);
}

function turn(iteration) {
  state.iteration = iteration;
  controls();
  return show(true);
}

function turnBy(step) {
  const numbers = cases[state.at].measured.map((strip) => strip.iteration);
  const now = numbers.indexOf(state.iteration);
  if (numbers[now + step] !== undefined) turn(numbers[now + step]);
}

function compare(other) {
  state.other = other;
  controls();
  show(true);
}

function arrows(which) {
  timeline.arrows = which;
  controls();
  timeline.redraw();
}

function nextRun() {
  const after = cases.findIndex((one, index) => index > state.at && one.run !== cases[state.at].run);
  choose(after < 0 ? 0 : after);
}

/* --- keys --- */

const ANYWHERE = {
  "?": () => byId("keys").showModal(),
  t: switchTheme,
};
const OF_TIMELINES = {
  j: () => choose(state.at + 1),
  k: () => choose(state.at - 1),
  r: nextRun,
  "[": () => turnBy(-1),
  "]": () => turnBy(1),
  c: () => compare(state.other >= 0 || cases.length < 2 ? -1 : (state.at + 1) % cases.length),
  m: () => arrows(ARROWS[(ARROWS.findIndex(([name]) => name === timeline.arrows) + 1) % ARROWS.length][0]),
  "+": () => timeline.zoom(0.5),
  "=": () => timeline.zoom(0.5),
  "-": () => timeline.zoom(2),
  0: () => timeline.span(0, timeline.whole),
  n: () => timeline.step(panelNow(), 1, 0),
  p: () => timeline.step(panelNow(), -1, 0),
};
const OF_A_PANEL = {
  ArrowLeft: (event) => timeline.pan(event.shiftKey ? -0.5 : -0.1),
  ArrowRight: (event) => timeline.pan(event.shiftKey ? 0.5 : 0.1),
  ArrowUp: () => timeline.step(panelNow(), 0, -1),
  ArrowDown: () => timeline.step(panelNow(), 0, 1),
  Escape: () => timeline.select(panelNow(), -1),
};

function panelNow() {
  return timeline.panels.find((panel) => panel.overlay === document.activeElement) ?? timeline.selected?.panel ?? timeline.panels[timeline.panels.length > 1 ? 1 : 0];
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open) return;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const onPanel = timeline?.panels.some((panel) => panel.overlay === event.target);
  const action = ANYWHERE[event.key] ?? (timeline ? OF_TIMELINES[event.key] ?? (onPanel ? OF_A_PANEL[event.key] : undefined) : undefined);
  if (!action) return;
  event.preventDefault();
  action(event);
}

/* --- beginning --- */

async function begin() {
  byId("theme").addEventListener("click", switchTheme);
  byId("show-keys").addEventListener("click", () => byId("keys").showModal());
  byId("close-keys").addEventListener("click", () => byId("keys").close());
  document.addEventListener("keydown", pressed);
  addEventListener("beforeprint", printed);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawn);
  if (cases.length) {
    byId("timeline").hidden = false;
    timeline = new Timeline(byId("timeline-panels"), (said) => { byId("timeline-said").textContent = said; });
    first();
    controls();
    await show(false);
  }
  themed();
  requestAnimationFrame(() => {
    root.dataset.interactiveMs = String(performance.now());
    setTimeout(drawChart);
  });
  new ResizeObserver(() => chart?.setSize({ width: byId("iterations-chart").clientWidth, height: 300 })).observe(byId("iterations-chart"));
}

begin();
