// Numbers as people read them.

const grouped = new Intl.NumberFormat("en-US");

/** 12,345 — every digit. */
export const exact = (n) => (n === null || n === undefined ? "–" : grouped.format(n));

/** 12,345 up to a million, then 1.23 M. */
export function count(n) {
  if (n === null || n === undefined) return "–";
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (Math.abs(n) >= size) return `${(n / size).toPrecision(3)} ${unit}`;
  }
  return grouped.format(Math.round(n));
}

export function rate(perSecond) {
  if (perSecond === null || perSecond === undefined) return "";
  return `${perSecond >= 10 || perSecond === 0 ? count(perSecond) : perSecond.toPrecision(2)}/s`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (n >= size) return `${+(n / size).toPrecision(3)} ${unit}`;
  }
  return `${n} B`;
}

/** 1.5 Mbit/s. */
export function bits(perSecond) {
  for (const [size, unit] of [[1e12, "Tbit/s"], [1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"]]) {
    if (perSecond >= size) return `${+(perSecond / size).toPrecision(3)} ${unit}`;
  }
  return `${+perSecond.toPrecision(3)} bit/s`;
}

export function nanoseconds(ns) {
  if (ns === null || ns === undefined) return "–";
  if (ns >= 4294967295) return "4.29 s or more";
  for (const [size, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= size) return `${+(ns / size).toPrecision(3)} ${unit}`;
  }
  return `${ns} ns`;
}

export function percent(share) {
  if (share === null || share === undefined || Number.isNaN(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.01) return "< 0.01 %";
  return `${value >= 99.995 || value === 0 ? value.toFixed(0) : value.toFixed(value >= 10 ? 1 : 2)} %`;
}

export function age(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.max(0, seconds);
  if (s < 2) return "just now";
  if (s < 120) return `${Math.round(s)} s ago`;
  if (s < 7200) return `${Math.round(s / 60)} min ago`;
  if (s < 172800) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

/** 14:03:22.123 of today, with the date otherwise. */
export function clock(utc) {
  if (!utc) return "–";
  const [day, time] = utc.replace("Z", "").split("T");
  const today = new Date().toISOString().slice(0, 10);
  const short = (time ?? "").slice(0, 12);
  return day === today ? short : `${day} ${short}`;
}

export const named = (number, name) => (name ? `${name}` : number === null || number === undefined ? "?" : `${number}`);
