// What both pages build with. Everything that comes from elsewhere is set as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const cell = (column, text, attributes = {}) =>
  element("td", text, { "data-name": column, ...attributes });

const percent = (share) =>
  (typeof share === "number" ? `${(100 * share).toFixed(1)}\u00a0%` : "–");

// A bar of a share on its track; below 0 would be all of it.
function track(share) {
  const made = element("div", null, { class: "track", "aria-hidden": "true" });
  const bar = element("div", null, { class: "bar" });
  bar.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
  made.append(bar);
  return made;
}

function say(id, text, kind = "") {
  at(id).textContent = text;
  at(id).className = kind;
}
