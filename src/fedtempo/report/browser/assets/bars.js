// A chart of bars, with the same numbers under another rule as an outline, and a line at what is fair.
//
//   update({title, label, bars: [{name, value}], other: [values], fair, colour, format, ticks: [{at, label}]})
"use strict";

FT.bars = (host) => {
  const number = (FT.charts += 1);
  const title = FT.html("h3", { id: `chart-${number}` });
  const about = FT.html("p", { class: "soft small" });
  const said = FT.html("div", { class: "hidden", role: "status", "aria-live": "polite" });
  const tip = FT.html("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const svg = FT.svg("svg", { tabindex: "0", role: "group", "aria-labelledby": `chart-${number}`, "aria-description": "Left and right go from bar to bar." });
  const figure = FT.html("figure", { class: "chart bars" }, title, svg, about, tip, said);
  host.append(figure);
  let spec = null;
  let at = null;
  let places = [];

  // A name that would run into the next one ends with dots; the tip has all of it. Numbers stay whole.
  const shorter = (tick, room) => {
    const letters = [...tick];
    const fit = Math.max(Math.floor(room / 7.5), 2);
    return letters.length <= fit || /^\d+$/.test(tick) ? tick : `${letters.slice(0, fit - 1).join("")}…`;
  };

  function draw() {
    const width = Math.max(svg.clientWidth || 420, 220);
    const height = 210;
    const [left, right, top, bottom] = [50, 8, 8, 36];
    const values = [...spec.bars.map((bar) => bar.value), ...(spec.other || []), ...(spec.fair === undefined ? [] : [spec.fair])];
    const high = Math.max(...values) * 1.06 || 1;
    const y = FT.scale(0, high, height - bottom, top, false);
    const each = (width - left - right) / spec.bars.length;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = `${height}px`;
    const parts = [];
    for (const tick of FT.ticks(0, high, false, 4)) {
      parts.push(FT.svg("line", { class: "grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }),
        FT.svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, (spec.format || FT.number)(tick)));
    }
    places = spec.bars.map((bar, k) => left + k * each);
    spec.bars.forEach((bar, k) => {
      parts.push(FT.svg("rect", { class: k === at ? "bar at" : "bar", x: (places[k] + each * 0.12).toFixed(1), width: Math.max(each * 0.76, 1).toFixed(1),
        y: y(bar.value).toFixed(1), height: Math.max(height - bottom - y(bar.value), 0).toFixed(1), style: `--bar:${spec.colour}` }));
    });
    if (spec.other) {
      const steps = spec.other.map((value, k) => `${k ? "L" : "M"}${places[k].toFixed(1)} ${y(value).toFixed(1)}H${(places[k] + each).toFixed(1)}`);
      parts.push(FT.svg("path", { class: "other", d: steps.join("") }));
    }
    if (spec.fair !== undefined) parts.push(FT.svg("line", { class: "fair", x1: left, x2: width - right, y1: y(spec.fair), y2: y(spec.fair) }));
    parts.push(FT.svg("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
    const skip = Math.ceil(spec.bars.length / Math.max(Math.floor((width - left - right) / 34), 1));
    spec.bars.forEach((bar, k) => {
      if (k % skip === 0) parts.push(FT.svg("text", { x: places[k] + each / 2, y: height - bottom + 15, "text-anchor": "middle" }, shorter(bar.tick, each * skip)));
    });
    parts.push(FT.svg("text", { x: width - right, y: height - 5, "text-anchor": "end" }, spec.label));
    svg.replaceChildren(...parts);
    title.textContent = spec.title;
    about.textContent = spec.about || "";
  }

  function show(k, quiet) {
    at = k;
    draw();
    if (k === null) { tip.hidden = true; return; }
    tip.textContent = spec.bars[k].say;
    tip.hidden = false;
    tip.style.left = `${FT.clamp(places[k], 0, Math.max(0, svg.clientWidth - tip.offsetWidth))}px`;
    tip.style.top = `${svg.getBoundingClientRect().top - figure.getBoundingClientRect().top}px`;
    if (!quiet) said.textContent = spec.bars[k].say;
  }

  svg.addEventListener("pointermove", (event) => {
    const px = event.clientX - svg.getBoundingClientRect().left;
    const k = places.findLastIndex((place) => place <= px);
    if (k !== at) show(k < 0 ? null : k, true);
  });
  svg.addEventListener("pointerleave", () => show(null, true));
  svg.addEventListener("blur", () => show(null, true));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    show(FT.clamp(at === null ? (step > 0 ? 0 : spec.bars.length - 1) : at + step, 0, spec.bars.length - 1), false);
  });
  if (typeof ResizeObserver !== "undefined") {
    let seen = 0;
    new ResizeObserver(() => { if (spec !== null && Math.abs(svg.clientWidth - seen) > 1) { seen = svg.clientWidth; draw(); } }).observe(figure);
  }
  return (next) => { spec = next; at = null; tip.hidden = true; draw(); };
};
