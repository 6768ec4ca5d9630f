// Asks again and again, and shows the answers. A question that is not answered in time is given up, and said; what was
// known stays, greyed. A part of the page is made again only when what it shows has changed.

import { element, link, plain } from "./elements.js";
import { Courses } from "./plots.js";
import { SECTIONS, down, processes } from "./sections.js";
import { duration } from "./words.js";

const PAUSE_MS = 2000, PATIENCE_MS = 5000;
const at = (id) => document.getElementById(id);
const courses = new Courses();
let cluster = "";

async function ask(path) {
  const answer = await fetch(path, { redirect: "manual", cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (answer.type === "opaqueredirect") throw new Error("does not lead");
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail ?? `answered ${answer.status}`);
  return told;
}

function put(id, ...made) {
  const old = at(id), fresh = old.cloneNode(false);
  fresh.append(...made);
  if (!fresh.isEqualNode(old)) old.replaceChildren(...fresh.childNodes);
}

function mark(words, isWell) {
  at("state").className = "badge " + (isWell ? "ok" : "bad");
  put("state", words);
}

function head(told, parts) {
  const well = told.why_no_changes === null && !told.faults.length && !told.shards.troubled && !told.stopped.length
    && parts.every((one) => one.state !== "ended");
  mark(well ? "well" : "needs attention", well);
  put("head", plain(`cluster ${told.cluster_id} · metadata version ${told.version.toLocaleString("en")}`));
}

function show(told, parts) {
  if (cluster !== told.cluster_id || courses.newestMs > told.now_ms) courses.forget();
  cluster = told.cluster_id;
  head(told, parts);
  for (const [id, make] of Object.entries(SECTIONS)) put(id, ...make(told));
  at("main").hidden = false;
  at("main").classList.remove("old");
  at("notice").hidden = true;
}

function complain(error, place) {
  const why = error.name === "TimeoutError" ? `no answer within ${duration(PATIENCE_MS)}` : error.message;
  const leader = place?.leader ?? null;
  const words = place === null ? `the service does not answer (${why})` : leader ? place.words : why;
  at("main").classList.add("old");
  mark(at("main").hidden ? "not known" : "old", false);
  at("notice").hidden = false;
  put("notice", element("span", { kind: "words" }, words, leader ? ": " : ""), ...(leader ? [link(leader + "/", leader)] : []));
}

async function look() {
  let place = null;
  try {
    place = await ask("/page/place");
    put("down", ...down(place.parts));
    put("parts", ...processes(place.parts));
    show(await ask("/v1/overview"), place.parts);
    const after = courses.newestMs;
    courses.take((await ask(`/v1/courses?after=${after}`)).items, after === 0);
    put("plots", ...courses.draw());
  } catch (error) {
    complain(error, place);
  }
}

for (;;) {
  if (!document.hidden) await look();
  await new Promise((resume) => setTimeout(resume, PAUSE_MS));
}
