// What is shown of an answer of /v1/overview: a function for each part of the page, from the answer to elements.

import { badge, card, element, link, section, table } from "./elements.js";
import { bytes, count, duration, nodes, rate } from "./words.js";

const STEPS = ["preflight", "cordon", "seal", "offload", "verify", "snapshot", "release", "mount", "done"];
const WELL = new Set(["alive", "serving", "ready"]);
const BAD = new Set(["not alive", "silent", "waiting", "ended", "not ready"]);

function state(words) {
  return badge(words, WELL.has(words) ? "ok" : BAD.has(words) ? "bad" : "warn");
}

function nothing(words) {
  return element("p", { kind: "muted" }, words);
}

// Above all: who shall run and does not.
export function down(parts) {
  const ended = parts.filter((one) => one.state === "ended");
  if (!ended.length) return [];
  return [element("ul", {}, ended.map((one) => element("li", {}, badge(one.name, "bad"), ` ended: ${one.words}`)))];
}

export function processes(parts) {
  if (!parts.length) return [];
  const columns = [["part"], ["state"], ["addresses"], ["says", "words"]];
  const rows = parts.map((one) => [one.name, [state(one.state), one.leads ? " leads" : ""],
    Object.entries(one.addresses).map(([what, address]) => `${what} ${address}`).join(", "), one.words]);
  return [section("Processes", 0, table(columns, rows))];
}

// Each is shown in the element of its name.
export const SECTIONS = {
  cards({ shards, tiers, nodes: all }) {
    const sum = (one) => count(one.segments, "segment");
    const uploads = all.map((one) => one.uploads).filter((one) => one !== null);
    const unsent = uploads.reduce((total, one) => total + one.unsent_bytes, 0);
    const oldest = Math.max(0, ...uploads.map((one) => one.oldest_unsent_ms));
    return [
      card("Shards", shards.shards.toLocaleString("en"), `of ${count(shards.topics, "topic")}, ${count(shards.segments, "segment")}`),
      card("With a leader", shards.led.toLocaleString("en"), `of ${shards.shards.toLocaleString("en")}`),
      card("Under-replicated", shards.under_replicated.toLocaleString("en"), "shards with too few in sync"),
      card("With troubles", shards.troubled.toLocaleString("en"), "shards"),
      card("Local tier", bytes(tiers.local.bytes), `${sum(tiers.local)} on nodes alone`),
      card("Both tiers", bytes(tiers.both.bytes), sum(tiers.both)),
      card("Cold tier", bytes(tiers.cold.bytes), `${sum(tiers.cold)} in the object store alone`),
      ...(tiers.nowhere.segments ? [card("Nowhere", bytes(tiers.nowhere.bytes), `${sum(tiers.nowhere)} that no known copy has`)] : []),
      card("Upload lag", uploads.length ? bytes(unsent) : "-", uploads.length ? `oldest byte ${duration(oldest)} old` : "no object store known"),
      card("Open", tiers.open_segments.toLocaleString("en"), "segments not sealed yet"),
    ];
  },

  faults({ faults, more_faults: more }) {
    if (!faults.length) return [section("Faults", 0, nothing("None is known."))];
    return [section("Faults", more, element("ul", {}, faults.map((one) => element("li", { kind: "words" }, one))))];
  },

  nodes({ nodes: all, more_nodes: more }) {
    if (!all.length) return [section("Nodes", 0, nothing("None has registered yet."))];
    const columns = [["node"], ["state"], ["address"], ["rack"], ["leads", "n"], ["replicas", "n"], ["disk free", "n"],
      ["upload lag", "n"], ["heard", "n"]];
    const rows = all.map((one) => [one.page_url ? link(one.page_url, String(one.node_id)) : String(one.node_id),
      state(one.state), one.address, one.rack ?? "-", one.leads.toLocaleString("en"), one.replicas.toLocaleString("en"),
      one.disk_free_bytes < 0 ? "not known" : `${bytes(one.disk_free_bytes)} of ${bytes(one.disk_total_bytes)}`,
      one.uploads === null ? "-" : bytes(one.uploads.unsent_bytes),
      one.told_ms_ago < 0 ? "nothing yet" : `${duration(one.told_ms_ago)} ago`]);
    return [section("Nodes", more, table(columns, rows))];
  },

  retirements({ retirements, more_retirements: more }) {
    if (!retirements.length) return [section("Retirements", 0, nothing("No node leaves, and none has left."))];
    const columns = [["node"], ["step"], ["for", "n"], ["left", "n"], ["rate", "n"], ["time left", "n"], ["says", "words"]];
    const rows = retirements.map((one) => [String(one.node_id), [one.mode, steps(one.step)], duration(one.for_ms),
      `${count(one.remaining_segments, "segment")}, ${bytes(one.remaining_bytes)}`,
      one.bytes_per_second ? rate(one.bytes_per_second) : "-",
      one.seconds_left < 0 ? "-" : duration(one.seconds_left * 1000),
      one.waits === null ? one.words : [badge(one.waits, "warn"), ` for ${duration(one.waits_ms)}: `, one.words]]);
    return [section("Retirements", more, table(columns, rows))];
  },

  mounts({ mounts, more_mounts: more, now_ms: now }) {
    if (!mounts.length) return [section("Mounts", 0, nothing("None."))];
    const columns = [["mount", "words"], ["mode"], ["state"], ["holder"], ["token", "n"], ["where", "words"], ["ends"]];
    const rows = mounts.map((one) => [one.name, one.mode, one.mode === "hand-made" ? state("serving") : [state(one.state),
      one.is_read || one.state !== "serving" ? "" : badge("directory not read", "bad")],
      one.holder === null ? (one.mode === "hand-made" ? "leaders" : "none") : `node ${one.holder}`, String(one.token),
      one.topics.length ? one.topics.join(", ") : one.volume ?? "-",
      one.expires_ms ? `in ${duration(Math.max(0, one.expires_ms - now))}` : "never"]);
    return [section("Mounts", more, table(columns, rows))];
  },

  troubles({ troubles, more_troubles: more, trouble_kinds: kinds }) {
    if (!troubles.length) return [section("Shards with troubles", 0, nothing("All shards have a leader and all their replicas."))];
    const summed = element("p", {}, kinds.flatMap((one) => [badge(`${one.kind} ${one.count.toLocaleString("en")}`, "warn"), " "]));
    const columns = [["shard", "words"], ["trouble"], ["leader"], ["in sync"], ["replicas"], ["says", "words"]];
    const rows = troubles.map((one) => [`${one.topic}-${one.shard}`, one.kind, one.leader === null ? "none" : String(one.leader),
      nodes(one.isr), nodes(one.replicas), `epoch ${one.epoch}: ${one.words}`]);
    return [section("Shards with troubles", more, summed, table(columns, rows))];
  },

  stopped({ stopped, more_stopped: more }) {
    if (!stopped.length && !more) return [section("Stopped shards", 0, nothing("All shards take writes."))];
    const columns = [["shard", "words"], ["node"], ["cause"], ["why", "words"], ["next", "words"]];
    const rows = stopped.map(({ node_id, shard }) => [`${shard.topic}-${shard.shard}`, String(node_id), shard.cause, shard.reason, shard.next_step]);
    return [section("Stopped shards", more, table(columns, rows))];
  },

  uploads({ nodes: all }) {
    const told = all.filter((one) => one.uploads !== null);
    if (!told.length) return [section("Uploads", 0, nothing("No node has told of an object store."))];
    const columns = [["node"], ["store"], ["pending", "n"], ["segments", "n"], ["oldest pending byte", "n"], ["held back", "n"]];
    const rows = told.map(({ node_id, state: is, uploads: one }) => [String(node_id),
      is === "not alive" || is === "silent" ? badge("as told last", "warn") : one.store_away_ms ? badge(`away for ${duration(one.store_away_ms)}`, "bad") : badge("takes uploads", "ok"),
      bytes(one.unsent_bytes), one.unsent_segments.toLocaleString("en"),
      one.unsent_bytes ? `${duration(one.oldest_unsent_ms)} old` : "-", one.held_segments.toLocaleString("en")]);
    return [section("Uploads", 0, table(columns, rows))];
  },
};

function steps(now) {
  const at = STEPS.indexOf(now);
  return element("div", { kind: "steps" }, STEPS.map((one, index) =>
    element("span", { kind: index === at ? "now" : index < at ? "done" : "" }, one)));
}
