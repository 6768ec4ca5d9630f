// Numbers as people read them, as the command line writes them.

export function bytes(size) {
  if (size < 0) return "-";
  let value = size;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export function rate(perSecond) {
  return perSecond < 0 ? "-" : `${bytes(perSecond)}/s`;
}

export function duration(ms) {
  if (ms < 0) return "-";
  let left = Math.floor(ms / 1000);
  const said = [];
  for (const [unit, seconds] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    const count = Math.floor(left / seconds);
    left -= count * seconds;
    if (count) said.push(`${count} ${unit}`);
  }
  return said.slice(0, 2).join(" ") || "0 s";
}

export function count(number, thing) {
  return `${number.toLocaleString("en")} ${thing}${number === 1 ? "" : "s"}`;
}

export function nodes(ids) {
  return ids.length ? ids.join(", ") : "none";
}
