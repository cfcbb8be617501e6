"""Slow dense float64 reference: c[b,k,d] = W[k,d] h[b,d]; z[b,k] = sum_d min(c[b,k,d], threshold) + b[k]."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]  # float32 or float64


def contributions(h: Floats, W: Floats) -> Array:
    """c[b,k,d] = W[k,d] * h[b,d]"""
    h64 = h.astype(np.float64)  # (B, D)
    W64 = W.astype(np.float64)  # (K, D)
    return W64[None, :, :] * h64[:, None, :]  # (B, K, D)


def rounded_contributions(h: Floats, W: Floats) -> Array:
    """c[b,k,d] = W[k,d] * h[b,d], the product rounded to float32 when h is float32"""
    if h.dtype != np.float32:
        return contributions(h, W)  # (B, K, D)
    c = W.astype(np.float32)[None, :, :] * h[:, None, :]  # (B, K, D) float32
    return c.astype(np.float64)  # (B, K, D)


def contributions_by_definition(h: Floats, W: Floats, b: Floats) -> Array:
    """out[s,j,k,d] = f_j(x_s) - f_j(x_s; W[k,d]=0), f(x) = W h + b"""
    h64 = h.astype(np.float64)  # (B, D)
    W64 = W.astype(np.float64)  # (K, D)
    b64 = b.astype(np.float64)  # (K,)
    B, D = h64.shape
    K = W64.shape[0]
    full = h64 @ W64.T + b64  # (B, K)
    out = np.zeros((B, K, K, D), dtype=np.float64)  # (B, K, K, D)
    for k in range(K):
        for d in range(D):
            W_zeroed = W64.copy()  # (K, D)
            W_zeroed[k, d] = 0.0
            out[:, :, k, d] = full - (h64 @ W_zeroed.T + b64)  # (B, K)
    return out


def clip_logits(h: Floats, W: Floats, b: Floats | None, threshold: float) -> Array:
    """z[b,k] = sum_d min(c[b,k,d], threshold) + b[k]"""
    c = rounded_contributions(h, W)  # (B, K, D)
    z: Array = np.minimum(c, float(threshold)).sum(axis=2)  # (B, K)
    if b is not None:
        z = z + b.astype(np.float64)[None, :]  # (B, K)
    return z


def clip_gradients(g: Floats, h: Floats, W: Floats, threshold: float) -> tuple[Array, Array, Array]:
    """dh[b,d] = sum_k g W [c<=t]; dW[k,d] = sum_b g h [c<=t]; db[k] = sum_b g[b,k]"""
    passes = rounded_contributions(h, W) <= float(threshold)  # (B, K, D) bool, a tie passes
    g64 = g.astype(np.float64)[:, :, None]  # (B, K, 1)
    h64 = h.astype(np.float64)[:, None, :]  # (B, 1, D)
    W64 = W.astype(np.float64)[None, :, :]  # (1, K, D)
    dh: Array = np.where(passes, g64 * W64, 0.0).sum(axis=1)  # (B, D)
    dW: Array = np.where(passes, g64 * h64, 0.0).sum(axis=0)  # (K, D)
    db: Array = g64[:, :, 0].sum(axis=0)  # (K,)
    return dh, dW, db


def quantile(h: Floats, W: Floats, level: float) -> Array:
    """q[b] = x_l + (p - l) * (x_{l+1} - x_l), x = sorted c[b], p = level * (K*D - 1), l = floor(p)"""
    c = rounded_contributions(h, W)  # (B, K, D)
    x = np.sort(c.reshape(c.shape[0], -1), axis=1)  # (B, K*D)
    n = x.shape[1]
    position = level * (n - 1)
    lower = math.floor(position)
    upper = min(lower + 1, n - 1)  # level 1 has no next value
    return x[:, lower] + (position - lower) * (x[:, upper] - x[:, lower])  # (B,)


def threshold_step(threshold: float, h: Floats, W: Floats, rho_norm: float, beta: float) -> float:
    """threshold <- beta * threshold + (1 - beta) * mean_b quantile_b(1 - rho_norm / K)"""
    level = 1.0 - rho_norm / W.shape[0]
    return float(beta * threshold + (1.0 - beta) * quantile(h, W, level).mean())


def sparsity(c: Floats) -> dict[str, float]:
    """top shares of sum|c|; (sum|c|)^2 / (n sum c^2); gini = sum_ij |x_i - x_j| / (2 n sum x), x = |c|"""
    x = np.sort(np.abs(c.astype(np.float64)).ravel())[::-1]  # (n,) largest first
    n = x.size
    total = x.sum()
    pairs = 0.0
    for value in x:
        pairs += np.abs(x - value).sum()
    return {
        "top_1_percent": float(x[: max(1, round(n / 100))].sum() / total),
        "top_10_percent": float(x[: max(1, round(n / 10))].sum() / total),
        "participation_ratio": float(total**2 / (n * (x**2).sum())),
        "gini": float(pairs / (2 * n * total)),
    }


def mean_support(h: Floats, W: Floats, b: Floats | None) -> Array:
    """Mean of W[k,d] h[d] over {d: W[k,d] h[d] > 0}, where k has the largest logit; 0 if there is none."""
    c = contributions(h, W)  # (B, K, D)
    z = c.sum(2) if b is None else c.sum(2) + b.astype(np.float64)  # (B, K)
    out = np.zeros(len(h))
    for i in range(len(h)):
        positive = [float(value) for value in c[i, int(z[i].argmax())] if value > 0]
        out[i] = sum(positive) / len(positive) if positive else 0.0
    return out
