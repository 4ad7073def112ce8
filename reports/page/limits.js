// Which configuration each use names within the limits of the sliders: the rules of sweep/analysis/answer (choice.py,
// use_cases.py, candidates.py) on the same draws. A table holds the values of every candidate by metric.
const limits = details.limits;
const [ACCURACY, SECONDS, MEMORY] = ["val_accuracy", "train_seconds", "peak_memory_bytes"];
const estimated = limits && Object.fromEntries(limits.metrics.map((name) => [name, limits.estimates[name].map((value) => value ?? NaN)]));
let drawn = null; // one table for each draw

const readDraws = async () => {
  const bytes = await unpackBytes("draws");
  const num = limits.nameable.length;
  const codes = new Uint16Array(bytes, 0, num * limits.draws);
  const places = {};
  let start = codes.byteLength;
  for (const name of limits.metrics.slice(1)) {
    const count = (Math.max(...limits.groups[name]) + 1) * limits.draws;
    places[name] = new Float32Array(bytes, start, count);
    start += 4 * count;
  }
  return Array.from({ length: limits.draws }, (_, draw) => {
    const table = { [ACCURACY]: Float64Array.from({ length: num }, (__, place) => codes[place * limits.draws + draw] / limits.steps) };
    for (const [name, values] of Object.entries(places)) {
      table[name] = Float64Array.from(limits.groups[name], (group) => values[group * limits.draws + draw]);
    }
    return table;
  });
};

const findWithin = (table, given) => limits.nameable.map((_, place) => (
  !(table[ACCURACY][place] < given[ACCURACY])
  && (given[SECONDS] === undefined || table[SECONDS][place] <= given[SECONDS])
  && (given[MEMORY] === undefined || table[MEMORY][place] <= given[MEMORY])
));
const keepUseful = (table, inside, margin, given) => {
  let best = -Infinity;
  for (let place = 0; place < inside.length; place += 1) if (inside[place]) best = Math.max(best, table[ACCURACY][place]);
  const least = given[ACCURACY] === undefined ? best - margin : given[ACCURACY];
  return inside.map((is, place) => is && table[ACCURACY][place] >= least);
};
const costsOf = (table, place) => limits.metrics.map((name) => (
  name === ACCURACY ? -table[name][place] : Math.log(table[name][place] > 0 ? table[name][place] : NaN)
));
const dominates = (one, other) => one.every((cost, index) => cost <= other[index]) && one.some((cost, index) => cost < other[index]);
// the ideal and the worst costs of the useful front by the estimates, for the compromise
const findCorners = (estimates, given) => {
  const useful = keepUseful(estimates, findWithin(estimates, given), limits.rules.margin, given);
  const costs = limits.nameable.map((_, place) => costsOf(estimates, place)).filter((each, place) => useful[place] && each.every(Number.isFinite));
  const front = costs.filter((each) => !costs.some((other) => dominates(other, each)));
  if (!front.length) return null;
  return limits.metrics.map((_, index) => [Math.min(...front.map((each) => each[index])), Math.max(...front.map((each) => each[index]))]);
};
const scoreOf = (table, use, corners) => limits.nameable.map((_, place) => {
  if (use.metric === ACCURACY) return -table[ACCURACY][place];
  if (use.metric) return use.metric in table ? table[use.metric][place] : NaN;
  if (!corners) return NaN;
  const squares = costsOf(table, place).map((cost, index) => {
    const [ideal, worst] = corners[index];
    const scaled = (cost - ideal) / (worst > ideal ? worst - ideal : 1);
    return scaled < 0 ? 0 : scaled * scaled;
  });
  return Math.sqrt(squares.reduce((sum, each) => sum + each));
});
const keepFrom = (scores, table, within, use, given, stricter) => {
  let inside = within.map((is, place) => is && use.part[place]);
  if (use.margin !== null) inside = keepUseful(table, inside, use.margin - Math.min(stricter, use.margin / 2), given);
  return scores.map((score, place) => (inside[place] && Number.isFinite(score) ? score : Infinity));
};
const widen = (best, use) => {
  if (use.metric === null) return best + limits.rules.compromise;
  return use.metric === ACCURACY ? best + limits.rules.accuracy : best * (1 + limits.rules[use.metric]);
};
const countRight = (use, given, withins, corners) => {
  const counts = limits.nameable.map(() => 0);
  drawn.forEach((table, draw) => {
    const scores = scoreOf(table, use, corners);
    const own = keepFrom(scores, table, withins[draw], use, given, 0);
    const most = widen(Math.min(...keepFrom(scores, table, withins[draw], use, given, limits.rules.accuracy / 2)), use);
    for (let place = 0; place < own.length; place += 1) if (Number.isFinite(own[place]) && own[place] <= most) counts[place] += 1;
  });
  return counts.map((count) => count / drawn.length);
};
const pickFor = (use, given, withins) => {
  const corners = use.metric === null ? findCorners(estimated, given) : null;
  const right = countRight(use, given, withins, corners);
  const { confidence } = limits.rules;
  const usable = right.map((share, place) => limits.nameable[place] && use.part[place] && share > 1 - confidence);
  if (!usable.some(Boolean)) return null;
  const enough = Math.min(confidence, Math.max(...right.filter((_, place) => usable[place])));
  const scores = scoreOf(estimated, use, corners).map((score, place) => (usable[place] && right[place] >= enough ? score : Infinity));
  const most = widen(Math.min(...scores), use);
  const close = scores.flatMap((score, place) => (score <= most ? [place] : []));
  close.sort((a, b) => limits.front[b] - limits.front[a] || right[b] - right[a] || a - b);
  return close.length ? { place: close[0], probability: right[close[0]] } : null;
};
// For each use the candidate with its probability, or null; ``given`` are limits by metric.
const recommendWithin = async (given) => {
  drawn ??= await readDraws();
  const withins = drawn.map((table) => findWithin(table, given));
  return limits.uses.map((use) => pickFor(use, given, withins));
};
