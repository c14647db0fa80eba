/* Timelines on canvas: a panel per iteration shown, all on one span of time. Only what is visible is drawn. */

const NAMES_WIDTH = 118, AXIS_HEIGHT = 22, FOOT = 6;
const MEANINGS = { F: "forward", B: "full backward", I: "input gradient", W: "weight gradient" };
const LEAST_SPAN_S = 2e-6;
const MOST_ARROWS = 900, MOST_HALOED = 250;

function shownTime(seconds) {
  if (!Number.isFinite(seconds)) return "-";
  const size = Math.abs(seconds);
  const [scale, unit] = size >= 1 ? [1, "s"] : size >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return size === 0 ? "0 s" : `${Number((seconds * scale).toPrecision(5))} ${unit}`;
}

function shownSize(bytes) {
  const [scale, unit] = bytes >= 1e9 ? [1e9, "GB"] : bytes >= 1e6 ? [1e6, "MB"] : bytes >= 1e3 ? [1e3, "kB"] : [1, "B"];
  return `${Number((bytes / scale).toPrecision(4))} ${unit}`;
}

function percent(share) {
  return share === null ? "-" : `${(100 * share).toFixed(1).replace(/^-0\.0$/, "0.0")} %`;
}

function tickStep(span, room) {
  const rough = span / Math.max(2, room);
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
}

/* Colours of the style sheet, as they are now: light or dark. */
function coloursNow() {
  const style = getComputedStyle(document.documentElement);
  const get = (name) => style.getPropertyValue(`--${name}`).trim();
  const shade = (colour, share) => {
    const [from, to] = [colour, get("lane")].map((hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return `rgb(${from.map((part, i) => Math.round(part + (to[i] - part) * share)).join(" ")})`;
  };
  return { get, shade };
}

class Timeline {
  /* `onSaid` is given the words for what is selected or under the pointer. */
  constructor(place, onSaid) {
    this.place = place;
    this.onSaid = onSaid;
    this.panels = [];
    this.from = 0;
    this.to = 1;
    this.whole = 1;
    this.arrows = "crossing";
    this.selected = null;
    this.waiting = false;
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    document.body.append(this.tip);
    addEventListener("scroll", () => { if (this.panels.some((panel) => panel.stale && this.inSight(panel))) this.redraw(); }, { passive: true });
    new ResizeObserver(() => { if (place.clientWidth !== this.width) this.redraw(); }).observe(place);
  }

  /* Panels: [{run, strip, title, said}], drawn under each other. Keeps the span where `keep`. */
  show(panels, keep) {
    const focused = this.place.contains(document.activeElement) ? this.panels.findIndex((p) => p.overlay === document.activeElement) : -1;
    this.place.replaceChildren();
    this.selected = null;
    this.panels = panels.map((panel) => this.made(panel));
    this.whole = Math.max(1e-9, ...panels.map((panel) => panel.strip.seconds)) * 1.012;
    if (!keep || this.from >= this.whole) { this.from = 0; this.to = this.whole; }
    this.to = Math.min(this.to, this.whole);
    this.draw();
    if (focused >= 0) this.panels[Math.min(focused, this.panels.length - 1)]?.overlay.focus({ preventScroll: true });
  }

  made(panel) {
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const name = document.createElement("strong");
    name.textContent = panel.title;
    caption.append(name, ` ${panel.said}`);
    const frame = document.createElement("div");
    frame.className = "strip";
    const [canvas, overlay] = [0, 1].map(() => document.createElement("canvas"));
    overlay.tabIndex = 0;
    overlay.setAttribute("role", "application");
    overlay.setAttribute("aria-roledescription", "timeline");
    overlay.setAttribute("aria-label", `Timeline: ${panel.title}, ${panel.said}. A lane for each of ${panel.strip.lanes.length} ranks.${panel.strip.events.length ? ` In it: ${[...new Set(panel.strip.events.map((one) => one[1]))].join("; ")}.` : ""} N and P select actions, plus and minus zoom, arrows pan.`);
    frame.append(canvas, overlay);
    figure.append(caption, frame);
    this.place.append(figure);
    const count = panel.strip.lanes.length;
    const lane = count <= 8 ? 26 : count <= 20 ? 18 : count <= 40 ? 13 : count <= 96 ? 9 : 6;
    const laneOf = new Map(panel.strip.lanes.map((one, index) => [one.rank, index]));
    const site = new Map(panel.strip.lanes.map((one) => [one.rank, siteOf(panel.run, one.rank)]));
    const made = { ...panel, canvas, overlay, lane, laneOf, site, height: AXIS_HEIGHT + lane * count + FOOT };
    frame.style.height = `${made.height}px`;
    this.listen(made);
    return made;
  }

  /* --- span ------------------------------------------------------------------------------------ */

  span(from, to) {
    const wide = Math.min(this.whole, Math.max(LEAST_SPAN_S, to - from));
    this.from = Math.min(Math.max(0, from), this.whole - wide);
    this.to = this.from + wide;
    this.redraw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const wide = (this.to - this.from) * factor;
    const share = (at - this.from) / (this.to - this.from);
    this.span(at - share * wide, at + (1 - share) * wide);
  }

  pan(share) {
    const by = share * (this.to - this.from);
    const wide = this.to - this.from;
    const from = Math.min(Math.max(0, this.from + by), this.whole - wide);
    this.span(from, from + wide);
  }

  redraw() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(); });
  }

  /* What is out of sight is drawn when it comes into it, or `all` before it is printed. */
  draw(all = false) {
    const colours = coloursNow();
    this.width = this.place.clientWidth;
    for (const panel of this.panels) {
      panel.stale = !all && !this.inSight(panel);
      if (panel.stale) continue;
      this.drawPanel(panel, colours);
      this.drawOverlay(panel, colours);
    }
  }

  inSight(panel) {
    const { top, bottom } = panel.canvas.parentElement.getBoundingClientRect();
    return bottom > -innerHeight / 4 && top < innerHeight * 1.25;
  }

  /* --- drawing --------------------------------------------------------------------------------- */

  sized(panel, canvas) {
    const ratio = window.devicePixelRatio || 1;
    const width = this.width;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(panel.height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(panel.height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${panel.height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, panel.height);
    panel.left = Math.min(NAMES_WIDTH, width / 4);
    panel.wide = width - panel.left;
    panel.scale = panel.wide / (this.to - this.from);
    return context;
  }

  x(panel, seconds) {
    return panel.left + (seconds - this.from) * panel.scale;
  }

  top(panel, lane) {
    return AXIS_HEIGHT + lane * panel.lane;
  }

  drawPanel(panel, colours) {
    const context = this.sized(panel, panel.canvas);
    const { strip, lane: high, wide, left } = panel;
    const { get } = colours;
    const bottom = this.top(panel, strip.lanes.length);
    context.save();
    context.beginPath();
    context.rect(left, 0, wide, panel.height);
    context.clip();
    context.fillStyle = get("lane");
    const until = Math.min(left + wide, this.x(panel, strip.seconds));
    const gap = high > 8 ? 1 : 0.5;
    strip.lanes.forEach((_, index) => context.fillRect(this.x(panel, 0), this.top(panel, index) + gap, until - this.x(panel, 0), high - 2 * gap));
    this.drawAxis(context, panel, colours, bottom);
    this.drawActions(context, panel, colours, gap);
    this.drawCollectives(context, panel, colours);
    this.drawArrows(context, panel, colours);
    this.drawEvents(context, panel, colours, bottom);
    context.restore();
    this.drawNames(context, panel, colours);
    this.drawBorders(context, panel, colours);
  }

  drawAxis(context, panel, { get }, bottom) {
    const step = tickStep(this.to - this.from, panel.wide / 90);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "center";
    context.lineWidth = 1;
    const unit = this.to >= 1.5 ? [1, "s"] : this.to >= 1.5e-3 ? [1e3, "ms"] : [1e6, "µs"];
    const decimals = Math.max(0, -Math.floor(Math.log10(step * unit[0]) + 1e-9));
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = Math.round(this.x(panel, at)) + 0.5;
      context.strokeStyle = get("line");
      context.beginPath();
      context.moveTo(x, AXIS_HEIGHT - 4);
      context.lineTo(x, bottom);
      context.stroke();
      context.fillStyle = get("faint");
      if (x > panel.left + 18 && x < panel.left + panel.wide - 24) context.fillText(`${(at * unit[0]).toFixed(decimals)} ${unit[1]}`, x, AXIS_HEIGHT / 2 - 1);
    }
  }

  /* What happens to links and ranks: a line through all lanes, with its words once. */
  drawEvents(context, panel, { get }, bottom) {
    let said = null;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "left";
    for (const [seconds, words] of panel.strip.events) {
      const x = Math.round(this.x(panel, seconds)) + 0.5;
      context.strokeStyle = get("cut");
      context.lineWidth = 1.5;
      context.setLineDash([5, 3]);
      context.beginPath();
      context.moveTo(x, AXIS_HEIGHT - 6);
      context.lineTo(x, bottom);
      context.stroke();
      context.setLineDash([]);
      if (words === said || x < panel.left || x > panel.left + panel.wide) continue;
      said = words;
      const room = panel.left + panel.wide - x - 8;
      const shown = this.fitted(context, words, Math.max(room, 160));
      const wide = context.measureText(shown).width;
      const from = room >= wide ? x + 4 : x - wide - 8;
      context.fillStyle = get("paper");
      context.fillRect(from, AXIS_HEIGHT + 1, wide + 6, 14);
      context.fillStyle = get("cut");
      context.fillText(shown, from + 3, AXIS_HEIGHT + 8);
    }
  }

  drawActions(context, panel, colours, gap) {
    const { strip, lane: high } = panel;
    const { actions, chunk, chunks } = strip;
    const from = this.from / actions.unit, to = this.to / actions.unit;
    const scale = panel.scale * actions.unit, zero = panel.left - this.from * panel.scale;
    const styles = [];
    const visible = strip.lanes.map((lane) => [firstAfter(actions, lane, from), lane.last]);
    actions.kinds.forEach((kind, code) => {
      for (let number = 0; number < chunks; number++) styles.push([code, number, colours.shade(colours.get(kind.toLowerCase()), chunks > 1 ? 0.45 * number / (chunks - 1) : 0)]);
    });
    const apart = (to - from) * scale > 0 && scale * this.typical(panel) > 5 ? 1 : 0;
    for (const [code, number, style] of styles) {
      context.fillStyle = style;
      strip.lanes.forEach((_, index) => {
        const top = this.top(panel, index) + gap;
        const [first, last] = visible[index];
        for (let i = first; i < last && actions.start[i] < to; i++) {
          if (actions.kind[i] !== code || chunk[i] !== number) continue;
          const x = zero + actions.start[i] * scale;
          const end = i + 1 < last && actions.start[i + 1] < actions.end[i] ? actions.start[i + 1] : actions.end[i];
          context.fillRect(x, top, Math.max((end - actions.start[i]) * scale - apart, 0.35), high - 2 * gap);
        }
      });
    }
    if (high >= 9) this.drawLabels(context, panel, colours, visible, to, scale, zero);
  }

  typical(panel) {
    const { actions } = panel.strip;
    const middle = actions.rows >> 1;
    return actions.rows ? actions.end[middle] - actions.start[middle] : 0;
  }

  drawLabels(context, panel, { get }, visible, to, scale, zero) {
    const { actions, chunk } = panel.strip;
    context.font = `${panel.lane >= 18 ? 11 : 8}px system-ui, sans-serif`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const letter = panel.lane >= 18 ? 6.4 : 4.8;
    panel.strip.lanes.forEach((_, index) => {
      const y = this.top(panel, index) + panel.lane / 2 + 0.5;
      const [first, last] = visible[index];
      for (let i = first; i < last && actions.start[i] < to; i++) {
        const width = (actions.end[i] - actions.start[i]) * scale;
        if (width < letter + 3) continue;
        const number = String(actions.microbatch[i]);
        const kind = actions.kinds[actions.kind[i]];
        if (width < letter * number.length + 3) continue;
        context.fillStyle = get(chunk[i] ? "ink" : `on-${kind.toLowerCase()}`);
        const left = Math.max(zero + actions.start[i] * scale, panel.left);
        const right = Math.min(zero + actions.end[i] * scale, panel.left + panel.wide);
        if (right - left < letter * number.length + 3) continue;
        context.fillText(width > letter * (number.length + 1) + 10 ? `${kind} ${number}` : number, (left + right) / 2, y);
      }
    });
  }

  drawCollectives(context, panel, { get }) {
    const { messages, collectives } = panel.strip;
    context.fillStyle = get("collective");
    const high = Math.max(2, panel.lane / 8);
    for (const i of collectives) {
      if (!panel.laneOf.has(messages.target_rank[i])) continue;
      const from = messages.sent[i] * messages.unit, to = arrivalOf(messages, i) * messages.unit;
      if (to < this.from || from > this.to) continue;
      const top = this.top(panel, panel.laneOf.get(messages.target_rank[i]) + 1) - high - 0.5;
      context.fillRect(this.x(panel, from), top, Math.max((to - from) * panel.scale, 1), high);
    }
  }

  /* The messages whose arrows are drawn, by the numbers they have. */
  drawn(panel) {
    const { messages, collective } = panel.strip;
    if (this.arrows === "selected") return [];
    const from = this.from / messages.unit, to = this.to / messages.unit;
    const found = [];
    for (let i = 0; i < messages.rows; i++) {
      if (messages.sent[i] > to) break;
      if (arrivalOf(messages, i) < from || collective[messages.kind[i]]) continue;
      if (this.arrows === "crossing" && panel.site.get(messages.source_rank[i]) === panel.site.get(messages.target_rank[i])) continue;
      found.push(i);
    }
    return this.arrows === "crossing" && found.length > MOST_ARROWS ? [] : found;
  }

  drawArrows(context, panel, { get }) {
    const { messages } = panel.strip;
    const drawn = this.drawn(panel);
    messages.kinds.forEach((kind, code) => {
      const mine = drawn.filter((i) => messages.kind[i] === code);
      if (mine.length) this.strokeArrows(context, panel, mine, get(kind === "gradient" ? "gradient" : "activation"), 1.3, drawn.length <= MOST_HALOED ? get("paper") : "");
    });
  }

  strokeArrows(context, panel, numbers, colour, width, halo) {
    const { messages } = panel.strip;
    context.fillStyle = colour;
    const lines = new Path2D(), dashed = new Path2D(), heads = new Path2D();
    const head = Math.min(7, 3 + panel.lane / 5);
    for (const i of numbers) {
      const source = panel.laneOf.get(messages.source_rank[i]), target = panel.laneOf.get(messages.target_rank[i]);
      if (source === undefined || target === undefined) continue;
      const down = target > source;
      const x0 = this.x(panel, messages.sent[i] * messages.unit), x1 = this.x(panel, arrivalOf(messages, i) * messages.unit);
      const y0 = this.top(panel, source) + panel.lane * (down ? 0.62 : 0.38);
      const y1 = this.top(panel, target) + panel.lane * (down ? 0.25 : 0.75);
      const line = isArrivalKnown(messages, i) ? lines : dashed;
      line.moveTo(x0, y0);
      line.lineTo(x1, y1);
      const length = Math.hypot(x1 - x0, y1 - y0) || 1;
      const [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
      heads.moveTo(x1, y1);
      heads.lineTo(x1 - head * ux + 0.45 * head * uy, y1 - head * uy - 0.45 * head * ux);
      heads.lineTo(x1 - head * ux - 0.45 * head * uy, y1 - head * uy + 0.45 * head * ux);
      heads.closePath();
    }
    context.lineJoin = "round";
    if (halo) {
      context.strokeStyle = halo;
      context.lineWidth = width + 2.2;
      for (const path of [lines, dashed, heads]) context.stroke(path);
    }
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.stroke(lines);
    context.setLineDash([4, 3]);
    context.stroke(dashed);
    context.setLineDash([]);
    context.fill(heads);
  }

  drawNames(context, panel, { get }) {
    const { strip, run } = panel;
    const every = panel.lane >= 11 ? 1 : Math.ceil(11 / panel.lane);
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    strip.lanes.forEach((lane, index) => {
      if (index % every) return;
      context.fillStyle = get("ink");
      context.fillText(this.fitted(context, `${lane.rank} ${run.nodes[lane.rank] ?? ""}`, panel.left - 8), 0, this.top(panel, index) + panel.lane / 2);
    });
  }

  fitted(context, text, room) {
    let shown = text;
    while (shown.length > 1 && context.measureText(shown).width > room) shown = shown.slice(0, -1);
    return shown === text ? text : `${shown.slice(0, -1)}…`;
  }

  drawBorders(context, panel, { get }) {
    const { lanes } = panel.strip;
    for (let index = 0; index + 1 < lanes.length; index++) {
      const [one, next] = [lanes[index], lanes[index + 1]];
      const job = one.job !== next.job, replica = one.replica !== next.replica;
      const site = panel.site.get(one.rank) !== panel.site.get(next.rank);
      if (!job && !replica && !site) continue;
      context.strokeStyle = get(job || replica ? "ink" : "cut");
      context.lineWidth = job ? 2 : 1;
      context.setLineDash(job || replica ? [] : [5, 4]);
      context.beginPath();
      const y = Math.round(this.top(panel, index + 1)) + 0.5;
      context.moveTo(panel.lane < 11 ? panel.left : 0, y);
      context.lineTo(panel.left + panel.wide, y);
      context.stroke();
    }
    context.setLineDash([]);
  }

  /* --- selection and pointer ------------------------------------------------------------------- */

  drawOverlay(panel, colours = coloursNow()) {
    const context = this.sized(panel, panel.overlay);
    const { get } = colours;
    context.save();
    context.beginPath();
    context.rect(panel.left, 0, panel.wide, panel.height);
    context.clip();
    if (this.selected?.panel === panel) {
      const { index } = this.selected;
      const { inputs, outputs } = messagesOf(panel.strip, index);
      this.strokeArrows(context, panel, inputs, get("cut"), 2.5, get("paper"));
      this.strokeArrows(context, panel, outputs, get("ink"), 2, get("paper"));
      this.outline(context, panel, index, get("ink"), 2.5);
    }
    if (panel.hover !== undefined && panel.hover >= 0) this.outline(context, panel, panel.hover, get("ink"), 1.5);
    if (panel.drag && !panel.drag.pans) {
      const [a, b] = [panel.drag.x, panel.drag.now];
      context.fillStyle = get("brush");
      context.fillRect(Math.min(a, b), AXIS_HEIGHT, Math.abs(b - a), panel.height - AXIS_HEIGHT);
    }
    context.restore();
  }

  outline(context, panel, index, colour, width) {
    const { actions } = panel.strip;
    context.strokeStyle = colour;
    context.lineWidth = width;
    const x0 = this.x(panel, actions.start[index] * actions.unit), x1 = this.x(panel, actions.end[index] * actions.unit);
    context.strokeRect(x0, this.top(panel, panel.laneOf.get(actions.rank[index])) + 0.5, Math.max(2, x1 - x0), panel.lane - 1);
  }

  at(panel, x, y) {
    const lane = Math.floor((y - AXIS_HEIGHT) / panel.lane);
    if (x < panel.left || lane < 0 || lane >= panel.strip.lanes.length) return -1;
    const { actions } = panel.strip;
    const instant = (this.from + (x - panel.left) / panel.scale) / actions.unit;
    const index = firstAfter(actions, panel.strip.lanes[lane], instant);
    return index < panel.strip.lanes[lane].last && actions.start[index] <= instant ? index : -1;
  }

  said(panel, index) {
    const { strip, run } = panel;
    const { actions, messages } = strip;
    const time = (column) => column[index] === NOTHING ? NaN : column[index] * actions.unit;
    const kind = actions.kinds[actions.kind[index]];
    const part = actions.part_of[index] > 1 ? `, sub-blocks ${actions.part_begin[index]} to ${actions.part_end[index]} of ${actions.part_of[index]}` : "";
    const rank = actions.rank[index];
    const job = run.jobs.length ? `${run.jobs[actions.job[index]]}, ` : "";
    const lines = [
      `${kind} ${actions.microbatch[index]}: ${MEANINGS[kind] ?? kind} of microbatch ${actions.microbatch[index]}, stage ${actions.stage[index]}${part}`,
      `${job}rank ${rank}${run.nodes[rank] ? ` on ${run.nodes[rank]}` : ""}`,
      `${shownTime(time(actions.start))} to ${shownTime(time(actions.end))} (${shownTime(time(actions.end) - time(actions.start))})`,
    ];
    if (actions.wait[index] > 0) lines.push(`waited ${shownTime(time(actions.wait))} for it to begin`);
    if (actions.work[index] !== NOTHING && actions.work[index] < actions.end[index] - actions.start[index]) lines.push(`computed for ${shownTime(time(actions.work))}`);
    for (const i of messagesOf(strip, index).inputs) {
      const sent = messages.sent[i] * messages.unit, there = arrivalOf(messages, i) * messages.unit;
      lines.push(`needs ${messages.kinds[messages.kind[i]]} from rank ${messages.source_rank[i]}: ${shownSize(messages.size[i] * messages.sizeUnit)}, sent ${shownTime(sent)}, ${isArrivalKnown(messages, i) ? "there" : "taken"} ${shownTime(there)} (${shownTime(there - sent)})`);
    }
    return lines;
  }

  select(panel, index) {
    if (this.selected && this.selected.panel !== panel) {
      const before = this.selected.panel;
      this.selected = null;
      this.drawOverlay(before);
    }
    this.selected = index < 0 ? null : { panel, index };
    if (index >= 0) {
      const { actions } = panel.strip;
      const [start, end] = [actions.start[index] * actions.unit, actions.end[index] * actions.unit];
      const wide = this.to - this.from;
      if (start < this.from || end > this.to) this.span((start + end - wide) / 2, (start + end + wide) / 2);
    }
    this.onSaid(index < 0 ? "" : `${panel.title}: ${this.said(panel, index).join("; ")}.`);
    this.drawOverlay(panel);
  }

  /* The next action of the rank, or the one at the same time on another. */
  step(panel, along, across) {
    const { actions, lanes } = panel.strip;
    panel.overlay.focus({ preventScroll: true });
    if (this.selected?.panel !== panel) {
      const first = lanes.length ? Math.min(firstAfter(actions, lanes[0], this.from / actions.unit), lanes[0].last - 1) : -1;
      this.select(panel, first);
      return;
    }
    const { index } = this.selected;
    const number = panel.laneOf.get(actions.rank[index]);
    const lane = lanes[number];
    if (along) this.select(panel, Math.min(lane.last - 1, Math.max(lane.first, index + along)));
    const other = lanes[number + across];
    if (across && other) this.select(panel, Math.min(other.last - 1, firstAfter(actions, other, actions.start[index])));
  }

  listen(panel) {
    const { overlay } = panel;
    const placeOf = (event) => [event.offsetX, event.offsetY];
    overlay.addEventListener("pointermove", (event) => {
      const [x, y] = placeOf(event);
      if (panel.drag) {
        panel.drag.now = x;
        if (panel.drag.pans) {
          const by = (panel.drag.last - x) / panel.wide;
          panel.drag.last = x;
          this.pan(by);
        } else this.drawOverlay(panel);
        return;
      }
      const found = this.at(panel, x, y);
      if (found !== panel.hover) { panel.hover = found; this.drawOverlay(panel); }
      this.showTip(panel, found, event);
    });
    overlay.addEventListener("pointerleave", () => {
      panel.hover = -1;
      this.tip.hidden = true;
      this.drawOverlay(panel);
    });
    overlay.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      const [x] = placeOf(event);
      overlay.setPointerCapture(event.pointerId);
      panel.drag = { x, now: x, last: x, pans: event.shiftKey };
      this.tip.hidden = true;
    });
    overlay.addEventListener("pointerup", (event) => {
      const drag = panel.drag;
      panel.drag = null;
      if (!drag) return;
      const [x, y] = placeOf(event);
      const [a, b] = [Math.min(drag.x, x), Math.max(drag.x, x)];
      if (b - a < 5) this.select(panel, this.at(panel, x, y));
      else if (!drag.pans) this.span(this.from + (a - panel.left) / panel.scale, this.from + (b - panel.left) / panel.scale);
      this.drawOverlay(panel);
    });
    overlay.addEventListener("pointercancel", () => { panel.drag = null; this.drawOverlay(panel); });
    overlay.addEventListener("dblclick", () => this.span(0, this.whole));
    overlay.addEventListener("wheel", (event) => {
      if (event.ctrlKey) {
        event.preventDefault();
        this.zoom(Math.exp(event.deltaY * 0.004), this.from + (event.offsetX - panel.left) / panel.scale);
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        this.pan(event.deltaX / panel.wide);
      }
    }, { passive: false });
  }

  showTip(panel, index, event) {
    this.tip.hidden = index < 0;
    if (index < 0) return;
    this.tip.replaceChildren(...this.said(panel, index).map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }));
    const { innerWidth, innerHeight } = window;
    const { offsetWidth, offsetHeight } = this.tip;
    this.tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - offsetWidth - 8))}px`;
    this.tip.style.top = `${event.clientY + 18 + offsetHeight > innerHeight ? event.clientY - offsetHeight - 12 : event.clientY + 18}px`;
  }
}

function siteOf(run, rank) {
  return String(run.nodes[rank] ?? "").split("/")[0];
}
