// Periods of time, and the buckets that they are cut into.

/** Lengths of a period in seconds. */
export const SPANS = { "5m": 300, "15m": 900, "1h": 3600, "6h": 21600, "1d": 86400, "7d": 604800 };
/** Lengths of a time bucket in seconds. */
const BUCKETS = [1, 5, 10, 30, 60, 300, 900, 3600, 21600];
const MOST_BUCKETS = 60;
const UNITS = { s: 1, m: 60, h: 3600, d: 86400 };

/** The shortest bucket of which a period has not too many. */
export const bucketLength = (length) => BUCKETS.find((seconds) => length / seconds <= MOST_BUCKETS) ?? BUCKETS.at(-1);

/** The moment of the page's field, by this browser's clock and time zone. */
export function momentInSeconds(text) {
  const ago = /^-?(\d+)([smhd])$/.exec(text);
  const moment = ago ? Date.now() / 1000 - ago[1] * UNITS[ago[2]] : /^\d{9,}$/.test(text) ? Number(text) : Date.parse(text) / 1000;
  if (Number.isNaN(moment)) throw { title: "No such moment", detail: "Give a moment such as -1h or 2026-11-24T14:00." };
  return moment;
}
