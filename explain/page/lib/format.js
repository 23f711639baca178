// Numbers as people read them. GB = 1e9 bytes; KiB, MiB, GiB are binary.

/** 3 significant digits, without trailing zeros. */
export function digits(value, significant = 3) {
  if (!Number.isFinite(value)) return "?";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e15 || size < 1e-6) return value.toExponential(significant - 1);
  if (size >= 10 ** (significant - 1)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(significant)));
}

function scaled(value, units) {
  let at = 0;
  while (at + 1 < units.length && Math.abs(value) >= units[at + 1][0] * 0.9995) ++at;
  return `${digits(value / units[at][0])} ${units[at][1]}`;
}

/** 46.1 MB. */
export function bytes(value) {
  return scaled(value, [[1, "B"], [1e3, "kB"], [1e6, "MB"], [1e9, "GB"], [1e12, "TB"]]);
}

/** 64 MiB, for sizes that are powers of two. */
export function binary(value) {
  return scaled(value, [[1, "B"], [1024, "KiB"], [1024 ** 2, "MiB"], [1024 ** 3, "GiB"], [1024 ** 4, "TiB"]]);
}

/** 12.5 us, 3.4 ms, 2 s. */
export function time(microseconds) {
  if (microseconds === 0) return "0";
  if (Math.abs(microseconds) < 1) return `${digits(microseconds * 1e3)} ns`;
  return scaled(microseconds, [[1, "µs"], [1e3, "ms"], [1e6, "s"]]);
}

export function bandwidth(bytesPerSecond) {
  return `${bytes(bytesPerSecond)}/s`;
}

export function percent(fraction) {
  return `${digits(fraction * 100)} %`;
}

/** 1,234,567. */
export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

/** "1 rank", "3 ranks". */
export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A formula of rondo's, such as 2(N-1)/N * S, as people write it; it does not break at the minus. */
export function formula(text) {
  return text.replaceAll(" * ", " · ").replaceAll("-", "−");
}
