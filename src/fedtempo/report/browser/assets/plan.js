// The page of a plan: what is set, in the controls and in the address, and the views that follow it.
"use strict";
{
  const { data } = FT;
  const by = (id) => document.getElementById(id);
  const federations = new Map();
  const keyOf = (place) => `${place.clients} ${place.spread} ${place.law}`;
  for (const one of data.federations) federations.set(keyOf(one), one);
  const distinct = (name) => [...new Set(data.federations.map((one) => one[name]))].sort((a, b) => (typeof a === "number" ? a - b : 0));
  const laws = distinct("law");
  const fraction = (text) => {
    const [over, under] = String(text).split("/").map(Number);
    return under ? over / under : over;
  };
  const nearest = (values, wanted) => values.reduce((a, b) => (Math.abs(fraction(a) - fraction(wanted)) <= Math.abs(fraction(b) - fraction(wanted)) ? a : b));
  const colourOf = (kind) => (["FedAvg", "AsyncFedAvg", "FedFix", "FedBuff"].includes(kind) ? `var(--c${["FedAvg", "AsyncFedAvg", "FedFix", "FedBuff"].indexOf(kind)})` : "var(--accent)");
  const percent = FT.percent;

  // -- what is set

  const state = { clients: data.given.clients, spread: data.given.spread, law: data.given.law, scheme: data.given.kind,
    wait: data.given.kind === "FedFix" ? data.given.size : null, buffer: data.given.kind === "FedBuff" ? data.given.size : null, weights: data.given.rule };
  let note = "";

  const federation = () => federations.get(keyOf(state));
  const sizesOf = (place, kind) => place.settings.filter((one) => one.kind === kind).map((one) => one.size);
  const setting = () => {
    const size = { FedFix: state.wait, FedBuff: state.buffer }[state.scheme] ?? null;
    return federation().settings.find((one) => one.kind === state.scheme && String(one.size) === String(size));
  };

  // Bring what is set to what is there: the nearest federation, wait and size; a scheme and weights that exist.
  function settle() {
    if (federation() === undefined) {
      const far = (one) => (one.law === state.law ? 0 : 1e9) + 1e4 * Math.abs(one.clients - state.clients) + Math.abs((one.spread ?? 0) - (state.spread ?? 0));
      const place = data.federations.reduce((a, b) => (far(b) < far(a) ? b : a));
      Object.assign(state, { clients: place.clients, spread: place.spread, law: place.law });
    }
    const place = federation();
    const [waits, buffers] = [sizesOf(place, "FedFix"), sizesOf(place, "FedBuff")];
    const middle = (values) => values[Math.floor((values.length - 1) / 2)];
    if (waits.length) state.wait = state.wait === null ? middle(waits) : nearest(waits, state.wait);
    if (buffers.length) state.buffer = state.buffer === null ? middle(buffers) : nearest(buffers, state.buffer);
    const kinds = new Set(place.settings.map((one) => one.kind));
    if (!kinds.has(state.scheme)) state.scheme = data.kinds.find((kind) => kinds.has(kind));
    const rules = Object.keys(setting().rules);
    if (rules.length && !rules.includes(state.weights)) state.weights = rules[0];
  }

  // -- the address

  const NAMES = ["clients", "spread", "law", "scheme", "wait", "buffer", "weights"];

  function fromAddress() {
    const asked = new URLSearchParams(location.hash.slice(1));
    if ([...asked.keys()].length === 0) return;
    for (const name of NAMES) {
      if (!asked.has(name)) continue;
      const text = asked.get(name);
      const number = Number(text);
      if (name === "clients" || name === "spread") {
        if (Number.isFinite(number) && distinct(name).every((one) => one !== null)) state[name] = number;
      } else if (name === "wait" || name === "buffer") {
        if (Number.isFinite(fraction(text))) state[name] = text;
      } else state[name] = text;
    }
    const wanted = { ...state };
    settle();
    const off = NAMES.filter((name) => asked.has(name) && (name === "wait" || name === "buffer" ? fraction(wanted[name]) !== fraction(state[name]) : String(asked.get(name)) !== String(state[name])));
    note = off.length ? `The link asks for ${off.map((name) => `${name} ${asked.get(name)}`).join(", ")}, which this page does not have; the nearest is shown.` : "";
  }

  function address() {
    const said = new URLSearchParams();
    for (const name of NAMES) {
      const used = { wait: state.scheme === "FedFix", buffer: state.scheme === "FedBuff" }[name] ?? true;
      if (used && state[name] !== null) said.set(name, state[name]);
    }
    return `#${said.toString()}`;
  }

  function toAddress() {
    try {
      history.replaceState(null, "", address());
    } catch {
      // a page inside a page has no address of its own
    }
  }

  // -- the controls

  const set = (change) => { Object.assign(state, change); note = ""; settle(); show(); toAddress(); };

  const range = (name, values, say, change) => {
    const label = document.querySelector(`[data-range="${name}"]`);
    const input = label.querySelector("input");
    const output = label.querySelector(".value");
    input.addEventListener("input", () => change(values()[Number(input.value)]));
    return (value, active) => {
      const list = values();
      input.max = String(Math.max(list.length - 1, 0));
      input.value = String(list.findIndex((one) => String(one) === String(value)));
      input.disabled = list.length < 2;
      output.textContent = list.length ? say(value) : "–";
      input.setAttribute("aria-valuetext", output.textContent);
      label.classList.toggle("off", list.length < 2);
      label.classList.toggle("aside", !active);
    };
  };
  const setWait = range("wait", () => sizesOf(federation(), "FedFix"), (wait) => `${wait} (${FT.number(fraction(wait))})`, (wait) => set({ scheme: "FedFix", wait }));
  const setBuffer = range("buffer", () => sizesOf(federation(), "FedBuff"), String, (buffer) => set({ scheme: "FedBuff", buffer }));
  const clientsThere = distinct("clients");
  const spreadsThere = distinct("spread").filter((one) => one !== null);
  const setClients = range("clients", () => clientsThere, String, (clients) => set({ clients }));
  const setSpread = range("spread", () => spreadsThere, (spread) => (spread === null ? "as given" : `F${FT.number(spread)}`), (spread) => set({ spread }));

  const radios = new Map(data.kinds.map((kind) => {
    const input = FT.html("input", { type: "radio", name: "scheme", value: kind, onchange: () => set({ scheme: kind }) });
    by("kind").append(FT.html("label", {}, input, FT.html("span", { class: "dot", style: `background:${colourOf(kind)}` }), kind));
    return [kind, input];
  }));
  const choice = (id, name, values) => {
    by(id).append(...values.map((value) => FT.html("option", { value }, value)));
    by(id).addEventListener("change", () => set({ [name]: by(id).value }));
  };
  choice("law", "law", laws);
  choice("rule", "weights", data.rules);
  by("controls").addEventListener("submit", (event) => event.preventDefault());
  by("copy").addEventListener("click", async () => {
    const link = location.href.split("#")[0] + address();
    try {
      await navigator.clipboard.writeText(link);
      by("copy").textContent = "Copied";
    } catch {
      by("note").textContent = link;
      by("copy").textContent = "The link is below the settings";
    }
    setTimeout(() => { by("copy").textContent = "Copy link"; }, 2500);
  });

  function showControls() {
    const place = federation();
    const kinds = new Set(place.settings.map((one) => one.kind));
    for (const [kind, input] of radios) {
      input.checked = kind === state.scheme;
      input.disabled = !kinds.has(kind);
      input.parentElement.classList.toggle("off", input.disabled);
    }
    setWait(state.wait, state.scheme === "FedFix");
    setBuffer(state.buffer, state.scheme === "FedBuff");
    setClients(state.clients, true);
    setSpread(state.spread, true);
    by("law").value = state.law;
    by("law").disabled = laws.length < 2;
    by("rule").value = state.weights;
    const rules = setting().rules;
    for (const option of by("rule").options) option.disabled = !(option.value in rules);
    by("note").textContent = note;
  }

  // -- the views

  const showLanes = FT.lanes(by("lanes"));
  const showCounts = FT.bars(by("counts"));
  const showWeights = FT.bars(by("weights"));
  const showDelays = FT.bars(by("delays"));
  let pace = null;
  let staleness = null;

  const ofClient = (values, c) => (Array.isArray(values) ? values[c] : values);
  const nameOf = (place, c) => (place.names ? place.names[c] : String(place.shown ? place.shown[c] : c));

  function showNumbers(one, rule, usual) {
    const [step, speed, least, most] = rule || [null, null, null, null];
    const delay = one.most === null ? null : one.most[0];
    const rows = [
      ["rounds", "Rounds in a unit of time", one.rounds],
      ["updates", "Client updates in it", one.updates],
      ["idle", "Clients idle", one.idle, percent],
      ["delay", "Mean staleness", one.delay],
      ["most", "Largest staleness", delay, (value) => (value === null ? "–" : one.most[1] ? `${value}` : one.most[2] === null ? `≥ ${value}` : `${value}–${one.most[2]}`)],
      ["step", "Step of the server", step],
      ["speed", "Moves the model", usual ? speed / usual : speed, (value) => `${FT.number(value, 3)} × FedAvg`],
      ["least", "Smallest weight", least],
      ["largest", "Largest weight", most],
      ["bias", "Bias if all weighed alike", one.bias, percent],
      ["window", "Window, rounds", one.window, (value) => (value === null ? "–" : typeof value === "string" ? value : FT.number(value))],
      ["practical", "Practical window", one.practical],
    ];
    by("numbers").replaceChildren(...rows.map(([name, label, value, say]) =>
      FT.html("div", {}, FT.html("dt", {}, label), FT.html("dd", { "data-name": name, "data-value": String(value) }, (say || FT.number)(value)))));
  }

  const counted = (value, name) => { const said = FT.number(value, 3); return `${said} ${name}${said === "1" ? "" : "s"}`; };

  function showSentence(place, one, rule) {
    const [slowest, fastest] = [Math.max(...place.times), Math.min(...place.times)];
    const spread = slowest > fastest * 1.0001 ? `from ${FT.number(slowest)} down to ${FT.number(fastest)}` : `of ${FT.number(slowest)}`;
    const stale = one.delay < 1e-9 ? "no update is stale" : `an update is ${counted(one.delay, "model")} old on average when it is used`;
    const bias = one.bias < 5e-4 ? "Counted alike, every client has its due." : `Were all updates weighed alike, some client would count ${percent(one.bias)} more or less than its due.`;
    by("title").textContent = `${place.clients} client${place.clients === 1 ? "" : "s"} with ${place.law} times ${spread}`;
    by("sentence").textContent = `${one.label} with ${place.clients} client${place.clients === 1 ? "" : "s"}, ${place.law} times ${spread}, ${rule ? `${state.weights} weights` : "no weights"}: ${counted(one.rounds, "model")} and ${counted(one.updates, "client update")} in a unit of time; ${stale}; clients idle ${percent(one.idle)} of the time. ${bias}`;
  }

  function showAgainst(place, usual) {
    const kind = state.scheme === "FedBuff" ? "FedBuff" : "FedFix";
    const there = place.settings.filter((one) => one.kind === kind);
    const fedavg = place.settings.find((one) => one.kind === "FedAvg");
    const xs = there.map((one) => fraction(one.size));
    const what = kind === "FedFix" ? "wait" : "buffer size";
    const mark = kind === state.scheme ? [{ x: fraction(kind === "FedFix" ? state.wait : state.buffer) }] : [];
    const line = (label, colour, dash, ys) => ({ label, keys: {}, colour, dash, xs, ys, dots: true });
    const speeds = there.map((one) => { const rule = one.rules[state.weights]; return rule && usual ? rule[1] / usual : null; });
    const updates = there.map((one) => (fedavg ? one.updates / fedavg.updates : null));
    const axis = { label: what };
    const first = { title: `${kind} against its ${what}: pace, × FedAvg (dashed: client updates)`, x: axis, y: { label: "× FedAvg" }, height: 220, marks: mark,
      marksY: [{ y: 1, label: "FedAvg" }],
      lines: [line("moves the model", colourOf(kind), null, speeds), line("client updates", "var(--soft)", "4 3", updates)] };
    const second = { title: `${kind} against its ${what}: mean staleness`, x: axis, y: { label: "staleness" }, height: 220, marks: mark,
      lines: [line("mean staleness", colourOf(kind), null, there.map((one) => one.delay))] };
    if (pace === null) { pace = FT.chart(by("pace"), first); staleness = FT.chart(by("staleness"), second); }
    else { pace.update(first); staleness.update(second); }
    for (const id of ["pace", "staleness"]) by(id).hidden = there.length < 2;
  }

  function show() {
    const place = federation();
    const one = setting();
    const rule = one.rules[state.weights];
    const colour = colourOf(one.kind);
    const fedavg = place.settings.find((other) => other.kind === "FedAvg");
    const usual = fedavg?.rules[state.weights]?.[1];
    showControls();
    showSentence(place, one, rule);
    const weights = rule ? rule[4] : null;
    showLanes({ setting: one, federation: place, ticks: data.ticks, weights: rule ? (Array.isArray(weights) ? weights.map((d) => d * rule[0]) : weights * rule[0]) : null });
    showNumbers(one, rule, usual);
    const clients = place.times.map((_, c) => c);
    const alike = clients.map((c) => ofClient(one.alike, c) / ofClient(place.importance, c));
    const counted = clients.map((c) => (rule ? ofClient(rule[5], c) / ofClient(place.importance, c) : 0));
    const bar = (c, value, words) => ({ value, tick: nameOf(place, c), say: `${place.names ? "" : "client "}${nameOf(place, c)}, mean time ${FT.number(place.times[c])}\n${words}` });
    showCounts({ title: "How much each client counts, of its due", label: "client", colour, fair: 1, other: alike,
      about: `Bars: under ${state.weights} weights. Line: if all updates weighed alike. 1 is fair.`,
      bars: clients.map((c) => bar(c, counted[c], `counts ${FT.number(counted[c])} times its due; ${FT.number(alike[c])} if all weighed alike`)) });
    showWeights({ title: "The weight of a client's update", label: "client", colour, about: "Before the step of the server.",
      bars: clients.map((c) => bar(c, rule ? ofClient(weights, c) : 0, `weight ${rule ? FT.number(ofClient(weights, c)) : "–"}`)) });
    const [first, width, shares] = one.delays;
    const ranges = shares.map((_, k) => (width === 1 ? String(first + k) : `${first + k * width}–${first + (k + 1) * width - 1}`));
    showDelays({ title: "Staleness of updates", label: "models made meanwhile", colour, format: percent, about: `Over some thousand updates; mean ${FT.number(one.delay)}.`,
      bars: shares.map((share, k) => ({ value: share, tick: String(first + k * width), say: `staleness ${ranges[k]}: ${percent(share)} of updates` })) });
    showAgainst(place, usual);
    if (FT.race) FT.race({ state, place, one, colourOf, fraction, set });
  }

  const begin = () => { fromAddress(); settle(); show(); toAddress(); };
  begin();
  window.addEventListener("hashchange", begin);
}
