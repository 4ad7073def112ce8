// Which configuration each use names within the limits of the sliders: the rules of sweep/analysis/answer (choice.py,
// use_cases.py, candidates.py) on the same draws. A table holds the values of every candidate by metric.
const limits = details.limits;
const [ACCURACY, SECONDS, MEMORY] = ["val_accuracy", "train_seconds", "peak_memory_bytes"];
const numCandidates = limits ? limits.nameable.length : 0;
// with the costs of every candidate by metric: less is better, seconds and bytes count by their logarithm
const makeTable = (values) => ({
  ...values,
  costs: limits.metrics.map((name) => values[name].map((value) => {
    if (name === ACCURACY) return -value;
    return value > 0 ? Math.log(value) : NaN;
  })),
});
const estimated = limits && makeTable(Object.fromEntries(limits.metrics.map((name) => [name, Float64Array.from(limits.estimates[name], (value) => value ?? NaN)])));
let drawn = null; // one table for each draw

const readDraws = async () => {
  const bytes = await unpackBytes("draws");
  const codes = new Uint16Array(bytes, 0, numCandidates * limits.draws);
  const places = {};
  let start = codes.byteLength;
  for (const name of limits.metrics.slice(1)) {
    const count = (Math.max(...limits.groups[name]) + 1) * limits.draws;
    places[name] = new Float32Array(bytes, start, count);
    start += 4 * count;
  }
  return Array.from({ length: limits.draws }, (_, draw) => {
    const table = { [ACCURACY]: Float64Array.from(limits.nameable, (__, place) => codes[place * limits.draws + draw] / limits.steps) };
    for (const [name, values] of Object.entries(places)) {
      table[name] = Float64Array.from(limits.groups[name], (group) => values[group * limits.draws + draw]);
    }
    return makeTable(table);
  });
};

// Loops over typed arrays: a move of a slider passes over all candidates in all draws for every use.
const findWithin = (table, given) => {
  const [accuracies, seconds, bytes] = [ACCURACY, SECONDS, MEMORY].map((name) => table[name]);
  const { [ACCURACY]: least, [SECONDS]: longest, [MEMORY]: largest } = given;
  const inside = new Uint8Array(numCandidates);
  for (let place = 0; place < numCandidates; place += 1) {
    inside[place] = !(accuracies[place] < least)
      && (longest === undefined || seconds[place] <= longest) && (largest === undefined || bytes[place] <= largest);
  }
  return inside;
};
const isInside = (within, part, place) => within[place] && (!part || part[place]);
// the accuracy of the most accurate one within the limits
const findBest = (table, within, part) => {
  let best = -Infinity;
  for (let place = 0; place < numCandidates; place += 1) if (isInside(within, part, place)) best = Math.max(best, table[ACCURACY][place]);
  return best;
};
const dominates = (one, other) => one.every((cost, index) => cost <= other[index]) && one.some((cost, index) => cost < other[index]);
// the ideal and the worst costs of the useful front by the estimates, for the compromise
const findCorners = (estimates, given) => {
  const within = findWithin(estimates, given);
  const least = given[ACCURACY] ?? findBest(estimates, within, null) - limits.rules.margin;
  const costs = limits.nameable.map((_, place) => estimates.costs.map((each) => each[place]))
    .filter((each, place) => within[place] && estimates[ACCURACY][place] >= least && each.every(Number.isFinite));
  const front = costs.filter((each) => !costs.some((other) => dominates(other, each)));
  if (!front.length) return null;
  return limits.metrics.map((_, index) => [Math.min(...front.map((each) => each[index])), Math.max(...front.map((each) => each[index]))]);
};
// the distance from the ideal over the useful range of each metric
const scoreCompromise = (costs, corners) => {
  const scores = new Float64Array(numCandidates);
  corners.forEach(([ideal, worst], index) => {
    const [values, range] = [costs[index], worst > ideal ? worst - ideal : 1];
    for (let place = 0; place < numCandidates; place += 1) {
      const scaled = (values[place] - ideal) / range;
      scores[place] += scaled < 0 ? 0 : scaled * scaled;
    }
  });
  return scores.map(Math.sqrt);
};
const scoreOf = (table, use, corners) => {
  if (use.metric === ACCURACY) return table.costs[limits.metrics.indexOf(ACCURACY)];
  if (use.metric) return table[use.metric] ?? new Float64Array(numCandidates).fill(NaN);
  return corners ? scoreCompromise(table.costs, corners) : new Float64Array(numCandidates).fill(NaN);
};
const widen = (best, use) => {
  if (use.metric === null) return best + limits.rules.compromise;
  return use.metric === ACCURACY ? best + limits.rules.accuracy : best * (1 + limits.rules[use.metric]);
};
const countRight = (use, given, withins, corners) => {
  const counts = new Uint16Array(numCandidates);
  const { part, margin } = use;
  const stricter = Math.min(limits.rules.accuracy / 2, margin / 2); // of the best, which has to be useful for certain
  drawn.forEach((table, draw) => {
    const [within, accuracies, scores] = [withins[draw], table[ACCURACY], scoreOf(table, use, corners)];
    const highest = margin === null || given[ACCURACY] !== undefined ? NaN : findBest(table, within, part);
    const useful = margin === null ? -Infinity : given[ACCURACY] ?? highest - margin;
    const surely = margin === null ? -Infinity : given[ACCURACY] ?? highest - (margin - stricter);
    let best = Infinity;
    for (let place = 0; place < numCandidates; place += 1) {
      if (isInside(within, part, place) && accuracies[place] >= surely && scores[place] < best) best = scores[place];
    }
    const most = widen(best, use);
    for (let place = 0; place < numCandidates; place += 1) {
      if (isInside(within, part, place) && accuracies[place] >= useful && scores[place] <= most && scores[place] < Infinity) counts[place] += 1;
    }
  });
  return Array.from(counts, (count) => count / drawn.length);
};
const pickFor = (use, given, withins) => {
  const corners = use.metric === null ? findCorners(estimated, given) : null;
  const right = countRight(use, given, withins, corners);
  const { confidence } = limits.rules;
  const usable = right.map((share, place) => limits.nameable[place] && use.part[place] && share > 1 - confidence);
  if (!usable.some(Boolean)) return null;
  const enough = Math.min(confidence, Math.max(...right.filter((_, place) => usable[place])));
  const scores = Array.from(scoreOf(estimated, use, corners), (score, place) => (usable[place] && right[place] >= enough ? score : Infinity));
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
