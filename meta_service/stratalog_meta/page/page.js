// Asks again and again, and shows the answers. A question that is not answered in time is given up, and said; what was
// known stays, greyed. A part of the page is made anew only when what it shows has changed.

import { element, link, plain } from "./elements.js";
import { Courses } from "./plots.js";
import { SECTIONS } from "./sections.js";
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

function head(told) {
  const well = !told.faults.length && !told.shards.troubled && !told.stopped.length && told.why_no_changes === null;
  mark(well ? "well" : "needs an eye", well);
  put("head", plain(`cluster ${told.cluster_id} · metadata version ${told.version.toLocaleString("en")}`));
}

function show(told) {
  if (cluster !== told.cluster_id || courses.newestMs > told.now_ms) courses.forget();
  cluster = told.cluster_id;
  head(told);
  for (const [id, make] of Object.entries(SECTIONS)) put(id, ...make(told));
  at("main").hidden = false;
  at("main").classList.remove("old");
  at("notice").hidden = true;
}

async function complain(error) {
  let words = error.name === "TimeoutError" ? `no answer within ${duration(PATIENCE_MS)}` : error.message, leader = null;
  try {
    ({ leader, words } = await ask("/page/leader"));
  } catch {
    words = `the service does not answer (${words})`;
  }
  at("main").classList.add("old");
  mark(at("main").hidden ? "not known" : "old", false);
  at("notice").hidden = false;
  put("notice", element("span", { kind: "words" }, words, leader ? ": " : ""), ...(leader ? [link(leader + "/", leader)] : []));
}

async function look() {
  try {
    show(await ask("/v1/overview"));
    const after = courses.newestMs;
    courses.take((await ask(`/v1/courses?after=${after}`)).items, after === 0);
    put("plots", ...courses.draw());
  } catch (error) {
    await complain(error);
  }
}

for (;;) {
  if (!document.hidden) await look();
  await new Promise((resume) => setTimeout(resume, PAUSE_MS));
}
