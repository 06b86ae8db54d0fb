// Losses of a recommendation: over time, with the scheme that is set in front, and against the wait.
"use strict";
{
  const { race } = FT.data;
  let charts = null;

  const line = (label, colour, dash, xs, ys, more) => ({ label, keys: {}, colour, dash, xs, ys, ...more });
  const around = (ys, errors, sign) => (errors.every((e) => e === null) ? undefined : ys.map((y, k) => (y === null || errors[k] === null ? null : y + sign * 2 * errors[k])));

  FT.race = ({ state, place, one, colourOf, fraction, set }) => {
    const host = document.getElementById("race");
    const { given } = FT.data;
    const here = ["clients", "spread", "law"].every((name) => place[name] === given[name]);
    if (!here) {
      charts = null;
      const back = FT.html("button", { type: "button", onclick: () => set({ clients: given.clients, spread: given.spread, law: given.law }) }, "Go there");
      host.replaceChildren(FT.html("h2", {}, "Trained"), FT.html("p", {}, `Schemes were trained for ${given.clients} clients with ${given.law} times as they were asked for. `, back));
      return;
    }
    const size = one.kind === "FedFix" ? fraction(state.wait) : one.kind === "FedBuff" ? Number(state.buffer) : null;
    const mine = race.choices.find((choice) => choice.kind === one.kind && (size === null || Math.abs(choice.size - size) < 1e-9));
    const colour = (choice) => (choice.kind === null ? "var(--soft)" : colourOf(choice.kind));
    const shown = race.choices.filter((choice) => choice.curve !== null);
    const lines = shown.map((choice) => {
      const [xs, ys, errors] = choice.curve;
      const front = choice === mine;
      return line(`${choice.label}, lr ${FT.number(choice.lr)}`, colour(choice), null, xs, ys, front
        ? { low: around(ys, errors, -1), high: around(ys, errors, 1), wide: true } : { faint: mine !== undefined && mine.curve !== null });
    });
    if (mine?.predicted) lines.push(line(`${mine.label}, predicted`, colour(mine), "5 4", ...mine.predicted, {}));
    const log = race.largest ? undefined : true;
    const overTime = { title: `${race.over_time} over time`, x: { label: "time", log: false }, y: { label: race.over_time, log }, lines, height: 300 };
    const fixes = race.choices.filter((choice) => choice.kind === "FedFix" && choice.trained >= 1).sort((a, b) => a.size - b.size);
    const waits = [];
    if (fixes.length) waits.push(line("FedFix, trained", colourOf("FedFix"), null, fixes.map((choice) => choice.size), fixes.map((choice) => choice.value), { dots: true }));
    if (race.predicted_waits) waits.push(line("FedFix, predicted", colourOf("FedFix"), "5 4", ...race.predicted_waits, {}));
    const others = race.choices.filter((choice) => ["FedAvg", "AsyncFedAvg"].includes(choice.kind) && choice.trained >= 1 && choice.value !== null);
    const against = { title: `${race.measure} against the wait`, x: { label: "wait", log: false }, y: { label: race.measure, log }, lines: waits, height: 300,
      marks: one.kind === "FedFix" ? [{ x: size }] : [], marksY: others.map((choice) => ({ y: choice.value, label: choice.label })) };
    if (charts === null) {
      const [first, second] = [FT.html("div"), FT.html("div")];
      const said = FT.html("p", { role: "status" });
      const parts = [FT.html("h2", {}, "Trained"), said, FT.html("div", { class: "panels" }, first, second)];
      if (race.line) parts.push(FT.html("p", {}, `Recommended: ${race.best}. On Flower:`), FT.html("pre", {}, race.line));
      host.replaceChildren(...parts);
      charts = { said, overTime: FT.chart(first, overTime), against: FT.chart(second, against) };
    } else {
      charts.overTime.update(overTime);
      charts.against.update(against);
    }
    charts.against.figure.hidden = waits.length === 0;
    const spread = mine && mine.error !== null ? ` ± ${FT.number(mine.error, 2)}` : "";
    charts.said.textContent = mine === undefined ? `${one.label} was not trained; predictions and its neighbours say what to expect.`
      : mine.trained < 1 ? `${mine.label} was left at ${FT.percent(mine.trained)} of the time: others were ahead.`
        : `${mine.label} at lr ${FT.number(mine.lr)}: ${race.measure} ${FT.number(mine.value)}${spread} (${mine.seeds} seed${mine.seeds === 1 ? "" : "s"}).`;
  };
}
