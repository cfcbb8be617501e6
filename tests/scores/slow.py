"""Slow, obvious float64 references for the detectors' scores and the metrics; larger = more in-distribution."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import reference


def logits(h: np.ndarray, W: np.ndarray, b: np.ndarray, lam: float | None = None) -> np.ndarray:
    """z_k = sum_d min(W_kd h_d, lam) + b_k (no truncation if lam is None)."""
    n, k, d = len(h), W.shape[0], W.shape[1]
    z = np.zeros((n, k))
    for i in range(n):
        for c in range(k):
            total = float(b[c])
            for j in range(d):
                contribution = float(W[c, j]) * float(h[i, j])
                if lam is not None:
                    contribution = min(contribution, lam)
                total += contribution
            z[i, c] = total
    return z


def softmax(z: np.ndarray) -> np.ndarray:
    """p_k = exp(z_k) / sum_j exp(z_j)."""
    z = np.asarray(z, dtype=np.float64)
    p = np.zeros(z.shape)
    for i in range(len(z)):
        e = np.exp(z[i] - z[i].max())
        p[i] = e / e.sum()
    return p


def energy(z: np.ndarray, T: float = 1.0) -> np.ndarray:
    """T log sum_k exp(z_k / T)."""
    z = np.asarray(z, dtype=np.float64)
    out = np.zeros(len(z))
    for i in range(len(z)):
        top = (z[i] / T).max()
        out[i] = T * (top + math.log(np.exp(z[i] / T - top).sum()))
    return out


def msp(z: np.ndarray) -> np.ndarray:
    """max_k p_k."""
    return softmax(z).max(axis=1)


def maxlogit(z: np.ndarray) -> np.ndarray:
    """max_k z_k."""
    return np.asarray(z, dtype=np.float64).max(axis=1)


def dice(
    h: np.ndarray, W: np.ndarray, b: np.ndarray, H: np.ndarray, p: float = 90, lam: float | None = None
) -> np.ndarray:
    """Energy of the head with W_kd kept only where W_kd mean(H)_d > its p-th percentile over all k, d."""
    W = np.asarray(W, dtype=np.float64)
    m = np.asarray(H, dtype=np.float64).mean(axis=0)
    V = W * m
    threshold = np.percentile(V, p)
    sparse = np.zeros(W.shape)
    for k in range(W.shape[0]):
        for d in range(W.shape[1]):
            if V[k, d] > threshold:
                sparse[k, d] = W[k, d]
    return energy(logits(h, sparse, b, lam))


def react(
    h: np.ndarray, W: np.ndarray, b: np.ndarray, H: np.ndarray, percentile: float = 90, lam: float | None = None
) -> np.ndarray:
    """Energy of the head of min(h, c), c the percentile of all entries of H."""
    c = np.percentile(np.asarray(H, dtype=np.float64), percentile)
    edited = np.zeros(h.shape)
    for i in range(h.shape[0]):
        for d in range(h.shape[1]):
            edited[i, d] = min(float(h[i, d]), c)
    return energy(logits(edited, W, b, lam))


def vra(
    h: np.ndarray,
    W: np.ndarray,
    b: np.ndarray,
    H: np.ndarray,
    low: float = 10,
    high: float = 90,
    lam: float | None = None,
) -> np.ndarray:
    """Energy of the head of min(max(h, a), c), a and c the low and high percentiles of all entries of H."""
    a = np.percentile(np.asarray(H, dtype=np.float64), low)
    c = np.percentile(np.asarray(H, dtype=np.float64), high)
    edited = np.zeros(h.shape)
    for i in range(h.shape[0]):
        for d in range(h.shape[1]):
            edited[i, d] = min(max(float(h[i, d]), a), c)
    return energy(logits(edited, W, b, lam))


def vra_of_authors(
    h: np.ndarray, W: np.ndarray, b: np.ndarray, H: np.ndarray, low: float, high: float, lam: float | None = None
) -> np.ndarray:
    """Energy of the head of 0 where h_d < a_d, else min(h_d, c_d); a_d and c_d are percentiles of column d of H."""
    a, c = (np.percentile(np.asarray(H, dtype=np.float64), p, axis=0) for p in (low, high))
    edited = np.zeros(h.shape)
    for i in range(h.shape[0]):
        for d in range(h.shape[1]):
            edited[i, d] = 0.0 if h[i, d] < a[d] else min(float(h[i, d]), c[d])
    return energy(logits(edited, W, b, lam))


def ash(
    h: np.ndarray, W: np.ndarray, b: np.ndarray, kind: str, percentile: float = 90, lam: float | None = None
) -> np.ndarray:
    """Energy of the head of the k largest h: b: sum(h)/k each; s: h exp(sum(h)/sum(survivors)); p: h; others 0."""
    n = h.shape[1]
    k = n - round(n * percentile / 100)
    edited = np.zeros(h.shape)
    for i in range(len(h)):
        x = np.asarray(h[i], dtype=np.float64)
        survivors = np.argsort(-x)[:k]
        before = x.sum()
        after = sum(x[d] for d in survivors)
        for d in survivors:
            if kind == "b":
                edited[i, d] = before / k
            elif kind == "s":
                edited[i, d] = x[d] * math.exp(before / after)
            elif kind == "p":
                edited[i, d] = x[d]
            else:
                raise ValueError(kind)
    return energy(logits(edited, W, b, lam))


def scale(h: np.ndarray, W: np.ndarray, b: np.ndarray, percentile: float = 85, lam: float | None = None) -> np.ndarray:
    """Energy of the head of h exp(sum(h) / sum(k largest of h)), k = D - round(D percentile / 100)."""
    n = h.shape[1]
    k = n - round(n * percentile / 100)
    edited = np.zeros(h.shape)
    for i in range(len(h)):
        x = np.asarray(h[i], dtype=np.float64)
        largest = sorted(x, reverse=True)[:k]
        edited[i] = x * math.exp(x.sum() / sum(largest))
    return energy(logits(edited, W, b, lam))


def gradnorm(h: np.ndarray, W: np.ndarray, b: np.ndarray, lam: float | None = None) -> np.ndarray:
    """sum_k |K p_k - 1| sum_{d: W_kd h_d <= lam} |h_d| (all d if lam is None)."""
    p = softmax(logits(h, W, b, lam))
    K, D = W.shape
    out = np.zeros(len(h))
    for i in range(len(h)):
        for k in range(K):
            norm = 0.0
            for d in range(D):
                if lam is None or float(W[k, d]) * float(h[i, d]) <= lam:
                    norm += abs(float(h[i, d]))
            out[i] += abs(K * p[i, k] - 1) * norm
    return out


def unit(h: np.ndarray) -> np.ndarray:
    """Rows h / ||h||."""
    h = np.asarray(h, dtype=np.float64)
    out = np.zeros(h.shape)
    for i in range(len(h)):
        out[i] = h[i] / math.sqrt((h[i] ** 2).sum())
    return out


def knn(h: np.ndarray, H: np.ndarray, k: int = 50) -> np.ndarray:
    """-(k-th smallest over i of ||f - f_i||^2), f = h / ||h||."""
    f, F = unit(h), unit(H)
    out = np.zeros(len(f))
    for i in range(len(f)):
        distances = [((f[i] - row) ** 2).sum() for row in F]
        out[i] = -sorted(distances)[k - 1]
    return out


def vim(
    h: np.ndarray, W: np.ndarray, b: np.ndarray, z: np.ndarray, H: np.ndarray, Z: np.ndarray, dim: int
) -> np.ndarray:
    """logsumexp(z) - alpha ||(h-o)R||, o = -pinv(W) b, R residual space of H, alpha = mean max Z / mean ||(H-o)R||."""
    h, H = np.asarray(h, dtype=np.float64), np.asarray(H, dtype=np.float64)
    o = -np.linalg.pinv(np.asarray(W, dtype=np.float64)) @ np.asarray(b, dtype=np.float64)
    values, vectors = np.linalg.eigh((H - o).T @ (H - o) / len(H))
    R = vectors[:, np.argsort(-values)[dim:]]
    fit_norms = [np.linalg.norm((row - o) @ R) for row in H]
    fit_logits = [float(max(row)) for row in Z]
    alpha = np.mean(fit_logits) / np.mean(fit_norms)
    out = energy(z)
    for i in range(len(h)):
        out[i] -= alpha * np.linalg.norm((h[i] - o) @ R)
    return out


def class_gaussians(H: np.ndarray, y: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """mu_c = mean of H of class c; S = sum_i (H_i - mu_{y_i})(H_i - mu_{y_i})' / M."""
    H = np.asarray(H, dtype=np.float64)
    means = {int(c): H[y == c].mean(axis=0) for c in np.unique(y)}
    S = np.zeros((H.shape[1], H.shape[1]))
    for i in range(len(H)):
        r = H[i] - means[int(y[i])]
        S += np.outer(r, r) / len(H)
    return list(means.values()), S


def mahalanobis(h: np.ndarray, H: np.ndarray, y: np.ndarray) -> np.ndarray:
    """max_c -(h - mu_c)' S^-1 (h - mu_c)."""
    h = np.asarray(h, dtype=np.float64)
    means, S = class_gaussians(H, y)
    P = np.linalg.inv(S)
    out = np.zeros(len(h))
    for i in range(len(h)):
        out[i] = max(-(h[i] - mu) @ P @ (h[i] - mu) for mu in means)
    return out


def relative_mahalanobis(h: np.ndarray, H: np.ndarray, y: np.ndarray) -> np.ndarray:
    """max_c -(h - mu_c)' S^-1 (h - mu_c) + (h - mu)' S0^-1 (h - mu), mu and S0 of all of H."""
    h, H = np.asarray(h, dtype=np.float64), np.asarray(H, dtype=np.float64)
    mu = H.mean(axis=0)
    S0 = np.zeros((H.shape[1], H.shape[1]))
    for row in H:
        S0 += np.outer(row - mu, row - mu) / len(H)
    P0 = np.linalg.inv(S0)
    out = mahalanobis(h, H, y)
    for i in range(len(h)):
        out[i] += (h[i] - mu) @ P0 @ (h[i] - mu)
    return out


def itp(
    h: np.ndarray,
    W: np.ndarray,
    b: np.ndarray,
    H: np.ndarray,
    y: np.ndarray,
    p: float = 10,
    l: float = 2.2,  # noqa: E741
    lam: float | None = None,
) -> np.ndarray:
    """Energy of b_k + sum of min(W_kd h_d, lam) over d with mu_kd > the percentile p of all mu, W h < mu + l sigma."""
    h, W, H = (np.asarray(a, dtype=np.float64) for a in (h, W, H))
    K, D = W.shape
    z = np.zeros((len(h), K))
    mu, sigma = np.zeros((K, D)), np.zeros((K, D))
    for k in range(K):
        c = W[k] * H[y == k]
        mu[k] = c.mean(axis=0)
        sigma[k] = c.std(axis=0, ddof=1)
    threshold = np.percentile(mu, p)  # one for all classes
    for k in range(K):
        for i in range(len(h)):
            z[i, k] = b[k]
            for d in range(D):
                contribution = W[k, d] * h[i, d]
                if mu[k, d] > threshold and not contribution >= mu[k, d] + l * sigma[k, d]:
                    if lam is not None:
                        contribution = min(contribution, lam)
                    z[i, k] += contribution
    return energy(z)


def klm(z: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """-min_c KL(p || q_c), q_c the mean softmax of the fit rows predicted as c."""
    p, P = softmax(z), softmax(Z)
    predicted = np.argmax(Z, axis=1)
    templates = [P[predicted == c].mean(axis=0) for c in range(P.shape[1]) if (predicted == c).any()]
    out = np.zeros(len(p))
    for i in range(len(p)):
        divergences = []
        for q in templates:
            kl = 0.0
            for k in range(p.shape[1]):
                if p[i, k] > 0:
                    kl += p[i, k] * (np.log(p[i, k]) - np.log(q[k]))
            divergences.append(kl)
        out[i] = -min(divergences)
    return out


def gen(z: np.ndarray, gamma: float = 0.1, M: int = 100) -> np.ndarray:
    """-sum over the M largest p_k of p_k^gamma (1 - p_k)^gamma."""
    out = np.zeros(len(z))
    for i, p in enumerate(softmax(z)):
        for v in sorted(p, reverse=True)[:M]:
            out[i] -= v**gamma * (1 - v) ** gamma
    return out


def she(h: np.ndarray, z: np.ndarray, H: np.ndarray, Z: np.ndarray, y: np.ndarray) -> np.ndarray:
    """h . mean of H over rows with y = argmax Z = c, c = argmax z."""
    h, H = np.asarray(h, dtype=np.float64), np.asarray(H, dtype=np.float64)
    predicted = np.argmax(Z, axis=1)
    out = np.zeros(len(h))
    for i in range(len(h)):
        c = np.argmax(z[i])
        pattern = H[(y == c) & (predicted == c)].mean(axis=0)
        out[i] = h[i] @ pattern
    return out


def fdbd(h: np.ndarray, z: np.ndarray, W: np.ndarray, H: np.ndarray) -> np.ndarray:
    """sum_{c != c*} |z_c - z_c*| / ||w_c - w_c*|| / ||h - mean(H)||, c* = argmax z."""
    h, z, W = (np.asarray(a, dtype=np.float64) for a in (h, z, W))
    mu = np.asarray(H, dtype=np.float64).mean(axis=0)
    out = np.zeros(len(h))
    for i in range(len(h)):
        star = np.argmax(z[i])
        total = 0.0
        for c in range(len(W)):
            if c != star:
                total += abs(z[i, c] - z[i, star]) / np.linalg.norm(W[c] - W[star])
        out[i] = total / np.linalg.norm(h[i] - mu)
    return out


def nnguide(h: np.ndarray, z: np.ndarray, H: np.ndarray, Z: np.ndarray, k: int = 100) -> np.ndarray:
    """energy(z) mean of the k largest f . g_i, f = h / ||h||, g_i = energy(Z_i) H_i / ||H_i||."""
    f, F = unit(h), unit(H)
    e, E = energy(z), energy(Z)
    out = np.zeros(len(f))
    for i in range(len(f)):
        similarities = [f[i] @ (E[j] * F[j]) for j in range(len(F))]
        out[i] = e[i] * np.mean(sorted(similarities, reverse=True)[:k])
    return out


def nci(h: np.ndarray, z: np.ndarray, W: np.ndarray, H: np.ndarray, alpha: float = 1e-4) -> np.ndarray:
    """w_c* . (h - mu) / ||h - mu|| + alpha ||h||_1, c* = argmax z, mu = mean(H)."""
    h, W = np.asarray(h, dtype=np.float64), np.asarray(W, dtype=np.float64)
    mu = np.asarray(H, dtype=np.float64).mean(axis=0)
    out = np.zeros(len(h))
    for i in range(len(h)):
        star = np.argmax(z[i])
        out[i] = W[star] @ (h[i] - mu) / np.linalg.norm(h[i] - mu) + alpha * np.abs(h[i]).sum()
    return out


def relation(h: np.ndarray, z: np.ndarray, H: np.ndarray, Z: np.ndarray, power: float = 1) -> np.ndarray:
    """sum_i r_i^power over r_i > 0.03, r_i = max(0, f . f_i) (p . p_i), f = h / ||h||."""
    f, F = unit(h), unit(H)
    p, P = softmax(z), softmax(Z)
    out = np.zeros(len(f))
    for i in range(len(f)):
        for j in range(len(F)):
            r = max(0.0, f[i] @ F[j]) * (p[i] @ P[j])
            if r > 0.03:
                out[i] += r**power
    return out


def mos(z: np.ndarray, groups: list[list[int]]) -> np.ndarray:
    """max over groups of -softmax(columns of the group)[0]; a group's columns are "others", then its classes."""
    out = np.zeros(len(z))
    for i in range(len(z)):
        start = 0
        scores = []
        for group in groups:
            stop = start + 1 + len(group)
            scores.append(-softmax(z[i : i + 1, start:stop])[0, 0])
            start = stop
        out[i] = max(scores)
    return out


def two_views(h: np.ndarray, W: np.ndarray, b: np.ndarray, H: np.ndarray, lam: float | None = None) -> np.ndarray:
    """The log of the smaller share of ID samples that score lower, by plain and by truncated energy."""
    if lam is None:
        lam = float(reference.mean_support(H, W, b).mean())
    views = [(energy(logits(h, W, b, t)), energy(logits(H, W, b, t))) for t in (None, lam)]
    return consensus(views, "minimum")


def p_value(s: float, id_scores: np.ndarray) -> float:
    """The share of ID scores below s, by interpolation; beyond them exponential, by their standard deviation."""
    id_scores = np.sort(id_scores)
    n, scale = len(id_scores), id_scores.std()
    if s < id_scores[0]:
        return math.exp((s - id_scores[0]) / scale) / (n + 1)
    if s > id_scores[-1]:
        return 1 - math.exp((id_scores[-1] - s) / scale) / (n + 1)
    up_to = [i + 1 for i in range(n) if id_scores[i] <= s][-1]
    if up_to == n:
        return n / (n + 1)
    low, high = id_scores[up_to - 1], id_scores[up_to]
    return float((up_to + (s - low) / (high - low)) / (n + 1))


def consensus(members: list[tuple[np.ndarray, np.ndarray]], combine: str = "log") -> np.ndarray:
    """Scores and ID scores of each member to p-values, and those to one number."""
    p = np.array([[p_value(s, id_scores) for s in scores] for scores, id_scores in members])
    normal = np.vectorize(NormalDist().inv_cdf)
    out = []
    for column in p.T:
        if combine == "log":
            out.append(sum(math.log(value) for value in column))
        elif combine == "minimum":
            out.append(math.log(min(column)))
        elif combine == "harmonic":
            out.append(-math.log(sum(1 / value for value in column)))
        elif combine == "cauchy":
            total = sum(1 / math.tan(math.pi * value) for value in column)
            out.append(-math.copysign(math.log(1 + abs(total)), total))
        elif combine == "stouffer":
            out.append(sum(NormalDist().inv_cdf(value) for value in column))
        else:
            on_id = np.array([normal([p_value(s, id_scores) for s in id_scores]) for _, id_scores in members])
            values, vectors = np.linalg.eigh(on_id @ on_id.T / on_id.shape[1])
            u = normal(column) @ vectors @ np.diag(values**-0.5) @ vectors.T
            out.append(sum(math.log(NormalDist().cdf(value)) for value in u))
    return np.array(out)


def auroc(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Share of pairs (i, o) with id_i > ood_o, ties count half."""
    total = 0.0
    for i in id_scores:
        for o in ood_scores:
            if i > o:
                total += 1.0
            elif i == o:
                total += 0.5
    return total / (len(id_scores) * len(ood_scores))


def fpr95(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Share of ID with score <= t, t the first observed value (ascending) with share of OOD <= t at least 0.95."""
    for t in sorted(set(id_scores) | set(ood_scores)):
        if sum(o <= t for o in ood_scores) / len(ood_scores) >= 0.95:
            return float(sum(i <= t for i in id_scores) / len(id_scores))
    raise ValueError("no scores")


def fpr95_id(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Share of OOD with score >= t, t the first observed value (descending) with share of ID >= t at least 0.95."""
    for t in sorted(set(id_scores) | set(ood_scores), reverse=True):
        if sum(i >= t for i in id_scores) / len(id_scores) >= 0.95:
            return float(sum(o >= t for o in ood_scores) / len(ood_scores))
    raise ValueError("no scores")


def aupr_in(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Trapezoid area of precision over recall of ID (score >= t), every distinct t, from recall 0, precision 1."""
    area, last_recall, last_precision = 0.0, 0.0, 1.0
    for t in sorted(set(id_scores) | set(ood_scores), reverse=True):
        true = sum(i >= t for i in id_scores)
        false = sum(o >= t for o in ood_scores)
        recall = true / len(id_scores)
        precision = true / (true + false)
        area += (recall - last_recall) * (precision + last_precision) / 2
        last_recall, last_precision = recall, precision
    return float(area)


def aupr_out(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """Trapezoid area of precision over recall of OOD (score <= t), every distinct t, from recall 0, precision 1."""
    area, last_recall, last_precision = 0.0, 0.0, 1.0
    for t in sorted(set(id_scores) | set(ood_scores)):
        true = sum(o <= t for o in ood_scores)
        false = sum(i <= t for i in id_scores)
        recall = true / len(ood_scores)
        precision = true / (true + false)
        area += (recall - last_recall) * (precision + last_precision) / 2
        last_recall, last_precision = recall, precision
    return float(area)


def delong_variance(id_scores: np.ndarray, ood_scores: np.ndarray) -> float:
    """var(V10)/n + var(V01)/m, V10_i = share of OOD below id_i, V01_j = share of ID above ood_j, ties half, ddof 1."""
    V10 = [sum((o < i) + 0.5 * (o == i) for o in ood_scores) / len(ood_scores) for i in id_scores]
    V01 = [sum((i > o) + 0.5 * (i == o) for i in id_scores) / len(id_scores) for o in ood_scores]
    return float(np.var(V10, ddof=1) / len(id_scores) + np.var(V01, ddof=1) / len(ood_scores))
