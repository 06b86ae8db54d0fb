// A chart of lines: hide them by what they belong to, zoom by drawing a box, read values by pointer or keys.
//
//   FT.chart(host, {title, x: {label, log}, y: {label, log}, lines, dims, marks, height})
//   a line   {label, keys: {scheme: "FedAvg"}, colour, dash, xs, ys, low, high, dots, wide, faint}; low and high are its
//            band, of bandOpacity; one that is `cut` ends in a cross, and is no measure for the axis where there are others
//   a dim    {name, label, values: [{value, label, colour, dash, off}]}: a line is seen where all its keys are switched on
//   marks    [{x}] are lines down, marksY [{y, label}] lines across
//
// Charts that share switches: `off`, a Map, is of all of them; one has the dims, `keysAt` is where they are shown, and
// `turned` is called when one was switched.
"use strict";

FT.ticks = (low, high, log, most) => {
  if (!(high > low)) return [low];
  if (log && high / low > 3) {
    const found = [];
    const decades = Math.log10(high / low);
    const digits = decades > 4 ? [1] : decades > 1.6 ? [1, 3] : [1, 2, 5];
    const skip = decades > 4 ? Math.ceil(decades / most) : 1;
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      if (power % skip !== 0) continue;
      for (const digit of digits) {
        const value = digit * 10 ** power;
        if (value >= low * 0.9999 && value <= high * 1.0001) found.push(value);
      }
    }
    if (found.length > 1) return found;
  }
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((d) => d * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) found.push(k * step);
  return found;
};

// A scale from values to pixels and back.
FT.scale = (low, high, from, to, log) => {
  const f = log ? Math.log : (v) => v;
  const back = log ? Math.exp : (v) => v;
  const begin = f(low);
  const span = f(high) - begin || 1;
  const scale = (value) => from + ((f(value) - begin) / span) * (to - from);
  scale.invert = (pixel) => back(begin + ((pixel - from) / (to - from)) * span);
  Object.assign(scale, { low, high, log });
  return scale;
};

// The place in ascending xs that is nearest to x.
FT.nearest = (xs, x) => {
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
};

FT.charts = 0;

FT.chart = (host, given) => {
  let spec = given;
  const state = { off: given.off || new Map(), zoom: null, logX: Boolean(spec.x.log), logY: Boolean(spec.y.log), at: null, pointer: null };
  const number = (FT.charts += 1);
  const margin = { left: 58, right: 16, top: 10, bottom: 40 };
  const title = FT.html("h3", { id: `chart-${number}` }, spec.title);
  const keys = FT.html("div", { class: "keys-of" });
  const said = FT.html("div", { class: "hidden", role: "status", "aria-live": "polite" });
  const tip = FT.html("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const help = "Arrow keys read values, plus and minus zoom, 0 shows everything.";
  const svg = FT.svg("svg", { tabindex: "0", role: "group", "aria-labelledby": `chart-${number}`, "aria-description": help });
  const toolX = FT.html("button", { type: "button", onclick: () => flip("logX") }, "log x");
  const toolY = FT.html("button", { type: "button", onclick: () => flip("logY") }, "log y");
  const reset = FT.html("button", { type: "button", onclick: () => zoomTo(null) }, "Show everything");
  const tools = FT.html("div", { class: "tools" }, toolX, toolY, reset);
  const figure = FT.html("figure", { class: "chart" }, title, keys, svg, tools, tip, said);
  host.append(figure);
  if (given.keysAt) given.keysAt.append(keys);

  let view = null;

  const isOn = (line) => Object.entries(line.keys || {}).every(([dim, value]) => !state.off.get(dim)?.has(value));
  const flip = (name) => { state[name] = !state[name]; state.zoom = null; draw(); };
  const zoomTo = (zoom) => { state.zoom = zoom; draw(); };

  function extent(lines, log, values, inside) {
    let low = Infinity;
    let high = -Infinity;
    for (const line of lines) {
      for (const name of values) {
        const list = line[name];
        if (!list) continue;
        for (let k = 0; k < list.length; k += 1) {
          const value = list[k];
          if (value === null || (log && value <= 0) || (inside && !inside(line.xs[k]))) continue;
          if (value < low) low = value;
          if (value > high) high = value;
        }
      }
    }
    return [low, high];
  }

  function padded([low, high], log, share) {
    if (!(high >= low)) return log ? [0.1, 1] : [0, 1];
    if (log) {
      const room = high > low ? (high / low) ** share : 1.2;
      return [low / room, high * room];
    }
    const room = high > low ? share * (high - low) : Math.abs(high) * 0.05 || 0.5;
    return [low - room, high + room];
  }

  // Where there is nothing above zero, a logarithmic axis would be empty.
  const canLog = (lines, name) => lines.some((line) => line[name].some((v) => v !== null && v > 0));

  function draw() {
    const width = Math.max(svg.clientWidth || 600, 240);
    const height = spec.height || 300;
    const lines = spec.lines.filter(isOn);
    const logX = state.logX && canLog(lines, "xs");
    const logY = state.logY && canLog(lines, "ys");
    const xs = state.zoom?.x || padded(extent(lines, logX, ["xs"]), logX, logX || lines.some((line) => line.dots) ? 0.02 : 0);
    const inside = (x) => x >= xs[0] && x <= xs[1];
    const whole = lines.filter((line) => !line.cut);
    let range = extent(whole.length ? whole : lines, logY, ["ys"], inside);
    for (const mark of spec.marksY || []) range = [Math.min(range[0], mark.y), Math.max(range[1], mark.y)];
    const ys = state.zoom?.y || padded(range, logY, 0.06);
    const x = FT.scale(xs[0], xs[1], margin.left, width - margin.right, logX);
    const y = FT.scale(ys[0], ys[1], height - margin.bottom, margin.top, logY);
    view = { x, y, width, height, lines };
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    const clip = `clip-${number}`;
    const area = { x: margin.left, y: margin.top, width: width - margin.left - margin.right, height: height - margin.top - margin.bottom };
    const back = FT.svg("g");
    for (const value of FT.ticks(ys[0], ys[1], logY, 5)) {
      const place = y(value);
      back.append(
        FT.svg("line", { class: "grid", x1: margin.left, x2: width - margin.right, y1: place, y2: place }),
        FT.svg("text", { x: margin.left - 7, y: place + 4, "text-anchor": "end" }, (spec.y.format || FT.number)(value)),
      );
    }
    for (const value of FT.ticks(xs[0], xs[1], logX, width < 420 ? 4 : 7)) {
      const place = x(value);
      back.append(
        FT.svg("line", { class: "axis", x1: place, x2: place, y1: height - margin.bottom, y2: height - margin.bottom + 4 }),
        FT.svg("text", { x: place, y: height - margin.bottom + 16, "text-anchor": "middle" }, (spec.x.format || FT.number)(value)),
      );
    }
    back.append(
      FT.svg("line", { class: "axis", x1: margin.left, x2: width - margin.right, y1: height - margin.bottom, y2: height - margin.bottom }),
      FT.svg("text", { x: width - margin.right, y: height - 6, "text-anchor": "end" }, spec.x.label),
    );
    const front = FT.svg("g", { "clip-path": `url(#${clip})` });
    for (const line of lines) {
      if (line.low) front.append(FT.svg("path", { class: "band", d: band(line, x, y, ys[0]), style: `fill:${line.colour}${line.bandOpacity ? `;opacity:${line.bandOpacity}` : ""}` }));
    }
    for (const line of lines) {
      line.drawn = FT.svg("path", { class: line.wide ? "line wide" : line.faint ? "line faint" : "line", d: path(line, x, y), style: `stroke:${line.colour}`, "stroke-dasharray": line.dash });
      front.append(line.drawn);
      if (line.dots || line.xs.length === 1) {
        line.xs.forEach((at, k) => {
          if (line.ys[k] === null || (logY && line.ys[k] <= 0) || (logX && at <= 0)) return;
          front.append(FT.svg("circle", { cx: x(at), cy: y(line.ys[k]), r: 3.2, style: `fill:${line.colour}` }));
        });
      }
    }
    for (const line of lines) {
      const last = line.cut ? line.ys.findLastIndex((v, k) => v !== null && !(logY && v <= 0) && !(logX && line.xs[k] <= 0)) : -1;
      if (last < 0) continue;
      const [cx, cy] = [x(line.xs[last]), FT.clamp(y(line.ys[last]), margin.top + 6, height - margin.bottom - 6)];
      front.append(FT.svg("path", { class: "cross", d: `M${cx - 4} ${cy - 4}l8 8m0 -8l-8 8`, style: `stroke:${line.colour}` }));
    }
    for (const mark of spec.marks || []) {
      if (mark.x < xs[0] || mark.x > xs[1] || (logX && mark.x <= 0)) continue;
      front.append(FT.svg("line", { class: "mark", x1: x(mark.x), x2: x(mark.x), y1: margin.top, y2: height - margin.bottom }));
    }
    for (const mark of spec.marksY || []) {
      if (logY && mark.y <= 0) continue;
      front.append(
        FT.svg("line", { class: "cursor", x1: margin.left, x2: width - margin.right, y1: y(mark.y), y2: y(mark.y) }),
        FT.svg("text", { x: width - margin.right - 4, y: y(mark.y) - 4, "text-anchor": "end" }, mark.label),
      );
    }
    const cursor = FT.svg("g", { class: "reading" });
    svg.replaceChildren(FT.svg("clipPath", { id: clip }, FT.svg("rect", area)), back, front, cursor);
    if (lines.length === 0) {
      svg.append(FT.svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, spec.lines.length ? "Everything is hidden." : "There is nothing to show."));
    }
    toolX.setAttribute("aria-pressed", String(state.logX));
    toolY.setAttribute("aria-pressed", String(state.logY));
    toolX.hidden = spec.x.log === undefined;
    toolY.hidden = spec.y.log === undefined;
    reset.hidden = state.zoom === null;
    if (frame !== null && begin !== null) svg.append(frame);  // a box is being drawn
    if (state.pointer !== null) read(x.invert(state.pointer[0]), state.pointer, true);
    else if (state.at !== null) read(state.at, null, true);
  }

  function path(line, x, y) {
    let text = "";
    let open = false;
    for (let k = 0; k < line.xs.length; k += 1) {
      const value = line.ys[k];
      if (value === null || (y.log && value <= 0) || (x.log && line.xs[k] <= 0)) { open = false; continue; }
      text += `${open ? "L" : "M"}${x(line.xs[k]).toFixed(1)} ${y(value).toFixed(1)}`;
      open = true;
    }
    return text;
  }

  function band(line, x, y, floor) {
    const there = [];
    for (let k = 0; k < line.xs.length; k += 1) {
      if (line.low[k] !== null && line.high[k] !== null && !(x.log && line.xs[k] <= 0) && !(y.log && line.high[k] <= 0)) there.push(k);
    }
    const low = (k) => y(y.log ? Math.max(line.low[k], floor * 1e-3) : line.low[k]);
    const up = there.map((k) => `${x(line.xs[k]).toFixed(1)} ${y(line.high[k]).toFixed(1)}`);
    const down = there.reverse().map((k) => `${x(line.xs[k]).toFixed(1)} ${low(k).toFixed(1)}`);
    return up.length ? `M${up.join("L")}L${down.join("L")}Z` : "";
  }

  // Say what the lines are at x: those nearest to the pointer, or the highest; aloud where a key has asked for it.
  function read(at, pointer, quiet = false) {
    const { x, y, lines, height } = view;
    state.at = at;
    state.pointer = pointer;
    const found = [];
    for (const line of lines) {
      const k = FT.nearest(line.xs, at);
      const value = line.ys[k];
      if (k < 0 || value === null || value === undefined || (y.log && value <= 0)) continue;
      found.push({ line, x: line.xs[k], value, far: pointer === null ? 0 : Math.hypot(x(line.xs[k]) - pointer[0], y(value) - pointer[1]) });
    }
    for (const line of lines) line.drawn.classList.remove("near");
    if (found.length === 0) { forget(); return; }
    found.sort((a, b) => a.far - b.far || b.value - a.value);
    const shown = found.slice(0, 8);
    if (pointer !== null) shown[0].line.drawn.classList.add("near");
    const more = found.length - shown.length;
    const head = `${spec.x.label} ${(spec.x.say || FT.number)(shown[0].x)}`;
    const rows = shown.map((one) => `${one.line.label}: ${(spec.y.format || FT.number)(one.value)}${one.line.low && one.line.low[0] !== undefined ? spread(one) : ""}`);
    const text = [head, ...rows, ...(more > 0 ? [`and ${more} more`] : [])].join("\n");
    const place = x(shown[0].x);
    svg.querySelector(".reading").replaceChildren(
      FT.svg("line", { class: "cursor", x1: place, x2: place, y1: margin.top, y2: height - margin.bottom }),
      ...shown.map((one) => FT.svg("circle", { cx: x(one.x), cy: y(one.value), r: 3, style: `fill:${one.line.colour}` })),
    );
    tip.textContent = text;
    tip.hidden = false;
    const left = place > view.width / 2 ? place - tip.offsetWidth - 14 : place + 14;
    tip.style.left = `${FT.clamp(left, 0, Math.max(0, view.width - tip.offsetWidth))}px`;
    tip.style.top = `${svg.getBoundingClientRect().top - figure.getBoundingClientRect().top + margin.top}px`;
    if (pointer === null && !quiet) said.textContent = text;
  }

  const spread = ({ line, x }) => {
    const k = FT.nearest(line.xs, x);
    if (line.low[k] === null || line.high[k] === null) return "";
    return ` ± ${FT.number((line.high[k] - line.low[k]) / 2, 2)}`;
  };

  function forget() {
    state.at = null;
    state.pointer = null;
    tip.hidden = true;
    svg.querySelector(".reading")?.replaceChildren();
    for (const line of spec.lines) line.drawn?.classList.remove("near");
  }

  const where = (event) => {
    const box = svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  let begin = null;
  let frame = null;
  svg.addEventListener("pointerdown", (event) => {
    const [px, py] = where(event);
    if (event.button !== 0 || px < margin.left || py > view.height - margin.bottom) return;
    begin = [px, py];
    svg.setPointerCapture(event.pointerId);
    frame = FT.svg("rect", { class: "box" });
    svg.append(frame);
  });
  const boxOf = ([px, py]) => {
    const { width, height } = view;
    const clipped = [FT.clamp(px, margin.left, width - margin.right), FT.clamp(py, margin.top, height - margin.bottom)];
    const flat = Math.abs(py - begin[1]) < 14;
    const [x0, x1] = [begin[0], clipped[0]].sort((a, b) => a - b);
    const [y0, y1] = flat ? [margin.top, height - margin.bottom] : [begin[1], clipped[1]].sort((a, b) => a - b);
    return { x0, x1, y0, y1, flat };
  };
  svg.addEventListener("pointermove", (event) => {
    const pointer = where(event);
    if (begin !== null) {
      const box = boxOf(pointer);
      for (const [name, value] of Object.entries({ x: box.x0, y: box.y0, width: box.x1 - box.x0, height: box.y1 - box.y0 })) frame.setAttribute(name, value);
    }
    if (pointer[0] >= margin.left) read(view.x.invert(pointer[0]), pointer);
  });
  const end = (event) => {
    if (begin === null) return;
    const box = boxOf(where(event));
    begin = null;
    frame.remove();
    if (event.type !== "pointerup" || box.x1 - box.x0 < 8) return;
    const { x, y } = view;
    zoomTo({ x: [x.invert(box.x0), x.invert(box.x1)], y: box.flat ? null : [y.invert(box.y1), y.invert(box.y0)] });
  };
  svg.addEventListener("pointerup", end);
  svg.addEventListener("pointercancel", end);
  svg.addEventListener("pointerleave", forget);
  svg.addEventListener("blur", forget);
  svg.addEventListener("dblclick", () => zoomTo(null));
  svg.addEventListener("keydown", (event) => {
    const longest = view.lines.reduce((a, b) => (a && a.xs.length >= b.xs.length ? a : b), null);
    if (longest === null) return;
    const seen = longest.xs.filter((x) => x >= view.x.low && x <= view.x.high);
    const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 10, PageUp: -10 };
    if (event.key in steps || event.key === "Home" || event.key === "End") {
      const k = state.at === null ? (steps[event.key] > 0 ? -1 : seen.length) : FT.nearest(seen, state.at);
      const next = event.key === "Home" ? 0 : event.key === "End" ? seen.length - 1 : FT.clamp(k + steps[event.key], 0, seen.length - 1);
      read(seen[next], null);
    } else if (event.key === "+" || event.key === "=" || event.key === "-") {
      const { x } = view;
      const centre = state.at === null ? (margin.left + view.width - margin.right) / 2 : x(state.at);
      const half = ((view.width - margin.left - margin.right) / 2) * (event.key === "-" ? 2 : 0.5);
      zoomTo({ x: [x.invert(centre - half), x.invert(centre + half)], y: null });
    } else if (event.key === "0" || event.key === "Escape") {
      zoomTo(null);
    } else return;
    event.preventDefault();
  });

  const turned = () => {
    draw();
    if (given.turned) given.turned();
  };

  // The switches: a row for each dimension, a button for each of its values; a double click leaves that one alone on.
  function drawKeys() {
    keys.replaceChildren(...(spec.dims || []).map((dim) => {
      const off = state.off.get(dim.name) || new Set(dim.values.filter((one) => one.off).map((one) => one.value));
      state.off.set(dim.name, off);
      const buttons = dim.values.map((one) => {
        const sign = FT.svg("svg", { "aria-hidden": "true", viewBox: "0 0 22 8" },
          FT.svg("line", { x1: 1, x2: 21, y1: 4, y2: 4, style: `stroke:${one.colour || "var(--ink)"};stroke-width:2.4`, "stroke-dasharray": one.dash }));
        const button = FT.html("button", { type: "button", "aria-pressed": String(!off.has(one.value)), title: "Click: show or hide. Double click: only this." },
          one.colour || one.dash !== undefined ? sign : null, String(one.label ?? one.value));
        button.addEventListener("click", () => {
          if (off.has(one.value)) off.delete(one.value); else off.add(one.value);
          button.setAttribute("aria-pressed", String(!off.has(one.value)));
          turned();
        });
        button.addEventListener("dblclick", () => {
          off.clear();
          for (const other of dim.values) if (other.value !== one.value) off.add(other.value);
          drawKeys();
          turned();
        });
        return button;
      });
      const all = dim.values.length > 6 ? FT.html("button", { type: "button", onclick: () => {
        if (off.size) off.clear(); else for (const one of dim.values) off.add(one.value);
        drawKeys();
        turned();
      } }, "all / none") : null;
      return FT.html("div", { class: "keys" }, FT.html("span", { class: "what" }, dim.label || dim.name), ...buttons, all);
    }));
  }

  drawKeys();
  draw();
  let seen = svg.clientWidth;
  if (typeof ResizeObserver !== "undefined") {
    new ResizeObserver(() => {
      if (Math.abs(svg.clientWidth - seen) > 1) { seen = svg.clientWidth; draw(); }
    }).observe(figure);
  }
  return {
    figure,
    update(next) {
      const dims = JSON.stringify(spec.dims || []);
      if (next.x.label !== spec.x.label) Object.assign(state, { zoom: null, logX: Boolean(next.x.log) });
      spec = next;
      title.textContent = spec.title;
      if (JSON.stringify(spec.dims || []) !== dims) drawKeys();
      draw();
    },
  };
};
