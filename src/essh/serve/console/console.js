"use strict";
// The console of `essh serve`. Text of a model is inserted only as textContent.

const $ = (id) => document.getElementById(id);

function make(tag, name, text) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Numbers.

function short(value, units) {
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) value /= 1000, unit += 1;
  const digits = unit === 0 ? 0 : Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)}${units[unit] ? "\u202f" + units[unit] : ""}`;
}
// Drops trailing zeros of axis labels: 4.00 M -> 4 M.
const round = (text) => text.replace(/\.0+(?!\d)|(\.\d*[1-9])0+(?!\d)/, "$1");
const count = (value) => short(value, ["", "k", "M", "G", "T"]);
const bytes = (value) => short(value, ["B", "kB", "MB", "GB", "TB"]);
const rate = (value) => (value < 99.5 ? value.toFixed(1) : value.toFixed(0));
const time = (ms) => (ms < 999.5 ? `${ms.toFixed(0)}\u202fms` : `${(ms / 1000).toFixed(2)}\u202fs`);
const percent = (p) => (p >= 0.1 ? `${(100 * p).toFixed(0)}\u202f%` : p >= 0.001 ? `${(100 * p).toFixed(1)}\u202f%` : "<\u202f0.1\u202f%");

// Settings in the browser's storage.

const memory = {
  get(store, key) {
    try { return store().getItem(`essh.${key}`); } catch { return null; }
  },
  set(store, key, value) {
    try { store().setItem(`essh.${key}`, value); } catch { /* a browser that forbids it */ }
  },
};
const forTab = () => sessionStorage;
const forever = () => localStorage;

const state = {
  name: "", tiers: [], chatTrained: false, frontier: null,
  sides: [{ index: 0, tier: null, speed: null }, { index: 1, tier: null, speed: null }],
  turns: [], running: new Set(), session: new Map(), mode: "chat", plot: "quality",
};

// Requests to the server.

class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function kindly(error) {
  if (!(error instanceof ServerError)) return "The server cannot be reached. Is it still running?";
  if (error.status === 429) return "The server has all hands full. Try again in a moment.";
  if (error.status === 503) return `The server cannot take this now: ${error.message}.`;
  return `The server says: ${error.message}`;
}

async function ask(path, options = {}) {
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}) };
  const key = memory.get(forTab, "key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const reply = await fetch(path, { ...options, method: options.body ? "POST" : "GET", headers, cache: "no-store" });
  if (reply.ok) return reply;
  let message = `HTTP ${reply.status}`;
  try { message = (await reply.json()).error.message; } catch { /* no JSON: the status must do */ }
  if (reply.status === 401) askForKey(Boolean(key));
  throw new ServerError(reply.status, message);
}
const read = async (path) => (await ask(path)).json();

// Yields the data of server-sent events.
async function* events(reply) {
  const reader = reply.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += decoder.decode(value, { stream: true });
    for (let end = held.indexOf("\n\n"); end >= 0; end = held.indexOf("\n\n")) {
      const event = held.slice(0, end);
      held = held.slice(end + 2);
      if (event.startsWith("data: ")) yield event.slice(6);
    }
  }
}

// Tokens with their probabilities.

const tokenBytes = (token) => {
  if (token.bytes) return Uint8Array.from(token.bytes);
  const raw = /^bytes:((?:\\x[0-9a-fA-F]{2})+)$/.exec(token.token);
  if (raw) return Uint8Array.from(raw[1].slice(2).split("\\x"), (hex) => parseInt(hex, 16));
  return new TextEncoder().encode(token.token);
};

// Chat and completions have different forms; both become [{token, bytes?, logprob, top: [{token, logprob}]}].
function readLogprobs(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) return logprobs.content.map(({ token, bytes: raw, logprob, top_logprobs: top }) => ({ token, bytes: raw, logprob, top }));
  return logprobs.tokens.map((token, i) => ({
    token, logprob: logprobs.token_logprobs[i],
    top: Object.entries(logprobs.top_logprobs[i] || {}).map(([name, logprob]) => ({ token: name, logprob })),
  }));
}

// Shows text as it arrives, each token a span with its probabilities. The text is authoritative: a token that does not
// match it (an end of text, a partial character) gets no span.
class Text {
  constructor(node) {
    this.node = node;
    this.text = "";
    this.shown = 0;
    this.waiting = [];
    this.decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  }
  add(piece, tokens) {
    this.text += piece;
    for (const token of tokens) this.waiting.push({ token, piece: this.decoder.decode(tokenBytes(token), { stream: true }) });
    if (tokens.length === 0 && this.waiting.length === 0) return this.plain();
    while (this.waiting.length > 0) {
      const { token, piece: own } = this.waiting[0];
      const rest = this.text.slice(this.shown);
      if (!rest.startsWith(own)) {
        if (own.startsWith(rest)) return;
        this.waiting.shift();
        continue;
      }
      this.waiting.shift();
      if (!own) continue;
      const span = make("span", "tok", own);
      span.style.setProperty("--surprise", Math.min(1, -token.logprob / 8).toFixed(3));
      span.token = token;
      this.node.append(span);
      this.shown += own.length;
    }
  }
  plain() {
    if (this.shown < this.text.length) this.node.append(this.text.slice(this.shown));
    this.shown = this.text.length;
  }
}

const visible = (text) => text.replace(/ /g, "␣").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";

function showProbabilities(span) {
  hideProbabilities();
  span.classList.add("active");
  const token = span.token;
  const list = [...token.top].sort((a, b) => b.logprob - a.logprob);
  if (!list.some((one) => one.token === token.token)) list.push({ token: token.token, logprob: token.logprob });
  const rows = list.map((one) => {
    const row = make("div", one.token === token.token ? "candidate chosen" : "candidate");
    const bar = make("i");
    bar.style.width = `${100 * Math.exp(one.logprob)}%`;
    row.append(bar, make("span", "", visible(one.token)), make("b", "", percent(Math.exp(one.logprob))));
    return row;
  });
  $("popover").replaceChildren(...rows);
  placeProbabilities();
}

// Follows the active token when the page scrolls.
function placeProbabilities() {
  const span = document.querySelector(".tok.active");
  if (!span) return;
  const popover = $("popover");
  popover.hidden = false;
  // For a token across a line break, its widest rectangle.
  const at = [...span.getClientRects()].reduce((a, b) => (b.width > a.width ? b : a));
  const below = at.bottom + 8 + popover.offsetHeight < innerHeight;
  popover.style.left = `${Math.max(8, Math.min(at.left - 12, innerWidth - popover.offsetWidth - 8))}px`;
  popover.style.top = `${below ? at.bottom + 8 : Math.max(8, at.top - popover.offsetHeight - 8)}px`;
}

function hideProbabilities() {
  $("popover").hidden = true;
  for (const span of document.querySelectorAll(".tok.active")) span.classList.remove("active");
}

function connectProbabilities(box) {
  const spanAt = (event) => (event.target.token ? event.target : null);
  box.addEventListener("pointerover", (event) => spanAt(event) && showProbabilities(event.target));
  box.addEventListener("pointerout", (event) => event.pointerType === "mouse" && hideProbabilities());
  box.addEventListener("click", (event) => spanAt(event) && showProbabilities(event.target));
  box.addEventListener("blur", hideProbabilities);
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") hideProbabilities();
    if (!step) return;
    const spans = [...box.querySelectorAll(".tok")];
    if (spans.length === 0) return;
    event.preventDefault();
    const now = spans.findIndex((span) => span.classList.contains("active"));
    const next = spans[now < 0 ? (step > 0 ? 0 : spans.length - 1) : Math.max(0, Math.min(spans.length - 1, now + step))];
    next.scrollIntoView({ block: "nearest" });
    showProbabilities(next);
    $("status").textContent = `${visible(next.token.token)} ${percent(Math.exp(next.token.logprob))}`;
  });
}

// One answer of one side.

const setting = (id) => {
  const input = $(id);
  if (input.value === "" || !input.validity.valid) return Number(input.defaultValue);
  return Number(input.value);
};

function messagesFor(turn, side) {
  const messages = $("system").value.trim() ? [{ role: "system", content: $("system").value.trim() }] : [];
  for (const one of state.turns) {
    messages.push({ role: "user", content: one.said });
    if (one === turn) break;
    const answer = one.answers[side] || one.answers[0];
    messages.push({ role: "assistant", content: answer ? answer.text.text : "" });
  }
  return messages;
}

function requestFor(turn, answer) {
  const chat = turn.mode === "chat";
  const body = {
    model: answer.tier.id, temperature: setting("temperature"), top_p: setting("top_p"), max_tokens: setting("max_tokens"),
    stream: true, stream_options: { include_usage: true },
  };
  if (chat) body.messages = messagesFor(turn, answer.side);
  else body.prompt = turn.said;
  if ($("probabilities").checked) Object.assign(body, chat ? { logprobs: true, top_logprobs: 6 } : { logprobs: 6 });
  let text = JSON.stringify(body);
  // Seeds have 64 bits, numbers of JavaScript 53.
  if (/^[0-9]+$/.test($("seed").value)) text = `${text.slice(0, -1)},"seed":${BigInt($("seed").value)}}`;
  return { path: chat ? "/v1/chat/completions" : "/v1/completions", body: text };
}

function describe(answer) {
  const facts = [];
  const speed = state.sides[answer.side].speed = {
    rate: answer.tokens > 1 && answer.last > answer.first ? (answer.tokens - 1) * 1000 / (answer.last - answer.first) : null,
    first: answer.first ? answer.first - answer.begun : null,
  };
  if (speed.rate) facts.push(`${rate(speed.rate)} tokens/s`);
  if (speed.first) facts.push(`first after ${time(speed.first)}`);
  if (answer.tokens) facts.push(`${answer.tokens} token${answer.tokens === 1 ? "" : "s"}${answer.ended === "length" ? " (limit)" : ""}`);
  if (answer.usage) {
    const cached = answer.usage.prompt_tokens_details.cached_tokens;
    facts.push(`prompt ${answer.usage.prompt_tokens}${cached ? ` (${cached} cached)` : ""}`);
  }
  if (answer.ended === "stopped") facts.push("stopped");
  answer.facts.textContent = facts.join("  ·  ");
}

function build(turn, side) {
  const tier = state.sides[side].tier;
  const node = make("article", side ? "answer second running" : "answer running");
  const head = make("div", "answer-head");
  const badge = make("span", "badge", tier.label);
  const size = make("span", "", `${count(tier.essh.parameters)} parameters`);
  head.append(badge, size);
  const text = make("div", "text");
  text.tabIndex = 0;
  text.setAttribute("role", "group");
  text.setAttribute("aria-label", `Answer of ${tier.label}; arrow keys show the probabilities of its tokens`);
  text.setAttribute("aria-describedby", "popover");
  if (turn.mode === "completion") text.append(make("span", "given", turn.said));
  const meta = make("div", "meta");
  const facts = make("span", "facts-line");
  meta.append(facts);
  node.append(head, text, meta);
  connectProbabilities(text);
  return { side, tier, node, badge, size, meta, facts, text: new Text(text),
    begun: performance.now(), first: 0, last: 0, tokens: 0, usage: null, ended: "" };
}

function addButton(answer, label, title, action) {
  const button = make("button", "", label);
  button.type = "button";
  button.title = title;
  button.addEventListener("click", action);
  answer.meta.append(button);
  return button;
}

async function copy(answer, button, turn) {
  const text = (turn.mode === "completion" ? turn.said : "") + answer.text.text;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", "unseen");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}

// The server names the capacity that answers, which may differ from the one asked for.
function nameAnswering(answer, model) {
  if (!model || labelOf(model) === answer.tier.label) return;
  const label = labelOf(model);
  const known = state.tiers.find((tier) => tier.label === label);
  answer.tier = known || { ...answer.tier, label };
  answer.badge.textContent = label;
  answer.size.textContent = known ? `${count(known.essh.parameters)} parameters, chosen by the server` : "chosen by the server";
}

async function run(turn, answer) {
  const abort = new AbortController();
  state.running.add(abort);
  refreshButtons();
  const { path, body } = requestFor(turn, answer);
  try {
    const reply = await ask(path, { body, signal: abort.signal });
    for await (const data of events(reply)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(500, chunk.error.message);
      nameAnswering(answer, chunk.model);
      if (chunk.usage) answer.usage = chunk.usage, answer.tokens = chunk.usage.completion_tokens;
      const choice = chunk.choices[0];
      if (!choice) continue;
      const piece = choice.text ?? choice.delta.content ?? "";
      const tokens = readLogprobs(choice.logprobs);
      if (piece || tokens.length > 0) {
        answer.last = performance.now();
        answer.first ||= answer.last;
        answer.tokens += tokens.length || 1;
      }
      if (choice.finish_reason) answer.ended = choice.finish_reason;
      const follow = nearEnd();
      answer.text.add(piece, tokens);
      describe(answer);
      showSpeed(answer.side);
      if (follow) toEnd();
    }
  } catch (error) {
    if (abort.signal.aborted) {
      answer.ended = "stopped";
    } else {
      answer.ended = "failed";
      answer.node.insertBefore(make("p", "error", kindly(error)), answer.meta);
    }
  }
  state.running.delete(abort);
  answer.text.plain();
  answer.node.classList.remove("running");
  describe(answer);
  showSpeed(answer.side);
  const speed = state.sides[answer.side].speed;
  // Two answers at once share the machine, so their speeds are not recorded.
  if (speed.rate && answer.tokens >= 8 && turn.answers.length === 1) {
    const known = state.session.get(answer.tier.label) || { parameters: answer.tier.essh.parameters, rates: [] };
    known.rates.push(speed.rate);
    state.session.set(answer.tier.label, known);
    drawPlot();
  }
  let button;
  if (answer.text.text) button = addButton(answer, "Copy", "Copy the text", () => copy(answer, button, turn));
  if (turn === state.turns.at(-1)) refreshAgain(turn);
  if (nearEnd()) toEnd();
  refreshButtons();
  $("status").textContent = answer.ended === "failed" ? "The answer failed" : `${answer.tier.label} has answered`;
}

// Only the last turn can be answered again, with the tiers chosen in the panel.
function refreshAgain(turn) {
  for (const button of document.querySelectorAll(".again")) button.remove();
  if (state.running.size > 0 || !turn) return;
  const answer = turn.answers.find(Boolean);
  const again = addButton(answer, answer.ended === "failed" ? "Try again" : "Regenerate", "Answer again with the capacity chosen now", () => start(turn));
  again.classList.add("again");
}

function start(turn) {
  if (state.running.size > 0) return;
  const sides = $("compare").checked ? [0, 1] : [0];
  turn.answers = sides.map((side) => build(turn, side));
  turn.box.className = sides.length > 1 ? "answers two" : "answers";
  turn.box.replaceChildren(...turn.answers.map((answer) => answer.node));
  refreshAgain(null);
  toEnd();
  return Promise.all(turn.answers.map((answer) => run(turn, answer))).then(() => refreshAgain(turn));
}

function send(said) {
  if (state.running.size > 0 || !state.sides[0].tier || said === "") return;
  const node = make("section", "turn");
  const box = make("div", "answers");
  if (state.mode === "chat") node.append(make("p", "said", said));
  node.append(box);
  const turn = { said, mode: state.mode, node, box, answers: [] };
  state.turns.push(turn);
  $("empty").hidden = true;
  $("turns").append(node);
  start(turn);
}

const stop = () => state.running.forEach((abort) => abort.abort());
const nearEnd = () => $("scroll").scrollHeight - $("scroll").scrollTop - $("scroll").clientHeight < 80;
const toEnd = () => { $("scroll").scrollTop = $("scroll").scrollHeight; };

function refreshButtons() {
  const busy = state.running.size > 0;
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("send").disabled = $("input").value === "";
}

// Capacity.

const labelOf = (id) => (id.includes("@") ? id.slice(id.lastIndexOf("@") + 1) : id);

function facts(side) {
  const { tier: { essh }, speed } = state.sides[side];
  const rows = [["State", bytes(essh.state_bytes)], ["Attention cache", bytes(essh.kv_bytes)], ["Per token", `${count(essh.flops_per_token)}FLOP`],
    ["Tokens/s", speed?.rate ? rate(speed.rate) : "–"], ["First token", speed?.first ? time(speed.first) : "–"],
    ["Share", percent(essh.parameter_fraction)]];
  // With two sides, only the rows that differ during an answer.
  if ($("compare").checked) rows.splice(0, 6, rows[0], rows[3], rows[4]);
  return rows.flatMap(([name, value]) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    return [pair];
  });
}

const boxOf = (side) => document.querySelector(`.capacity[data-side="${side}"]`);
const showSpeed = (side) => boxOf(side).querySelector(".facts").replaceChildren(...facts(side));

function choose(side, tier) {
  state.sides[side].tier = tier;
  state.sides[side].speed = null;
  const box = boxOf(side);
  const slider = box.querySelector(".slider");
  box.querySelector(".tier-name").textContent = tier.label;
  box.querySelector(".tier-facts").textContent = `${count(tier.essh.parameters)} parameters`;
  slider.setAttribute("aria-valuetext", `${tier.label}, ${count(tier.essh.parameters)} parameters`);
  slider.style.setProperty("--at", `${100 * (slider.value - slider.min) / Math.max(1e-9, slider.max - slider.min)}%`);
  for (const tick of box.querySelectorAll(".ticks span")) tick.classList.toggle("on", tick.textContent === tier.label);
  showSpeed(side);
  const [first, second] = state.sides.map((one) => (one.tier ? one.tier.label : "…"));
  $("chip-tier").textContent = $("compare").checked ? `${first} | ${second}` : first;
  drawPlot();
}

// A budget between the tiers; the server computes its cost. Only the latest request counts.
async function chooseBudget(side, xi) {
  const id = `${state.name}@xi=${xi}`;
  state.sides[side].wanted = id;
  try {
    const model = await read(`/v1/models/${encodeURIComponent(id)}`);
    if (state.sides[side].wanted === id) choose(side, { ...model, label: labelOf(id) });
  } catch (error) {
    $("status").textContent = kindly(error);
  }
}

function slide(side) {
  const slider = boxOf(side).querySelector(".slider");
  if ($("free").checked) return chooseBudget(side, Number(slider.value));
  state.sides[side].wanted = null;
  choose(side, state.tiers[Number(slider.value)]);
}

// Sliders over tiers, or over any budget.
function setUpSliders() {
  if (state.tiers.length === 0) return;
  const free = $("free").checked;
  for (const side of [0, 1]) {
    const slider = boxOf(side).querySelector(".slider");
    const now = state.sides[side].tier;
    const last = state.tiers.length - 1;
    const distance = (one) => (now ? Math.abs(one.essh.parameters - now.essh.parameters) : 0);
    const tier = state.tiers.reduce((best, one) => (distance(one) < distance(best) ? one : best), state.tiers[side ? 0 : last]);
    [slider.min, slider.max, slider.step] = free ? ["0.02", "1", "0.01"] : ["0", String(last), "1"];
    slider.value = String(free ? (now || tier).xi ?? 1 : state.tiers.indexOf(tier));
    slider.disabled = last < 1 && !free;
    const labels = free ? ["0.02", "ξ", "1"] : state.tiers.map((one) => one.label);
    boxOf(side).querySelector(".ticks").replaceChildren(...labels.map((label) => make("span", "", label)));
    slide(side);
  }
}

// The plot.

const SVG = "http://www.w3.org/2000/svg";
function draw(parent, tag, attributes, text) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  parent.append(node);
  return node;
}

const middle = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];

// Data of the chosen plot: {title, form: a value as text, points: [{tier, x, y, session: measured in this tab}]}.
function plotData() {
  const points = state.frontier.points;
  const place = (known, value) => points.filter(known).map((p) => ({ tier: p.tier, x: p.parameters, y: value(p) }));
  if (state.plot === "quality") {
    const form = (y) => (y < 100 ? y.toFixed(1) : y.toFixed(0));
    return { title: "perplexity, lower is better", form, points: place((p) => p.perplexity, (p) => p.perplexity) };
  }
  if (state.plot === "cost") return { title: "FLOP per token", form: count, points: place(() => true, (p) => p.flops_per_token) };
  const measured = place((p) => p.decode_ms, (p) => 1000 / p.decode_ms);
  const session = [...state.session].map(([tier, known]) => ({ tier, x: known.parameters, y: middle(known.rates), session: true }));
  return { title: "tokens per second", form: count, points: [...measured, ...session] };
}

function steps(low, high) {
  const raw = (high - low) / 4 || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) found.push(value);
  return found;
}

function note() {
  const frontier = state.frontier;
  if (state.plot === "quality" && !frontier.quality) {
    return "Quality is not measured. `essh frontier RUN --data TEXT` measures it; the server shows the result after its next start.";
  }
  if (state.plot === "quality") return `Perplexity of ${count(frontier.tokens)} tokens of ${String(frontier.data).split("/").pop()}, context ${frontier.context}.`;
  if (state.plot === "cost") return `From the sizes of the model${frontier.quality ? "" : "; quality is not measured"}.`;
  const here = state.session.size ? "Filled: measured in this tab." : "Answers of this tab are added as they come.";
  return frontier.measured ? `${here} Open: decoding at depth ${frontier.depth}, ${frontier.processor}.` : here;
}

function drawPlot() {
  if (!state.frontier || !state.sides[0].tier) return;
  $("plot-note").textContent = note();
  const { title, form, points } = plotData();
  const [width, height, left, right, top, bottom] = [324, 206, 40, 12, 36, 24];
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  const sides = $("compare").checked ? [0, 1] : [0];
  svg.setAttribute("aria-label", `${title} against parameters; chosen: ${sides.map((side) => state.sides[side].tier.label).join(" and ")}`);
  $("plot").replaceChildren(...(points.length ? [svg] : []));
  if (points.length === 0) return;
  const xs = state.frontier.points.map((p) => p.parameters);
  const ys = points.map((p) => p.y);
  const pad = (Math.max(...ys) - Math.min(...ys)) * 0.12 || Math.max(...ys) * 0.1;
  const [low, high] = [Math.max(0, Math.min(...ys) - pad), Math.max(...ys) + pad];
  const [first, last] = [Math.min(...xs), Math.max(...xs)];
  const X = (x) => left + 10 + (width - left - right - 20) * (last > first ? (x - first) / (last - first) : 0.5);
  const Y = (y) => height - bottom - (height - top - bottom) * (y - low) / (high - low);
  draw(svg, "text", { x: 0, y: 10 }, title);
  for (const y of steps(low, high)) {
    draw(svg, "line", { class: "grid", x1: left, x2: width - right, y1: Y(y), y2: Y(y) });
    draw(svg, "text", { x: left - 6, y: Y(y) + 3.5, "text-anchor": "end" }, round(form(y)));
  }
  for (const x of steps(first, last)) draw(svg, "text", { x: X(x), y: height - 6, "text-anchor": "middle" }, round(count(x)));
  const curve = points.filter((p) => !p.session);
  if (curve.length > 1) draw(svg, "polyline", { class: "curve", points: curve.map((p) => `${X(p.x)},${Y(p.y)}`).join(" ") });
  for (const side of sides) {
    const tier = state.sides[side].tier;
    const x = X(tier.essh.parameters);
    draw(svg, "line", { class: side ? "drop second" : "drop", x1: x, x2: x, y1: top - 4, y2: height - bottom });
  }
  for (const point of points) {
    const side = sides.find((one) => state.sides[one].tier.label === point.tier);
    const kind = side === undefined ? "point" : side ? "mark second" : "mark";
    const dot = draw(svg, "circle", { class: `${kind}${point.session ? " session" : ""}`, cx: X(point.x), cy: Y(point.y), r: side === undefined ? 4 : 5.5 });
    draw(dot, "title", {}, `${point.tier}: ${form(point.y)}`);
    dot.addEventListener("click", () => {
      const index = state.tiers.findIndex((tier) => tier.label === point.tier);
      if (index < 0 || $("free").checked) return;
      boxOf(0).querySelector(".slider").value = String(index);
      slide(0);
    });
  }
  for (const side of sides) {
    const x = X(state.sides[side].tier.essh.parameters);
    draw(svg, "text", { class: side ? "label second" : "label", x: Math.min(Math.max(x, left + 14), width - 16), y: top - 8, "text-anchor": "middle" }, state.sides[side].tier.label);
  }
}

// The page.

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  const words = { auto: ["Auto", "as the system"], light: ["Light", "light"], dark: ["Dark", "dark"] }[theme];
  $("theme").textContent = words[0];
  $("theme").setAttribute("aria-label", `Theme: ${words[1]}`);
  memory.set(forever, "theme", theme);
}

function setMode(mode) {
  state.mode = mode;
  document.querySelector(`input[name=mode][value=${mode}]`).checked = true;
  const chat = mode === "chat";
  $("input").placeholder = chat ? "Message" : "A text to continue";
  $("system").closest(".field").hidden = !chat;
  $("empty-title").textContent = chat && !state.chatTrained ? "This model continues text." : "One model, every size.";
  $("empty-text").textContent = chat && !state.chatTrained
    ? "It has no chat markers of its own, so a conversation is only text to it. Completion may suit it better."
    : "Move the slider to choose how much of the model answers. You can change it between messages, or let two sizes answer side by side.";
  const starters = chat ? ["Hello! Who are you?", "Tell me a short story."] : ["Once upon a time", "The history of the city begins", "#include <vector>"];
  $("starters").replaceChildren(...starters.map((text) => {
    const button = make("button", "", text);
    button.type = "button";
    button.addEventListener("click", () => send(text));
    return button;
  }));
}

function clear() {
  stop();
  state.turns = [];
  $("turns").replaceChildren();
  $("empty").hidden = false;
  hideProbabilities();
  $("input").focus();
}

function switchMode(mode) {
  if (mode !== state.mode && state.turns.length > 0) clear();
  setMode(mode);
}

function askForKey(wrong) {
  $("key-error").hidden = !wrong;
  $("key-error").textContent = "This key was not accepted.";
  if (!$("key-dialog").open) $("key-dialog").showModal();
  $("key").focus();
}

function openPanel(open) {
  $("panel").classList.toggle("open", open);
  $("panel-open").setAttribute("aria-expanded", String(open));
  if (open) boxOf(0).querySelector(".slider").focus();
}

function fit() {
  $("input").style.height = "auto";
  $("input").style.height = `${$("input").scrollHeight}px`;
  refreshButtons();
}

async function load() {
  let models, info;
  try {
    [models, info, state.frontier] = await Promise.all([read("/v1/models"), read("/tokenizer_info"), read("/frontier")]);
  } catch (error) {
    if (error.status !== 401) $("empty-text").textContent = kindly(error);
    return;
  }
  if ($("key-dialog").open) $("key-dialog").close();
  state.name = models.data[0].id;
  state.tiers = models.data.slice(1).map((model) => ({ ...model, label: labelOf(model.id) }));
  // The default capacity is listed with the tiers even if it is not one of them.
  const standard = { ...models.data[0], label: models.data[0].tier };
  if (!state.tiers.some((tier) => tier.capacity === standard.capacity)) state.tiers.push(standard);
  state.tiers.sort((a, b) => a.essh.parameters - b.essh.parameters);
  const usual = state.tiers.find((tier) => tier.capacity === standard.capacity);
  state.chatTrained = info.chat_markers;
  state.plot = state.frontier.quality ? "quality" : "cost";
  document.querySelector(`input[name=plot][value=${state.plot}]`).checked = true;
  document.title = `${state.name} · essh`;
  $("model-name").textContent = state.name;
  const family = state.tiers.length > 1;
  for (const id of ["compare", "free"]) $(id).closest(".switch").hidden = !family;
  state.sides[0].tier = usual;
  setMode(state.chatTrained ? "chat" : "completion");
  setUpSliders();
  refreshButtons();
}

function connect() {
  setTheme(memory.get(forever, "theme") || "auto");
  $("theme").addEventListener("click", () => setTheme({ auto: "light", light: "dark", dark: "auto" }[memory.get(forever, "theme") || "auto"]));
  for (const radio of document.querySelectorAll("input[name=mode]")) radio.addEventListener("change", () => switchMode(radio.value));
  for (const radio of document.querySelectorAll("input[name=plot]")) radio.addEventListener("change", () => { state.plot = radio.value; drawPlot(); });
  for (const side of [0, 1]) boxOf(side).querySelector(".slider").addEventListener("input", () => slide(side));
  $("free").addEventListener("change", setUpSliders);
  $("compare").addEventListener("change", () => {
    const two = $("compare").checked;
    boxOf(1).hidden = !two;
    document.body.classList.toggle("wide", two);
    if (!state.sides[0].tier) return;
    showSpeed(1);
    choose(0, state.sides[0].tier);
  });
  $("shade").addEventListener("change", () => document.body.classList.toggle("shade", $("shade").checked));
  $("new").addEventListener("click", clear);
  $("stop").addEventListener("click", stop);
  $("panel-open").addEventListener("click", () => openPanel(!$("panel").classList.contains("open")));
  $("panel-close").addEventListener("click", () => { openPanel(false); $("panel-open").focus(); });
  $("scroll").addEventListener("scroll", placeProbabilities);
  $("input").addEventListener("input", fit);
  $("input").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    $("composer").requestSubmit();
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const said = state.mode === "chat" ? $("input").value.trim() : $("input").value;
    if (said === "" || state.running.size > 0) return;
    $("input").value = "";
    fit();
    send(said);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || $("key-dialog").open) return;
    if (state.running.size > 0) return stop();
    if ($("panel").classList.contains("open")) openPanel(false);
  });
  $("key-dialog").addEventListener("cancel", (event) => event.preventDefault());
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    memory.set(forTab, "key", $("key").value);
    $("key").value = "";
    load();
  });
}

connect();
load();
