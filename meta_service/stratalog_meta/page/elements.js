// Elements made of text. Names and words come from others: they become text nodes and nothing else, and what steers a
// reader (control characters, bidirectional marks) is spelled out, so that no name looks like another one.

const STEERING = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

export function plain(text) {
  return String(text).replace(STEERING, (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"));
}

export function element(name, options = {}, ...inside) {
  const made = document.createElement(name);
  if (options.kind) made.className = options.kind;
  if (options.title) made.title = plain(options.title);
  for (const one of inside.flat()) {
    if (one === null || one === undefined || one === "") continue;
    made.append(one instanceof Node ? one : document.createTextNode(plain(one)));
  }
  return made;
}

export function badge(text, kind) {
  return element("span", { kind: "badge " + kind }, text);
}

// A link is made of what a service says only where it is plainly one.
export function link(url, text) {
  if (!/^https?:\/\/[A-Za-z0-9.\-:[\]]+\/?$/.test(url)) return document.createTextNode(plain(text));
  const made = element("a", {}, text);
  made.href = url;
  made.rel = "noreferrer";
  return made;
}

export function card(name, value, note = "", percent = null) {
  const made = element("div", { kind: "card" }, name, element("b", {}, value), element("span", { kind: "muted" }, note));
  if (percent !== null) {
    const bar = element("i");
    bar.style.width = Math.min(100, Math.max(0, percent)) + "%";
    made.append(element("div", { kind: "bar" }, bar));
  }
  return made;
}

// columns: [name, kind of the cell]; a cell is text, an element, or a list of both.
export function table(columns, rows) {
  const names = element("tr", { kind: "names" }, columns.map(([name, kind]) => element("th", { kind }, name)));
  const body = rows.map((cells) =>
    element("tr", {}, cells.map((cell, at) => {
      const [name, kind] = columns[at];
      const made = element("td", { kind }, cell);
      made.dataset.name = name;
      return made;
    })));
  return element("table", {}, element("tbody", {}, names, body));
}

export function section(title, more, ...inside) {
  const made = document.createDocumentFragment();
  made.append(element("h2", {}, title), ...inside);
  if (more > 0) made.append(element("p", { kind: "muted" }, `and ${more.toLocaleString("en")} more`));
  return made;
}
