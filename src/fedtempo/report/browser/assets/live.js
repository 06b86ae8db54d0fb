// A page that follows something: sections come as server-sent events, and what has changed is put in its place.
// What has not changed is left alone, so that zoom, switches, focus and a reader's place stay.
"use strict";

FT.live = { nodes: new Map(), places: {}, label: null };

FT.live.set = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

FT.live.show = ({ order, sections }) => {
  const { nodes, places } = FT.live;
  document.body.classList.toggle("unreadable", order.includes("trouble"));
  for (const [name, node] of nodes) {
    if (!order.includes(name)) {
      node.host.remove();
      nodes.delete(name);
    }
  }
  const next = new Map();
  for (const name of order) {
    const kind = name.split(":")[0];
    if (!(kind in FT.live.kinds)) continue;
    const place = places[kind];
    if (!nodes.has(name)) nodes.set(name, { host: FT.html("section", { class: kind }) });
    const node = nodes.get(name);
    const k = next.get(place) ?? 0;
    next.set(place, k + 1);
    if (place.children[k] !== node.host) place.insertBefore(node.host, place.children[k] ?? null);
    if (name in sections) FT.live.kinds[kind](node, sections[name]);
  }
};

FT.live.kinds = {
  head(node, head) {
    if (!node.made) {
      const part = (tag, attributes) => FT.html(tag, attributes);
      Object.assign(node, {
        title: part("h1"), where: part("code"), badge: part("strong", { class: "badge" }), words: part("span"),
        fill: part("div", { class: "fill" }), facts: part("dl", { class: "facts" }), warning: part("p", { class: "bad" }),
      });
      node.bar = FT.html("div", { class: "progress", role: "progressbar", "aria-label": "done", "aria-valuemin": 0, "aria-valuemax": 100 }, node.fill);
      node.host.append(node.title, FT.html("p", { class: "small soft" }, node.where),
        FT.html("p", {}, node.badge, " ", node.words), node.bar, node.warning, node.facts);
      node.made = true;
    }
    const { set } = FT.live;
    set(node.title, head.title);
    set(node.where, head.where);
    set(node.badge, head.label);
    node.badge.dataset.condition = head.condition;
    set(node.words, head.words);
    set(node.warning, head.warning);
    node.warning.hidden = head.warning === "";
    node.bar.hidden = head.done === null;
    if (head.done !== null) {
      node.fill.style.width = `${100 * head.done}%`;
      node.bar.setAttribute("aria-valuenow", String(Math.round(100 * head.done)));
    }
    const names = head.facts.map(([name]) => name).join("\n");
    if (node.names !== names) {
      node.names = names;
      node.facts.replaceChildren(...head.facts.map(([name]) => FT.html("div", {}, FT.html("dt", {}, name), FT.html("dd", {}))));
    }
    head.facts.forEach(([, value], k) => set(node.facts.children[k].lastChild, value));
    const done = head.done === null || head.done >= 1 ? "" : ` ${Math.floor(100 * head.done)}%`;
    const title = `${head.label}${done} · ${head.title}`;
    if (document.title !== title) document.title = title;
    if (FT.live.label !== head.label) {  // said once, not at each look
      FT.live.label = head.label;
      set(document.getElementById("said"), `${head.label}. ${head.words}`);
    }
  },

  trouble(node, { words }) {
    if (!node.made) {
      node.made = FT.html("p", { class: "bad" });
      node.host.append(node.made);
    }
    FT.live.set(node.made, `Cannot be read: ${words}. What is below was seen before.`);
  },

  chart(node, spec) {
    if (node.chart) node.chart.update(spec);
    else node.chart = FT.chart(node.host, spec);
  },

  table(node, table) {
    const names = JSON.stringify(table.columns);
    if (node.names !== names) {
      node.names = names;
      node.kinds = table.columns.map((name) => (name[0] === "<" ? "words" : name[0] === "%" ? "share" : ""));
      const heads = table.columns.map((name, k) => FT.html("th", { class: node.kinds[k] || null, scope: "col" }, name.replace(/^[<%]/, "")));
      node.caption = FT.html("caption", {});
      node.body = FT.html("tbody", {});
      node.note = FT.html("p", { class: "small soft" });
      node.rows = new Map();
      const box = FT.html("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": table.caption.split(",")[0] },
        FT.html("table", {}, node.caption, FT.html("thead", {}, FT.html("tr", {}, ...heads)), node.body));
      node.host.replaceChildren(box, node.note);
    }
    const { set } = FT.live;
    set(node.caption, table.caption);
    set(node.note, table.note);
    const there = new Set(table.rows.map((row) => row.key));
    for (const [key, row] of node.rows) {
      if (!there.has(key)) {
        row.remove();
        node.rows.delete(key);
      }
    }
    table.rows.forEach((given, k) => {
      let row = node.rows.get(given.key);
      if (row === undefined) {
        row = FT.html("tr", {}, ...node.kinds.map((kind) => FT.live.cell(kind)));
        node.rows.set(given.key, row);
      }
      if (row.className !== given.tone) row.className = given.tone;
      given.cells.forEach((value, column) => FT.live.fill(row.cells[column], node.kinds[column], value));
      if (node.body.children[k] !== row) node.body.insertBefore(row, node.body.children[k] ?? null);
    });
  },
};

FT.live.cell = (kind) => {
  if (kind !== "share") return FT.html("td", { class: kind || null });
  return FT.html("td", { class: "share" }, FT.html("span", { class: "meter", "aria-hidden": "true" }, FT.html("i", {})), FT.html("span", {}));
};

FT.live.fill = (cell, kind, value) => {
  if (kind !== "share") {
    FT.live.set(cell, String(value ?? ""));
    return;
  }
  cell.firstChild.hidden = typeof value !== "number";
  cell.firstChild.firstChild.style.width = typeof value === "number" ? `${100 * FT.clamp(value, 0, 1)}%` : "0";
  FT.live.set(cell.lastChild, typeof value === "number" ? `${Math.floor(100 * value)}%` : String(value ?? ""));
};

FT.live.follow = () => {
  const link = document.getElementById("link");
  let last = null;
  const say = (text, lost) => {
    FT.live.set(link, text);
    document.body.classList.toggle("lost", lost);
  };
  const source = new EventSource(`events${window.location.search}`);
  source.addEventListener("seen", (event) => {
    last = new Date();
    say("Live", false);
    FT.live.show(JSON.parse(event.data));
  });
  source.addEventListener("open", () => say("Live", false));
  source.addEventListener("error", () => {
    const since = last === null ? "" : ` What is shown was seen at ${last.toLocaleTimeString()}.`;
    say(`No connection: fedtempo watch has ended, or its machine cannot be reached.${since}`, true);
    if (source.readyState === EventSource.CLOSED) window.setTimeout(FT.live.follow, 5000);
  });
};

{
  const main = document.getElementById("live");
  const first = FT.html("div", {});
  const trouble = FT.html("div", {});
  const rest = FT.html("div", { class: "panels" });
  FT.live.places = { head: first, trouble, chart: rest, table: rest };
  const show = FT.live.show;
  FT.live.show = (seen) => {
    if (!first.isConnected) main.replaceChildren(first, trouble, rest);
    show(seen);
  };
  FT.live.follow();
}
