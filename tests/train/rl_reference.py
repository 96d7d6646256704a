"""The papers' formulas once more, written as they stand there: loops over plain floats, no torch, nothing of
the package. Slow and obvious on purpose; the tests hold the package to it."""

import math

EPS = 1e-4


def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def deviation(values, ddof):
    centre, total = mean(values), 0.0
    for value in values:
        total += (value - centre) ** 2
    return math.sqrt(total / (len(values) - ddof))


# --- advantages -------------------------------------------------------------------------------


def advantages(kind, groups):
    """Per group and attempt. None is void."""
    everything = [r for group in groups for r in group if r is not None]
    differences = []
    for group in groups:
        valid = [r for r in group if r is not None]
        differences += [r - mean(valid) for r in valid]
    return [
        [None if r is None else one(kind, r, i, group, everything, differences) for i, r in enumerate(group)]
        for group in groups
    ]


def one(kind, r, i, group, everything, differences):
    valid = [x for x in group if x is not None]
    others = [x for j, x in enumerate(group) if x is not None and j != i]
    if kind == "mean":  # Dr. GRPO: R_i - mean(R)
        return r - mean(valid)
    if kind == "std":  # GRPO: (r_i - mean(r)) / std(r)
        return 0.0 if len(valid) < 2 else (r - mean(valid)) / (deviation(valid, 1) + EPS)
    if kind == "rloo":  # R_i - 1/(k-1) sum of the others
        return r - mean(others) if others else 0.0
    if kind == "batch":  # REINFORCE++: (A - mean over the batch) / std over the batch
        return 0.0 if len(everything) < 2 else (r - mean(everything)) / (deviation(everything, 1) + EPS)
    if kind == "batch_baseline":  # A' = r - mean of the group, then as above
        return 0.0 if len(everything) < 2 else (r - mean(valid)) / (deviation(differences, 1) + EPS)
    raise AssertionError(kind)


def step_advantages(outcomes, scores, coef):
    """OpenClaw-RL: r = outcome + coef * score of the step, z-scored per index of the step; alone: 0. `scores`
    has a row per attempt, None where a step was not judged."""
    result = []
    for i, outcome in enumerate(outcomes):
        row = []
        for k in range(len(scores[i])):
            if outcome is None:
                continue
            bucket = []
            for j, other in enumerate(outcomes):
                if other is not None and len(scores[j]) > k:
                    bucket.append(step_reward(outcomes, scores, j, k, coef))
            mine = step_reward(outcomes, scores, i, k, coef)
            row.append(0.0 if len(bucket) < 2 else (mine - mean(bucket)) / (deviation(bucket, 0) + EPS))
        result.append(None if outcome is None else row)
    return result


def step_reward(outcomes, scores, i, k, coef):
    score = scores[i][k]
    if score is None:
        given = [s[k] for s, o in zip(scores, outcomes, strict=True) if o is not None and len(s) > k]
        given = [s for s in given if s is not None]
        score = mean(given) if given else 0.0
    return outcomes[i] + coef * score


def overlong(length, most, cache):
    """DAPO, equation 13."""
    if length <= most - cache:
        return 0.0
    if length <= most:
        return ((most - cache) - length) / cache
    return -1.0


# --- losses -----------------------------------------------------------------------------------


def clip(value, low, high):
    return low if value < low else high if value > high else value


def token_term(surrogate, new, old, frozen, advantage, low, high):
    """The part of J one token adds. `frozen` is the log-prob under the stop-gradient."""
    ratio = math.exp(new - old)
    if surrogate == "ppo":
        return min(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    if surrogate == "cispo":
        return clip(math.exp(frozen - old), 1 - low, 1 + high) * advantage * new
    if surrogate == "reinforce":
        return advantage * new
    raise AssertionError(surrogate)


def loss(surrogate, new, old, frozen, advantages, low, high, normalise, constant):
    """-J over attempts (lists of tokens)."""
    count, tokens, total = len(new), sum(len(row) for row in new), 0.0
    for i in range(count):
        if surrogate == "gspo":  # s_i = exp(1/|y| sum log ratio); J = 1/G sum_i min(s A, clip(s) A)
            logs = [a - b for a, b in zip(new[i], old[i], strict=True)]
            s = math.exp(mean(logs))
            total -= min(s * advantages[i], clip(s, 1 - low, 1 + high) * advantages[i]) / count
            continue
        for t in range(len(new[i])):
            term = token_term(surrogate, new[i][t], old[i][t], frozen[i][t], advantages[i], low, high)
            if normalise == "sequence":
                total -= term / len(new[i]) / count
            elif normalise == "token":
                total -= term / tokens
            else:
                total -= term / constant / count
    return total


def gradient(function, new):
    """Central differences of `function(new)` with respect to every token."""
    step, result = 1e-6, []
    for i in range(len(new)):
        row = []
        for t in range(len(new[i])):
            up, down = [list(r) for r in new], [list(r) for r in new]
            up[i][t] += step
            down[i][t] -= step
            row.append((function(up) - function(down)) / (2 * step))
        result.append(row)
    return result


def correction(kind, trainer, engine, low, high):
    """Weight of every token, from rows of log-probs of trainer and engine."""
    result = []
    for i in range(len(trainer)):
        logs = [a - b for a, b in zip(trainer[i], engine[i], strict=True)]
        ratios = [math.exp(log) for log in logs]
        if kind.startswith("sequence"):
            product = 1.0
            for ratio in ratios:
                product *= ratio
            ratios = [product] * len(logs)
        if kind.endswith("tis"):
            result.append([min(ratio, high) for ratio in ratios])
        else:
            result.append([ratio if low <= ratio <= high else 0.0 for ratio in ratios])
    return result
