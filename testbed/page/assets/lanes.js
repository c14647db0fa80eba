/* One iteration of a run as lanes: which actions a rank does, and what is sent between them. */

const COLLECTIVES = ["all-gather", "reduce-scatter", "all-reduce"];

async function lanesOf(strip) {
  const [actions, messages] = await Promise.all([tableOf(strip.actions), tableOf(strip.messages)]);
  const lanes = new Map();
  for (let i = 0; i < actions.rows; i++) {
    const rank = actions.rank[i];
    let lane = lanes.get(rank);
    if (!lane) lanes.set(rank, lane = { rank, first: i, last: i, stages: [], job: actions.job[i], replica: actions.replica[i] });
    lane.last = i + 1;
    if (!lane.stages.includes(actions.stage[i])) lane.stages.push(actions.stage[i]);
  }
  let chunks = 1;
  for (const lane of lanes.values()) {
    lane.stages.sort((a, b) => a - b);
    chunks = Math.max(chunks, lane.stages.length);
  }
  const chunk = new Uint8Array(actions.rows);
  let end = 0;
  for (const lane of lanes.values()) {
    for (let i = lane.first; i < lane.last; i++) {
      chunk[i] = lane.stages.indexOf(actions.stage[i]);
      if (actions.end[i] > end) end = actions.end[i];
    }
  }
  const collective = messages.kinds.map((kind) => COLLECTIVES.includes(kind));
  const collectives = [];
  for (let i = 0; i < messages.rows; i++) if (collective[messages.kind[i]]) collectives.push(i);
  const seconds = Math.max(end * actions.unit, ...strip.times.map((time) => time[1]));
  return { actions, messages, lanes: [...lanes.values()], chunk, chunks, collective, collectives, seconds, events: strip.events };
}

/* The first action of a lane that ends after an instant, by its number. */
function firstAfter(actions, lane, instant) {
  let low = lane.first, high = lane.last;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (actions.end[middle] <= instant) low = middle + 1; else high = middle;
  }
  return low;
}

/* Messages between stages that an action waits for, and those that it makes. */
function messagesOf(strip, index) {
  const { actions, messages } = strip;
  const kind = actions.kinds[actions.kind[index]];
  const stage = actions.stage[index], rank = actions.rank[index], microbatch = actions.microbatch[index];
  const wanted = kind === "F" ? "activation" : kind === "W" ? null : "gradient";
  const found = { inputs: [], outputs: [] };
  if (wanted === null) return found;
  const producer = kind === "F" ? stage - 1 : stage + 1;
  for (let i = 0; i < messages.rows; i++) {
    if (messages.microbatch[i] !== microbatch || messages.kinds[messages.kind[i]] !== wanted) continue;
    if (messages.target_rank[i] === rank && messages.stage[i] === producer) found.inputs.push(i);
    if (messages.source_rank[i] === rank && messages.stage[i] === stage) found.outputs.push(i);
  }
  return found;
}

/* When a message came is seen where its receiver was waiting; of one that lay ready, when it was taken. */
function isArrivalKnown(messages, index) {
  return messages.arrived[index] !== NOTHING;
}

function arrivalOf(messages, index) {
  return isArrivalKnown(messages, index) ? messages.arrived[index] : messages.taken[index];
}
