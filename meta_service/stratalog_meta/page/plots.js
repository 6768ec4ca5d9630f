// Courses over time: a small plot for each figure, a line for each node that told something lately. Samples are kept
// here, as long as the service keeps them; a gap stays a gap.

import { element } from "./elements.js";
import { bytes, rate } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300, HEIGHT = 80, WINDOW_MS = 360_000, MOST_LINES = 8;
const FIGURES = [
  ["Produced", "produce_rate", rate],
  ["Fetched", "fetch_rate", rate],
  ["Not in the object store yet", "unsent_bytes", bytes],
  ["Free on the disk", "disk_free_bytes", bytes],
];

export class Courses {
  #byNode = new Map();

  get newestMs() {
    return Math.max(0, ...[...this.#byNode.values()].map((samples) => samples.at(-1).at_ms));
  }

  // What a service tells that was asked for all samples is all there is: it may be another one than before.
  take(items, isAll) {
    if (isAll) this.#byNode.clear();
    for (const { node_id, samples } of items) {
      const kept = (this.#byNode.get(node_id) ?? []).concat(samples);
      this.#byNode.set(node_id, kept);
    }
    const since = this.newestMs - WINDOW_MS;
    for (const [node_id, samples] of this.#byNode) {
      const kept = samples.filter((one) => one.at_ms > since);
      if (kept.length) this.#byNode.set(node_id, kept);
      else this.#byNode.delete(node_id);
    }
  }

  forget() {
    this.#byNode.clear();
  }

  draw() {
    if (!this.#byNode.size) return [];
    const told = [...this.#byNode].sort(([one], [other]) => one - other);
    const shown = told.slice(0, MOST_LINES);
    return FIGURES.map(([title, field, words]) => plot(title, field, words, shown, told.length - shown.length));
  }
}

function plot(title, field, words, told, more) {
  const values = told.flatMap(([, samples]) => samples.map((one) => one[field]));
  const most = Math.max(1, ...values);
  const times = told.flatMap(([, samples]) => samples.map((one) => one.at_ms));
  const from = Math.min(...times), until = Math.max(...times);
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
  const latest = told.map(([node, samples]) => `node ${node} ${words(samples.at(-1)[field])}`);
  picture.setAttribute("aria-label", `${title}: ${latest.join(", ") || "nothing known yet"}`);
  picture.append(shape("path", { class: "axis", d: `M0 ${HEIGHT - 1}H${WIDTH}` }));
  told.forEach(([, samples], at) => {
    const d = line(samples, field, from, Math.max(1, until - from), most);
    if (d) picture.append(shape("path", { class: `s${at}`, d }));
  });
  const legend = told.map(([node, samples], at) =>
    element("span", {}, element("i", { kind: `s${at}` }), `node ${node}: ${words(samples.at(-1)[field])}`));
  if (more > 0) legend.push(element("span", { kind: "muted" }, `and ${more} more`));
  const minutes = times.length ? `last ${Math.max(1, Math.round((until - from) / 1000))} s` : "nothing known yet";
  return element("div", { kind: "plot" }, title, picture,
    element("div", { kind: "scale" }, element("span", {}, minutes), element("span", {}, `top ${words(most)}`)),
    element("div", { kind: "legend" }, legend));
}

function line(samples, field, from, span, most) {
  let d = "", isDown = false;
  for (const one of samples) {
    if (one[field] < 0) {
      isDown = false;
      continue;
    }
    const x = ((one.at_ms - from) / span) * WIDTH, y = HEIGHT - 1 - (one[field] / most) * (HEIGHT - 4);
    d += `${isDown ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    isDown = true;
  }
  return d;
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
