// The charts of a study: <div data-study="name"></div> gets those of FT.data.studies[name], with one set of switches.
//
// A study has settings (problems, client times) of which one is shown; each combination of scheme, weights and
// hyper-parameters is a mean over seeds, and behind switches its seeds; what is not measured is null.
"use strict";

FT.bytes = (value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let k = 0;
  while (Math.abs(value) >= 1000 && k < units.length - 1) { value /= 1000; k += 1; }
  return `${FT.number(value, 3)} ${units[k]}`;
};

FT.chosen = (name, values, labels, change) => {
  const options = values.map((value, k) => FT.html("option", { value: k }, labels[k]));
  const select = FT.html("select", { onchange: () => change(values[select.selectedIndex]) }, ...options);
  return FT.html("label", {}, name, select);
};

FT.study = (host, study) => {
  const state = { setting: 0, axis: 0, view: "best" };
  const seen = (combo) => state.view === "all" || combo[state.view];
  const off = new Map();
  const colour = new Map();
  const dash = new Map();
  for (const dim of study.dims) {
    for (const one of dim.values) {
      if (dim.name === "scheme") colour.set(one.value, one.colour);
      if (dim.name === "weights") dash.set(one.value, one.dash);
    }
  }
  const hyper = study.dims.filter((dim) => dim.hyper).map((dim) => dim.name);
  const singly = study.dims.some((dim) => dim.name === "seed");

  const band = (ys, errors, sign) => ys.map((y, k) => (y === null || errors[k] === null ? null : y + sign * errors[k]));
  const keysOf = (combo, seed) => {
    const keys = { scheme: combo.at[0] };
    if (!combo.own) keys.weights = combo.at[1];
    if (state.view === "all") hyper.forEach((name, k) => { if (combo.at[2 + k] !== null) keys[name] = combo.at[2 + k]; });
    if (singly) keys.seed = seed;
    return keys;
  };
  const lookOf = (one) => ({ colour: colour.get(one.at[0]), dash: one.own ? null : dash.get(one.at[1]) });

  function linesOf(measure) {
    const lines = [];
    for (const combo of study.combos) {
      if (combo.setting !== state.setting || !seen(combo)) continue;
      const ys = combo.means[measure];
      const place = combo.xs[state.axis];
      if (ys !== null && place >= 0) {
        const errors = combo.deviations[measure];
        const spread = errors ? { low: band(ys, errors, -1), high: band(ys, errors, 1) } : {};
        lines.push({ label: combo.label, keys: keysOf(combo, "mean"), xs: study.pool[place], ys, cut: combo.gone, ...spread, ...lookOf(combo) });
      }
      for (const one of combo.seeds) {
        const values = one.values[measure];
        if (values === null || one.xs[state.axis] < 0) continue;
        lines.push({ label: `${combo.label}, seed ${one.seed}`, keys: keysOf(combo, one.seed), xs: study.pool[one.xs[state.axis]], ys: values, cut: one.gone, ...lookOf(combo) });
      }
    }
    const bands = lines.filter((line) => line.low && !off.get("scheme")?.has(line.keys.scheme)).length;
    for (const line of lines) line.bandOpacity = Math.min(0.16, 0.8 / bands);  // many on one another would hide the lines
    return lines;
  }

  const axis = () => study.axes[state.axis];
  function measured(k) {
    const measure = study.measures[k];
    const target = measure.name === "loss" ? study.targets[state.setting] : null;
    return {
      title: measure.title,
      x: { label: axis().label, log: Boolean(study.logTime) && axis().name === "time", format: axis().name.startsWith("bytes") ? FT.bytes : undefined },
      y: { log: measure.log === null ? undefined : measure.log, format: measure.share ? FT.percent : undefined },
      lines: linesOf(k),
      marksY: target === null ? [] : [{ y: target, label: `target ${FT.number(target, 3)}` }],
      off,
    };
  }
  function ended(k) {
    const end = study.ends[k];
    const lines = end.lines.filter((line) => line.setting === state.setting).map((line) => {
      const spread = line.deviations ? { low: band(line.ys, line.deviations, -1), high: band(line.ys, line.deviations, 1) } : {};
      const keys = line.own ? { scheme: line.at[0] } : { scheme: line.at[0], weights: line.at[1] };
      return { label: line.label, keys, xs: line.xs, ys: line.ys, dots: true, ...spread, ...lookOf(line) };
    });
    return { ...end, lines, off };
  }
  // Switches of rates are there where all rates are shown.
  const dims = () => study.dims.filter((dim) => (dim.hyper ? state.view === "all" : dim.values.length > 1 || dim.name === "scheme"));

  const choices = FT.html("div", { class: "choices" });
  if (study.settings.length > 1) {
    choices.append(FT.chosen(study.settingName || "setting", study.settings.map((_, k) => k), study.settings, (k) => { state.setting = k; renew(); }));
  }
  if (study.axes.length > 1) {
    choices.append(FT.chosen("over", study.axes.map((_, k) => k), study.axes.map((one) => one.label), (k) => { state.axis = k; renew(); }));
  }
  if (study.views.length > 1) {
    choices.append(FT.chosen("runs", study.views.map((one) => one.name), study.views.map((one) => one.label), (view) => { state.view = view; renew(); }));
  }
  const keysAt = FT.html("div", {});
  const panels = FT.html("div", { class: "panels" });
  host.append(choices, keysAt, panels);

  const charts = [];
  const makers = [...study.measures.map((_, k) => () => measured(k)), ...study.ends.map((_, k) => () => ended(k))];
  const specOf = (k) => (k === 0 ? { ...makers[k](), dims: dims() } : makers[k]());
  const others = () => charts.forEach((chart, k) => { if (k > 0) chart.update(specOf(k)); });
  makers.forEach((_, k) => {
    const place = FT.html("div", {});
    panels.append(place);
    charts.push(FT.chart(place, { ...specOf(k), ...(k === 0 ? { keysAt, turned: others } : {}) }));
  });
  function renew() { charts.forEach((chart, k) => chart.update(specOf(k))); }
};

for (const place of document.querySelectorAll("[data-study]")) FT.study(place, FT.data.studies[place.dataset.study]);
