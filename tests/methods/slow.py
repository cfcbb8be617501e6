"""Slow, obvious references for the losses of the training methods: plain numpy in float64, from the formulas alone."""

import math

import numpy as np

Array = np.ndarray
Groups = list[list[int]]


def _log_sum_exp(values: Array | list[float]) -> float:
    """log sum exp, with the largest taken out."""
    top = float(max(values))
    return top + math.log(sum(math.exp(float(v) - top) for v in values))


def _unit(v: Array) -> Array:
    """v / max(||v||, 1e-12)."""
    return v / max(math.sqrt(sum(float(x) ** 2 for x in v)), 1e-12)


def _float(*arrays: Array) -> list[Array]:
    """Each array as float64."""
    return [np.asarray(a, dtype=np.float64) for a in arrays]


def cross_entropy(z: Array, y: Array) -> float:
    """Mean over the batch of -log softmax(z)[y]."""
    (z,) = _float(z)
    return sum(_log_sum_exp(row) - float(row[int(k)]) for row, k in zip(z, y, strict=True)) / len(z)


def logitnorm_loss(z: Array, y: Array, tau: float = 0.04) -> float:
    """Cross entropy of z / ((||z|| + 1e-7) tau)."""
    (z,) = _float(z)
    scaled = [row / ((math.sqrt(sum(float(x) ** 2 for x in row)) + 1e-7) * tau) for row in z]
    return cross_entropy(np.array(scaled), y)


def t2fnorm_logits(h: Array, W: Array, b: Array, tau: float, normalise: bool) -> Array:
    """W (h / ||h|| / tau) + b, or W (h / tau) + b without the norm."""
    h, W, b = _float(h, W, b)
    z = np.zeros((len(h), len(W)))
    for i in range(len(h)):
        direction = _unit(h[i]) if normalise else h[i]
        for k in range(len(W)):
            z[i, k] = sum(W[k, d] * direction[d] / tau for d in range(h.shape[1])) + b[k]
    return z


def update_prototypes(prototypes: Array, u: Array, y: Array, momentum: float) -> Array:
    """Sample by sample, p[y] <- unit(momentum p[y] + (1 - momentum) u); the input is left alone."""
    prototypes, u = _float(prototypes, u)
    p = prototypes.copy()
    for sample, k in zip(u, y, strict=True):
        p[int(k)] = _unit(momentum * p[int(k)] + (1 - momentum) * sample)
    return p


def compactness(u: Array, y: Array, prototypes: Array, tau: float) -> float:
    """Cross entropy of u . prototypes / tau, times tau / 0.07."""
    u, prototypes = _float(u, prototypes)
    z = [[float(np.dot(sample, p)) / tau for p in prototypes] for sample in u]
    return tau / 0.07 * cross_entropy(np.array(z), y)


def class_means(u: Array, y: Array, K: int) -> Array:
    """Each class's mean of u, scaled to length 1."""
    (u,) = _float(u)
    return np.stack([_unit(sum(row for row, k in zip(u, y, strict=True) if k == c)) for c in range(K)])


def dispersion(prototypes: Array, tau: float) -> float:
    """Mean over i of log mean over j != i of exp(p_i . p_j / tau)."""
    (p,) = _float(prototypes)
    K = len(p)
    total = 0.0
    for i in range(K):
        others = [float(np.dot(p[i], p[j])) / tau for j in range(K) if j != i]
        total += _log_sum_exp(others) - math.log(K - 1)
    return total / K


def snn_logits(h: Array, W: Array, b: Array, s: int) -> Array:
    """z_k = the sum of the s largest entries of W_k * h, plus b_k."""
    h, W, b = _float(h, W, b)
    z = np.zeros((len(h), len(W)))
    for i in range(len(h)):
        for k in range(len(W)):
            z[i, k] = sum(sorted((float(c) for c in W[k] * h[i]), reverse=True)[:s]) + b[k]
    return z


def weighted_energy(z: Array, w: Array) -> Array:
    """log sum_k relu(w_k) exp(z_k); -inf where no weight is positive."""
    z, w = _float(z, w)
    energy = np.full(len(z), -np.inf)
    for i, row in enumerate(z):
        terms = [float(row[k]) + math.log(w[k]) for k in range(len(w)) if w[k] > 0]
        if terms:
            energy[i] = _log_sum_exp(terms)
    return energy


def least_likely(mean: Array, covariance: Array, draws: Array) -> int:
    """The draw with the smallest Gaussian log density, so the largest Mahalanobis distance."""
    mean, covariance, draws = _float(mean, covariance, draws)
    worst, furthest = -1, -math.inf
    for i, draw in enumerate(draws):
        distance = float((draw - mean) @ np.linalg.solve(covariance, draw - mean))
        if distance > furthest:
            worst, furthest = i, distance
    return worst


def tied_covariance(features: Array, y: Array, K: int, ridge: float = 1e-4) -> tuple[Array, Array]:
    """Means per class, none empty, and the covariance about them over all samples, plus ridge I."""
    (features,) = _float(features)
    n, D = features.shape
    means = np.zeros((K, D))
    for k in range(K):
        members = [features[i] for i in range(n) if y[i] == k]
        means[k] = sum(members) / len(members)
    covariance = np.zeros((D, D))
    for i in range(n):
        centred = features[i] - means[int(y[i])]
        covariance += np.outer(centred, centred) / n
    return means, covariance + ridge * np.eye(D)


def vos_uncertainty_loss(energy_id: Array, energy_ood: Array, weight: float, bias: float) -> float:
    """Mean logistic loss of weight * energy + bias over all samples, ID labelled 1 and virtual outliers 0."""
    losses = [float(np.logaddexp(0.0, -(weight * float(e) + bias))) for e in energy_id]  # -log sigmoid(s)
    losses += [float(np.logaddexp(0.0, weight * float(e) + bias)) for e in energy_ood]  # -log(1 - sigmoid(s))
    return sum(losses) / len(losses)


def _group_columns(groups: Groups) -> list[tuple[int, int]]:
    """Each group's first column ("others") and the one past its last."""
    columns, start = [], 0
    for group in groups:
        columns.append((start, start + 1 + len(group)))
        start += 1 + len(group)
    return columns


def _softmax(row: Array) -> list[float]:
    """exp(z_k) / sum_j exp(z_j)."""
    total = _log_sum_exp(row)
    return [math.exp(float(v) - total) for v in row]


def mos_loss(z: Array, y: Array, groups: Groups) -> float:
    """The sum over groups of the cross entropy within the group, "others" the target of a foreign sample."""
    (z,) = _float(z)
    total = 0.0
    for group, (start, end) in zip(groups, _group_columns(groups), strict=True):
        targets = [1 + group.index(int(k)) if int(k) in group else 0 for k in y]
        total += cross_entropy(z[:, start:end], np.array(targets))
    return total


def mos_score(z: Array, groups: Groups) -> Array:
    """max over groups of -p_others."""
    (z,) = _float(z)
    return np.array([max(-_softmax(row[start:end])[0] for start, end in _group_columns(groups)) for row in z])


def mos_class_scores(z: Array, groups: Groups) -> Array:
    """The probability of each class within its group, in class order."""
    (z,) = _float(z)
    scores = np.zeros((len(z), sum(len(group) for group in groups)))
    for i, row in enumerate(z):
        for group, (start, end) in zip(groups, _group_columns(groups), strict=True):
            probabilities = _softmax(row[start:end])
            for place, k in enumerate(group):
                scores[i, k] = probabilities[1 + place]
    return scores


def top_share_mask(scores: Array, share: float) -> Array:
    """True for the round(share * n) entries with the largest |score|, over the whole array."""
    flat = [abs(float(v)) for v in np.asarray(scores).reshape(-1)]
    order = sorted(range(len(flat)), key=lambda i: flat[i], reverse=True)
    mask = np.zeros(len(flat), dtype=bool)
    for i in order[: round(share * len(flat))]:
        mask[i] = True
    return mask.reshape(np.shape(scores))


def umap_loss(z: Array, y: Array, eta: float) -> float:
    """|CE - eta| + eta."""
    return abs(cross_entropy(z, y) - eta) + eta


def umap_score_gradient(g: Array, w: Array, scores: Array) -> Array:
    """The mask is a step of |score|; its gradient counts as that of |score|: dL/ds = dL/dm sign(s), dL/dm = g w."""
    g, w, scores = _float(g, w, scores)
    return g * w * np.where(scores < 0, -1.0, 1.0)
