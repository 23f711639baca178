// What rondo-perf --json, scripts/compare --json and rondo-perf --calibrate wrote, as rows to draw: checked field by field.
import {Unusable, brief, numberOf} from "./files.js";
import {bandwidth, time} from "./format.js";

/** More measurements make each change of the page slow; more series look alike. */
export const MOST_ROWS = 2000;
export const MOST_SERIES = 12;

/** {size_bytes, us, low, high, predicted_us, collective, algorithm, ranks, library_memory, series} */
function row(fields) {
  return {low: NaN, high: NaN, predicted_us: NaN, ...fields};
}

/** The wire that rondo-perf --pace made, and the cores that its ranks shared, as a request has them. */
function paceOf(document) {
  const words = Array.isArray(document.args) ? document.args : [];
  const at = words.indexOf("--pace");
  const found = /^([\d.]+)(k|K|M|G)?B\/s(?:,([\d.]+)(ns|us|ms|s))?$/.exec(at >= 0 && typeof words[at + 1] === "string" ? words[at + 1] : "");
  if (!found) return null;
  const scale = {k: 1e3, K: 1e3, M: 1e6, G: 1e9}[found[2]] ?? 1;
  const cores = /^not pinned: \d+ ranks on (\d+) CPUs$/.exec(typeof document.config?.pinning === "string" ? document.config.pinning : "");
  return {...(cores ? {cores: Number(cores[1])} : {}), pace_bytes_per_second: Number(found[1]) * scale, pace_latency_us: found[3] ? Number(found[3]) * {ns: 1e-3, us: 1, ms: 1e3, s: 1e6}[found[4]] : 0};
}

function perfRows(name, document) {
  if (!Array.isArray(document.results)) throw new Unusable(`${name} is from rondo-perf, but has no results.`);
  const config = document.config ?? {};
  const ranks = numberOf(config.ranks);
  const library = config.memory === "library";
  const pace = paceOf(document);
  const rows = [];
  for (const r of document.results) {
    const half = r?.out_of_place?.time !== undefined ? r.out_of_place : r?.in_place;
    const us = numberOf(half?.time_median, numberOf(half?.time));
    const size = numberOf(r?.size);
    if (!(us > 0) || !(size >= 0)) continue;
    const algorithm = typeof r.algorithm === "string" && r.algorithm ? r.algorithm : typeof r.backend === "string" ? r.backend : "measured";
    rows.push(row({
      size_bytes: size, us, low: numberOf(half.time_min), high: numberOf(half.time_p95), predicted_us: numberOf(r.predicted_us),
      collective: typeof config.collective === "string" ? config.collective : "all_reduce", algorithm, ranks, library_memory: library, memory: library ? "library memory" : "plain memory", pace, series: brief(algorithm, 30),
    }));
  }
  if (rows.length === 0) throw new Unusable(`${name} is from rondo-perf, but none of its results has a size and a time.`);
  return rows;
}

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

/** One backend of one size of rondo-compare. */
function comparedRow(run, size, name, us, rounds) {
  const own = /^rondo (plain|library)$/.exec(name);
  const times = (Array.isArray(rounds) ? rounds : []).map((v) => numberOf(v)).filter((v) => v > 0).sort((a, b) => a - b);
  return row({
    size_bytes: size, us, low: times.length > 2 ? quantile(times, 0.25) : NaN, high: times.length > 2 ? quantile(times, 0.75) : NaN,
    collective: typeof run.collective === "string" ? run.collective : "all_reduce", algorithm: own ? "auto" : null, ranks: numberOf(run.ranks, 2),
    library_memory: own?.[1] === "library", pace: null, series: brief(name, 30),
  });
}

function compareRows(name, runs) {
  const rows = [];
  for (const run of runs) {
    for (const merged of Array.isArray(run?.merged) ? run.merged : []) {
      const size = numberOf(merged?.size);
      if (!(size >= 0)) continue;
      const of = {...run, collective: run.runs?.[0]?.collective};
      const rounds = (label) => run.runs?.flatMap?.((r) => r?.results?.find?.((x) => x?.size === size)?.backends?.find?.((b) => b?.name === label)?.rounds_us ?? []);
      for (const [label, us] of Object.entries(merged.rondo ?? {})) {
        if (numberOf(us) > 0) rows.push(comparedRow(of, size, label, us, rounds(label)));
      }
      for (const [label, peer] of Object.entries(merged.peers ?? {})) {
        if (numberOf(peer?.us) > 0) rows.push(comparedRow(of, size, label, peer.us, rounds(label)));
      }
    }
  }
  if (rows.length === 0) throw new Unusable(`${name} looks like scripts/compare --json, but nothing in it has a size and a time.`);
  return rows;
}

/** Whether a document is what scripts/compare --json writes: a list of {ranks, merged, runs}. */
export function isCompare(document) {
  return Array.isArray(document) && document.length > 0 && document.every((run) => Array.isArray(run?.merged));
}

/** The rows of one document. Throws Unusable. */
export function rowsOf(name, document) {
  if (isCompare(document)) return compareRows(name, document);
  if (document?.program === "rondo-perf") return perfRows(name, document);
  const program = typeof document?.program === "string" ? `is from ${brief(document.program)}` : "is JSON, but not of rondo";
  throw new Unusable(`${name} ${program}: this chapter reads rondo-perf --json, rondo-perf --calibrate and scripts/compare --json.`);
}

/** Rows whose series say what differs between them: the collective, the ranks, the memory, the links. */
export function toldApart(rows) {
  const words = [
    (r) => r.collective, (r) => (r.ranks >= 1 ? `${r.ranks} ranks` : ""), (r) => r.memory ?? "",
    (r) => (r.pace ? `${bandwidth(r.pace.pace_bytes_per_second)}, ${time(r.pace.pace_latency_us)}` : ""),
  ].filter((word) => new Set(rows.map(word)).size > 1);
  return words.length === 0 ? rows : rows.map((r) => ({...r, series: [r.series, ...words.map((word) => word(r))].filter(Boolean).join(", ")}));
}

/** The series of rows, in order of appearance. */
export function seriesOf(rows) {
  return [...new Set(rows.map((r) => r.series))];
}
