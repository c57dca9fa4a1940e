"use strict";
// The page without this script has all figures; with it one can browse the samples. Model output is put in as text, never as HTML.

const tip = document.getElementById("tip");

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

let told = null;

function showTip(target, text) {
  tip.textContent = text;
  tip.hidden = false;
  told = target;
  placeTip();
}

function placeTip() {
  if (tip.hidden) return;
  const target = told, at = target.getClientRects()[0] || target.getBoundingClientRect();
  const box = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, innerWidth - box.width - 8));
  const below = at.bottom + 8;
  tip.style.left = left + "px";
  tip.style.top = (below + box.height > innerHeight - 8 ? Math.max(8, at.top - box.height - 8) : below) + "px";
}

function hideTip() { tip.hidden = true; }

// ------------------------------------------------------------------------------------------------------------- charts

for (const mark of document.querySelectorAll(".chart [role=graphics-symbol][aria-label]")) {
  const what = mark.getAttribute("aria-roledescription");
  if (what === "axis" || what === "legend") continue;
  for (const event of ["mouseenter", "click"]) mark.addEventListener(event, () => showTip(mark, mark.getAttribute("aria-label")));
  mark.addEventListener("mouseleave", hideTip);
}
addEventListener("scroll", placeTip, { passive: true });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });

// ------------------------------------------------------------------------------------------------------------ samples

const LEVELS = [-0.1, -0.5, -1, -2, -4, -7];

function level(logprob) {
  const value = logprob === "\u2212\u221e" ? -Infinity : logprob;
  return LEVELS.filter((limit) => value < limit).length;
}

function spoken(value) { return typeof value === "number" ? value.toFixed(3).replace("-", "\u2212") : String(value); }

function percent(logprob) {
  const share = 100 * Math.exp(logprob);
  return share >= 0.095 ? share.toPrecision(share >= 99.95 ? 3 : 2).replace(/\.0$/, "") + " %" : share > 0 ? share.toExponential(0) + " %" : "";
}

function visible(text) { return text.replace(/\n/g, "\u21b5").replace(/\t/g, "\u21e5").replace(/ /g, "\u2423") || "(a part of the character that follows)"; }

function aboutToken([text, logprob, rank, entropy, alternatives]) {
  const lines = [visible(text)];
  if (logprob === undefined || logprob === null) lines.push("not scored");
  else lines.push("logprob " + spoken(logprob) + (typeof logprob === "number" ? "  (" + percent(logprob) + ")" : ""));
  if (rank !== undefined && rank !== null) lines.push("rank " + rank.toLocaleString("en") + (entropy != null ? ", entropy " + spoken(entropy) + " nats" : ""));
  if (alternatives) {
    lines.push("most likely here:");
    for (const [other, value] of alternatives) lines.push("  " + spoken(value) + "  " + visible(other));
  }
  return lines.join("\n");
}

function tokensOf(part) {
  const box = element("div", "tokens");
  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", part.name + ", token by token: the arrow keys go from one to the next");
  part.tokens.forEach((token, index) => {
    const span = element("span", token[1] == null ? "n" : "l" + level(token[1]), token[0] || "\u25cc");
    if (part.span && index >= part.span[0] && index < part.span[1]) span.classList.add("span");
    span.dataset.index = index;
    box.append(span);
  });
  let at = -1;
  const go = (index) => {
    if (at >= 0) box.children[at].classList.remove("at");
    at = index;
    box.children[at].classList.add("at");
    showTip(box.children[at], aboutToken(part.tokens[at]));
  };
  const leave = () => { if (at >= 0) box.children[at].classList.remove("at"); at = -1; hideTip(); };
  const under = (event) => event.target.dataset && event.target.dataset.index !== undefined ? Number(event.target.dataset.index) : -1;
  box.addEventListener("mouseover", (event) => { if (under(event) >= 0) go(under(event)); });
  box.addEventListener("click", (event) => { if (under(event) >= 0) go(under(event)); });
  box.addEventListener("mouseleave", leave);
  box.addEventListener("blur", leave);
  box.addEventListener("keydown", (event) => {
    const last = part.tokens.length - 1;
    const to = { ArrowRight: Math.min(last, at + 1), ArrowLeft: Math.max(0, at - 1), Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    go(to);
    box.children[to].scrollIntoView({ block: "nearest" });
    placeTip();
  });
  return box;
}

function legend() {
  const list = element("ul", "legend");
  const names = ["logprob above \u22120.1", ...LEVELS.map((limit, index) => index + 1 < LEVELS.length ? "below " + String(limit).replace("-", "\u2212") : "below \u22127")];
  names.forEach((name, index) => {
    const item = element("li");
    const box = element("i");
    if (index) box.style.background = "var(--l" + index + ")";
    item.append(box, name);
    list.append(item);
  });
  return list;
}

function textOf(record) {
  return record.parts.map((part) => part.text !== undefined ? part.text : part.tokens.map((token) => token[0]).join("")).join("\n");
}

function startOf(record) {
  const part = record.parts[record.parts.length - 1];
  const text = part.text !== undefined ? part.text : part.tokens.slice(0, 40).map((token) => token[0]).join("");
  return text.trim().replace(/\s+/g, " ").slice(0, 80) || "(empty)";
}

function picturesOf(record, urls) {
  const box = element("div", "part pictures");
  for (const shown of record.pictures) {
    if (shown.why !== undefined) { box.append(element("p", "", shown.why)); continue; }
    const image = element("img");
    Object.assign(image, { src: urls[shown.picture], width: shown.width, height: shown.height, alt: shown.alt });
    box.append(image);
  }
  return box;
}

function detailOf(record, urls) {
  const made = [element("h3", "", record.name + (record.key !== undefined ? " \u00b7 key " + record.key : ""))];
  const facts = [...record.facts.map(([name, value]) => name + ": " + value), "here as: " + record.tags.join(", ")];
  made.push(element("p", "facts", facts.join(" \u00b7 ")));
  if (record.pictures) made.push(picturesOf(record, urls));
  let coloured = false;
  for (const part of record.parts) {
    const box = element(part.folded ? "details" : "div", "part");
    const heading = element(part.folded ? "summary" : "h4", "", part.name);
    if (part.note) heading.append(" ", element("span", "", "\u00b7 " + part.note));
    if (part.span) heading.append(" ", element("span", "", "\u00b7 underlined: its least likely 8 tokens in a row"));
    box.append(heading, part.text !== undefined ? element("p", "text", part.text) : tokensOf(part));
    coloured = coloured || part.text === undefined;
    made.push(box);
  }
  if (coloured) made.push(legend());
  if (record.input !== undefined) {
    const box = element("details", "part");
    box.append(element("summary", "", "The input row"), element("pre", "", record.input));
    made.push(box);
  }
  return made;
}

function browse(data) {
  const [list, detail, count, search, sorts] = ["list", "detail", "count", "search", "sorts"].map((id) => document.getElementById(id));
  const texts = data.records.map((record) => (record.name + "\n" + (record.key || "") + "\n" + (record.input || "") + "\n" + textOf(record)).toLowerCase());
  let sort = "all", current = null;

  function open(index) {
    current = index;
    detail.replaceChildren(...detailOf(data.records[index], data.pictures));
    for (const button of list.querySelectorAll("button")) button.setAttribute("aria-current", String(Number(button.dataset.index) === index));
  }

  function update() {
    const words = search.value.trim().toLowerCase();
    const shown = data.records.map((record, index) => index)
      .filter((index) => (sort === "all" || data.records[index].tags.includes(sort)) && texts[index].includes(words));
    count.textContent = shown.length + (shown.length === 1 ? " sample" : " samples") + (shown.length ? "" : ": nothing fits, search for less or take all sorts");
    list.replaceChildren(...shown.map((index) => {
      const item = element("li"), button = element("button");
      button.type = "button";
      button.dataset.index = index;
      button.append(element("span", "who", data.records[index].who || data.records[index].name), element("span", "start", startOf(data.records[index])));
      button.addEventListener("click", () => open(index));
      item.append(button);
      return item;
    }));
    list.hidden = !shown.length;
    if (shown.length) open(shown.includes(current) ? current : shown[0]); else detail.replaceChildren();
  }

  for (const [name, number] of [["all", data.records.length], ...data.sorts]) {
    const button = element("button", "", name + " (" + number + ")");
    button.type = "button";
    button.setAttribute("aria-pressed", String(name === sort));
    button.addEventListener("click", () => {
      sort = name;
      for (const other of sorts.children) other.setAttribute("aria-pressed", String(other === button));
      update();
    });
    sorts.append(button);
  }
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const buttons = [...list.querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
    if (!step || at < 0) return;
    event.preventDefault();
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, at + step))];
    next.focus();
    next.click();
  });
  search.addEventListener("input", update);
  document.querySelector(".browser").hidden = false;
  update();
}

const data = document.getElementById("data");
if (data) browse(JSON.parse(data.textContent));
