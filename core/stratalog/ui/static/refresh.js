// Asks for this page again every few seconds, and shows it in the place of the old one. The page is whole without it.
// While somebody types, selects text or has opened a record, nothing changes under their hands. If no answer comes, the
// page says so and keeps what it shows.

const EVERY_MS = 5000, PATIENCE_MS = 8000;
const box = document.getElementById("refresh"), stale = document.getElementById("stale");
let shownAt = new Date();
document.getElementById("live").hidden = false;

function isBusy() {
  const main = document.getElementById("main");
  const typed = main.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  return document.hidden || typed || !getSelection().isCollapsed || main.querySelector("details[open]") !== null;
}

function complain(why) {
  stale.textContent = `This page is old: ${why}. Shown as of ${shownAt.toISOString().slice(11, 19)} UTC.`;
  stale.hidden = false;
  document.getElementById("main").classList.add("old");
}

async function look() {
  const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.status === 401) location.reload();  // the session has ended: the login page comes
  const type = answer.headers.get("Content-Type") ?? "";
  if (!type.startsWith("text/html")) throw new Error(`the service answers ${answer.status}`);
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
  if (!answer.ok) throw new Error(fresh?.querySelector(".notice")?.textContent ?? `the service answers ${answer.status}`);
  const old = document.getElementById("main");
  stale.hidden = true;
  shownAt = new Date();
  if (isBusy()) return;
  const stamp = `t=${shownAt.getTime()}`;
  for (const image of fresh.querySelectorAll(".plot img, .plot source")) {
    const name = image.hasAttribute("src") ? "src" : "srcset", source = image.getAttribute(name);
    image.setAttribute(name, source + (source.includes("?") ? "&" : "?") + stamp);
  }
  old.replaceWith(fresh);
}

for (;;) {
  await new Promise((resume) => setTimeout(resume, EVERY_MS));
  if (!box.checked || (isBusy() && stale.hidden)) continue;
  try {
    await look();
  } catch (error) {
    complain(error.name === "TimeoutError" ? `no answer within ${PATIENCE_MS / 1000} s` : error.name === "TypeError" ? "the service does not answer" : error.message);
  }
}
