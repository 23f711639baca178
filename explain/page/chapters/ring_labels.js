// Where the labels of chapter 1's arrows lie: each on its arrow or close to it, on no other label and on no rank.

const ALONG = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82];
const BESIDE = [0, 13, -13, 24, -24, 36, -36];

const apart = (a, b) => Math.abs(a.x - b.x) >= (a.w + b.w) / 2 + 1 || Math.abs(a.y - b.y) >= (a.h + b.h) / 2 + 1;

/** The places of a label, the best first: near the middle of its arrow; of an arrow across the circle near the sender, because all of them meet in the middle. */
function placesOf({at, far}, w, h) {
  const best = far ? 0.3 : 0.5;
  return ALONG.flatMap((t) => BESIDE.map((aside) => {
    const a = at(t - 0.02), b = at(t + 0.02), here = at(t);
    const length = Math.hypot(b.x - a.x, b.y - a.y) || 1;
    return {x: here.x - (b.y - a.y) / length * aside, y: here.y + (b.x - a.x) / length * aside, w, h, cost: Math.abs(t - best) * 60 + Math.abs(aside)};
  })).sort((p, q) => p.cost - q.cost);
}

/**
 * A place {x, y, w, h} for the label of each path, null where there is none. `paths`: [{at(t), tip, far, length}]; `ranks`: boxes; all must lie in
 * {width, height}. Heads of arrows stay free where they can.
 */
export function placesFor(paths, {w, h, ranks, width, height}) {
  const heads = paths.map(({tip}) => ({...tip, w: 8, h: 8}));
  const taken = [...ranks];
  const inside = (p) => p.x >= w / 2 && p.x <= width - w / 2 && p.y >= h / 2 && p.y <= height - h / 2;
  const found = new Map();
  for (const path of [...paths].sort((a, b) => a.length - b.length)) {  // a short arrow has the fewest places
    const free = placesOf(path, w, h).filter((p) => inside(p) && taken.every((t) => apart(p, t)));
    const place = free.find((p) => heads.every((head) => apart(p, head))) ?? free[0] ?? null;
    if (place) taken.push(place);
    found.set(path, place);
  }
  return paths.map((path) => found.get(path));
}
