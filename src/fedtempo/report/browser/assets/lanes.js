// Who works when: a lane a client, a bar a job, a line a new model.
"use strict";

FT.letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// The jobs of a setting. A client is sent the model of the round that took its update; from then on its next job runs.
FT.jobsOf = (setting, federation, ticks) => {
  const { line } = setting;
  if (line.jobs !== undefined) {
    const [client, sent, back, taken, delay] = line.jobs;
    const jobs = client.map((c, k) => ({ client: c, job: null, sent: sent[k], back: back[k], taken: taken[k], delay: delay[k] }));
    return { jobs, ends: line.ends };
  }
  const ends = Array.isArray(line.ends) ? line.ends : Array.from({ length: line.rounds }, (_, n) => Math.round(line.ends * (n + 1)));
  const state = federation.times.map(() => ({ version: 0, sent: 0, job: 0 }));
  const duration = (c, job) => {
    const given = federation.durations[c];
    return Array.isArray(given) ? given[Math.min(job, given.length - 1)] : given;
  };
  const jobs = [];
  const cut = (time) => Math.min(time, ticks);
  const groups = line.rounds === 0 ? [] : line.who.split(",");
  groups.forEach((group, k) => {
    const round = line.numbers ? line.numbers[k] : k;
    for (const letter of group) {
      const c = FT.letters.indexOf(letter);
      const { version, sent, job } = state[c];
      const back = Math.min(sent + duration(c, job), ends[k]);
      const delay = ends[k] > ticks ? -1 : round - version;
      if (sent < ticks) jobs.push({ client: c, job, sent, back: cut(back), taken: cut(ends[k]), delay, version, round });
      state[c] = { version: round + 1, sent: ends[k], job: job + 1 };
    }
  });
  state.forEach(({ version, sent, job }, c) => {
    if (sent >= ticks) return;
    jobs.push({ client: c, job, sent, back: Math.min(sent + duration(c, job), ticks), taken: ticks, delay: -1, version });
  });
  return { jobs, ends: line.numbers ? [] : ends.filter((end) => end <= ticks) };
};

FT.lanes = (host) => {
  const tip = FT.html("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const said = FT.html("div", { class: "hidden", role: "status", "aria-live": "polite" });
  const svg = FT.svg("svg", { tabindex: "0", role: "group", "aria-label": "Jobs of clients over time",
    "aria-description": "Left and right go from job to job of a client, up and down from client to client." });
  const swatches = FT.html("div", { class: "swatches", "aria-hidden": "true" });
  const figure = FT.html("figure", { class: "chart lanes" }, svg, swatches, tip, said);
  host.append(figure);
  let given = null;
  let drawn = [];
  let at = null;

  function draw() {
    const { setting, federation, ticks, weights } = given;
    const { jobs, ends } = FT.jobsOf(setting, federation, ticks);
    const width = Math.max(svg.clientWidth || 700, 280);
    const count = federation.times.length;
    const lane = count > 20 ? 13 : 19;
    const left = federation.names ? 96 : 34;
    const bottom = 34;
    const height = count * lane + bottom + 6;
    const x = FT.scale(0, ticks, left, width - 10, false);
    const most = jobs.reduce((m, job) => Math.max(m, job.delay), 0);
    const classes = Math.min(most + 1, 8);
    const shade = (delay) => `var(--s${classes === 1 ? 2 : Math.round((Math.floor((delay * classes) / (most + 1)) * 7) / (classes - 1))})`;
    const numberOf = (c) => (federation.shown ? federation.shown[c] : c);
    const nameOf = (c) => (federation.names ? federation.names[c] : `client ${numberOf(c)}`);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    const parts = [FT.svg("defs", {}, FT.svg("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      FT.svg("rect", { width: 5, height: 5, style: "fill:var(--waiting)" }), FT.svg("line", { x1: 0, y1: 0, x2: 0, y2: 5, style: "stroke:var(--waiting-edge);stroke-width:1.6" })))];
    const middle = (c) => 4 + (c + 0.5) * lane;
    const box = (c, from, to, share, attributes) => FT.svg("rect", { x: x(from).toFixed(1), y: (middle(c) - (share * lane) / 2).toFixed(1),
      width: Math.max(x(to) - x(from), 0.6).toFixed(1), height: (share * lane).toFixed(1), ...attributes });
    for (let c = 0; c < count; c += 1) {
      const name = nameOf(c).replace(/^client /, "");
      parts.push(FT.svg("text", { x: left - 6, y: middle(c) + 4, "text-anchor": "end" }, name.length > 13 ? `${name.slice(0, 12)}…` : name));
    }
    const { away, lost, failed } = setting.line;
    if (away) away[0].forEach((c, k) => parts.push(box(c, away[1][k], away[2][k], 0.9, { class: "away" })));
    for (const gone of [lost, failed]) {
      if (gone) gone[0].forEach((c, k) => parts.push(box(c, gone[1][k], gone[2][k], 0.66, { class: "lost" })));
    }
    drawn = [];
    for (const job of jobs) {
      if (job.taken > job.back) parts.push(box(job.client, job.back, job.taken, 0.4, { class: "waits", fill: "url(#hatch)" }));
      const bar = box(job.client, job.sent, job.back, 0.7, job.delay < 0 ? { class: "job out" } : { class: "job", style: `fill:${shade(job.delay)}` });
      parts.push(bar);
      drawn.push({ job, bar });
    }
    const lines = ends.length > 400 ? [] : ends;
    for (const end of lines) parts.push(FT.svg("line", { class: "model", x1: x(end), x2: x(end), y1: 2, y2: 4 + count * lane }));
    const unit = federation.horizon / ticks;
    const axis = 4 + count * lane;
    for (const tick of FT.ticks(0, federation.horizon, false, width < 420 ? 4 : 8)) {
      const place = x(tick / unit);
      parts.push(FT.svg("line", { class: "axis", x1: place, x2: place, y1: axis, y2: axis + 4 }), FT.svg("text", { x: place, y: axis + 16, "text-anchor": "middle" }, FT.number(tick)));
    }
    parts.push(FT.svg("text", { x: width - 10, y: height - 3, "text-anchor": "end" }, "time"));
    svg.replaceChildren(...parts);
    const step = (most + 1) / classes;
    const ranges = Array.from({ length: classes }, (_, k) => [Math.ceil(k * step - 1e-9), Math.ceil((k + 1) * step - 1e-9) - 1]);
    swatches.replaceChildren(FT.html("span", {}, "staleness"), ...ranges.map(([low, high]) =>
      FT.html("span", {}, FT.html("i", { style: `background:${shade(low)}` }), low === high ? String(low) : `${low}–${high}`)),
      FT.html("span", {}, FT.html("i", { style: "background:var(--faint)" }), "not used yet"),
      lost && lost[0].length + failed[0].length ? FT.html("span", {}, FT.html("i", { style: "background:var(--lost);opacity:0.6" }), "lost, or failed") : "",
      away && away[0].length ? FT.html("span", {}, FT.html("i", { style: "background:var(--away);border:1px solid var(--away-edge)" }), "not there") : "",
      federation.shown ? FT.html("span", {}, `${count} of ${federation.clients} clients, from the slowest to the fastest`) : "");
    at = null;
    tip.hidden = true;
    given.say = (job) => {
      const time = (value) => FT.number(value * unit);
      const model = job.version === undefined ? "" : ` ${job.version}`;
      const first = `${nameOf(job.client)}${job.job === null ? "" : `, job ${job.job}`}: sent model${model} at ${time(job.sent)}`;
      if (job.delay < 0) return `${first}\nits update is not used yet`;
      const weight = Array.isArray(weights) ? weights[job.client] : weights;
      const waits = job.taken - job.back > 1 ? `, waits until ${time(job.taken)}` : "";
      const round = job.round === undefined ? "" : `\nused by round ${job.round}`;
      return `${first}, back at ${time(job.back)}${waits}${round}\nstaleness ${job.delay}, weight ${FT.number(weight)}`;
    };
  }

  function show(found, quiet) {
    svg.querySelector(".at")?.remove();
    at = found;
    if (found === null) { tip.hidden = true; return; }
    const frame = found.bar.cloneNode();
    frame.setAttribute("class", "at");
    frame.removeAttribute("style");
    svg.append(frame);
    const text = given.say(found.job);
    tip.textContent = text;
    tip.hidden = false;
    const place = Number(found.bar.getAttribute("x"));
    tip.style.left = `${FT.clamp(place, 0, Math.max(0, svg.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${svg.getBoundingClientRect().top - figure.getBoundingClientRect().top + Number(found.bar.getAttribute("y")) + 24}px`;
    if (!quiet) said.textContent = text;
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const found = drawn.find(({ bar }) => {
      const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => Number(bar.getAttribute(name)));
      return px >= x && px <= x + w && py >= y && py <= y + h;
    });
    show(found || null, true);
  });
  svg.addEventListener("pointerleave", () => show(null, true));
  svg.addEventListener("blur", () => show(null, true));
  svg.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (!(event.key in moves) || drawn.length === 0) return;
    event.preventDefault();
    const [down, along] = moves[event.key];
    if (at === null) { show(drawn.find((one) => one.job.client === 0) || drawn[0], false); return; }
    if (along !== 0) {
      const mine = drawn.filter((one) => one.job.client === at.job.client);
      show(mine[FT.clamp(mine.indexOf(at) + along, 0, mine.length - 1)], false);
      return;
    }
    const other = drawn.filter((one) => one.job.client === at.job.client + down);
    if (other.length) show(other.reduce((a, b) => (Math.abs(a.job.sent - at.job.sent) <= Math.abs(b.job.sent - at.job.sent) ? a : b)), false);
  });
  if (typeof ResizeObserver !== "undefined") {
    let seen = 0;
    new ResizeObserver(() => { if (given !== null && Math.abs(svg.clientWidth - seen) > 1) { seen = svg.clientWidth; draw(); } }).observe(figure);
  }
  return (next) => { given = next; draw(); };
};
