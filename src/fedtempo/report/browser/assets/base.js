// What all pages share: their data, elements, numbers as text, light and dark.
"use strict";
const FT = {};

{
  const block = document.getElementById("data");
  FT.data = block === null ? {} : JSON.parse(block.textContent);
}

// An element with attributes and children; text is always text. "class", "on…" functions and null are understood.
FT.make = (space, tag, attributes, ...children) => {
  const made = space === null ? document.createElement(tag) : document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};
FT.html = (tag, attributes, ...children) => FT.make(null, tag, attributes, ...children);
FT.svg = (tag, attributes, ...children) => FT.make("http://www.w3.org/2000/svg", tag, attributes, ...children);

// A number as people read it: four digits, 0.0012, 1.2e-7, 12 300.
FT.number = (value, digits = 4) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  let text;
  if (size < 1e-4 || size >= 1e7) {
    text = value.toExponential(Math.min(digits, 3) - 1).replace("e+", "e").replace(/\.?0+e/, "e");
  } else if (size >= 10 ** (digits - 1)) {
    text = Math.round(value).toString();
  } else {
    text = value.toPrecision(digits);
    if (text.includes(".")) text = text.replace(/\.?0+$/, "");
  }
  return text.replace("-", "−");
};
FT.percent = (share) => (share === null || share === undefined ? "–" : `${FT.number(100 * share, 3)}%`);

FT.clamp = (value, low, high) => Math.min(Math.max(value, low), high);

// The button that goes from light to dark and back.
FT.themeButton = () => {
  const root = document.documentElement;
  const dark = () => {
    const set = root.style.colorScheme;
    return set === "dark" || (set === "" && window.matchMedia("(prefers-color-scheme: dark)").matches);
  };
  const button = FT.html("button", { type: "button" });
  const say = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    root.style.colorScheme = dark() ? "light" : "dark";
    say();
  });
  say();
  return button;
};
for (const place of document.querySelectorAll("[data-theme-button]")) place.append(FT.themeButton());
