"""Bets on the ranks of inputs among the calibration samples: a test that may be looked at after every input.

Whether a stream still looks like the calibration data is tested by betting. An input's conformal p-value says in which
of the n + 1 gaps between the n calibration scores its score lies. While inputs are exchangeable with the calibration
samples, the gaps have Dirichlet(1, ..., 1) masses, whatever the distribution of the scores. So with the gaps gathered
into bins, of a_b gaps each, and N_b inputs seen in bin b,

    P(next input in bin b | past) = (a_b + N_b) / (n + 1 + sum N),

exactly: this holds on average over the calibration set, which all p-values share, and learns from the stream. Bets on
the next bin by any distribution q that depends on the past multiply the capital by q(b) / P(b | past). Under the null
hypothesis the capital is a nonnegative martingale that starts at 1, so by Ville's inequality it ever reaches 1 / alpha
with a probability of at most alpha. The bets are a mixture of fixed tilts of the p-values (to small, to large, to the
middle, to both ends) and of recent histograms, among which weight moves as in a hidden Markov model: at first all of it
stays out. Memory does not grow with the stream.

Equal scores, and predicted classes, are put in order at random: so classes are ranks among the calibration samples too,
and are tested in the same way. The alarm looks at the mean of both capitals.

Volkhonskiy et al., "Inductive conformal martingales for change-point detection", COPA 2017; Vovk, "Testing randomness
online", Statistical Science 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
State = dict[str, NDArray[Any]]

BLOCK = 20  # inputs of a stream between which no weight moves
_TAIL = (0.001, 0.002, 0.004, 0.008, 0.016, 0.03, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5)  # fine where OOD samples fall
EDGES = (*_TAIL, *(1 - p for p in _TAIL[-2::-1]))
CLASS_EDGES = tuple(i / 40 for i in range(1, 40))
_TILTED = (0.02, 0.1, 0.4)  # shares of inputs that a tilt assumes to be changed
_MEMORY = (0.99, 0.998, 0.9998)  # what recent histograms keep of an input when the next comes
_CAUTION = 32.0  # inputs that the null hypothesis counts for in a histogram
_CALM = math.log(2)  # of the statistic of a change up to which none is suspected
_RENEWED = 0.02  # of what was bet on during an alarm, by which its end is found, after each block
_MOVE = 1 / 1024  # of the weight of bets goes back, and as much among them, after each block


class Bets:
    """Bets on the bin that the next input falls into: the capital of each stream is a martingale, see above.

    The state of streams is outside, as arrays by name, of which the first axis is that of R streams.
    """

    def __init__(self, gaps: Floats) -> None:
        self.gaps = gaps  # (G, m)
        edges = np.concatenate([[0.0], gaps.sum(0).cumsum() / gaps.sum()])
        below = [edges**0.1, edges**0.3]  # distribution functions
        above = [1 - (1 - edges) ** 0.1, 1 - (1 - edges) ** 0.3]
        other = [3 * edges**2 - 2 * edges**3, np.arcsin(np.sqrt(edges)) * 2 / math.pi]  # to the middle, to both ends
        tilts = np.diff([*below, *above, *other], axis=1)
        self.tilts = np.repeat(tilts, len(_TILTED), 0).T  # (m, E - 1 - H)
        self.tilted = np.tile(_TILTED, len(tilts))
        self.kept = np.array(_MEMORY) ** BLOCK  # (H,)
        parts = len(self.tilted), len(self.kept)
        self.prior = np.concatenate([np.full(count, 0.5 / count) for count in parts])  # (E - 1,)

    def new(self, S: int) -> State:
        """Return the state of streams of which nothing is seen yet."""
        G, m = self.gaps.shape
        weights = np.zeros((S, 1 + len(self.prior)))
        weights[:, 0] = 1
        return {
            "counts": np.zeros((S, G, m), np.int64),  # of inputs before a change, if there is any
            "recent": np.zeros((S, G, m), np.int64),  # and since
            "histograms": np.zeros((S, len(self.kept), m)),  # of the last inputs
            "weights": self._moved(weights, np.zeros(S)),  # of bets, at the start of the block; the first bets on none
            "products": np.ones(weights.shape),  # of each bet within the block
            "capital": np.zeros(S),  # log, at the start of the block
            "change": np.zeros(S),  # Page's statistic: log, of the bets since the likeliest change
            "since": np.zeros(S, np.int64),  # where that was
            "changed": np.zeros((S, m)),  # what was bet on during an alarm, see `bet_on`
            "return": np.zeros(S),  # Page's statistic of the end of the alarm: log, of the null hypothesis against that
            "blocks": np.zeros(S, np.int64),  # of this test
        }

    def _moved(self, weights: Floats, blocks: Any) -> Floats:
        """Move weight between bets: from the first, less and less; back to it, and among the others, a little."""
        bets, out = weights[:, 1:], 0.25 / (8.0 + blocks[:, None]) * weights[:, :1]
        shared = (1 - _MOVE) * bets + _MOVE * bets.sum(1, keepdims=True) * self.prior
        bets = (1 - _MOVE) * shared + out * self.prior
        return np.concatenate([1 - bets.sum(1, keepdims=True), bets], 1)

    def advance(self, state: State, bins: Ints, groups: Ints, frozen: Any) -> Floats:
        """Bet on some inputs, and return the log of the capital after each: (R, BLOCK), for bins of which -1 is none.

        The reference learns from inputs, but not while it is frozen.
        """
        valid, row = bins.T >= 0, np.arange(len(bins))  # below, the first axis is that of inputs: L = BLOCK
        b, g = np.where(valid, bins.T, 0), np.where(valid, groups.T, 0)  # (L, R)
        (L, R), (G, m) = b.shape, self.gaps.shape
        earlier = valid[None] & np.tri(L, k=-1, dtype=bool)[:, :, None]  # (L, L, R)
        in_bin = (b[:, None] == b[None]) & earlier
        in_group = (g[:, None] == g[None]) & earlier if G > 1 else earlier
        in_cell = (in_bin & in_group if G > 1 else in_bin).sum(1)  # (L, R): of this block, and of the group below
        in_group, totals = in_group.sum(1), self.gaps.sum(1)
        past = state["counts"] + state["recent"] * ~frozen[:, None, None]  # (R, G, m)
        null = (self.gaps[g, b] + past[row, g, b] + in_cell * ~frozen) / (
            totals[g] + past.sum(2)[row, g] + in_group * ~frozen
        )
        steps = np.ones((L, R, 1 + len(self.prior)))
        tilts, recent = steps[:, :, 1 : 1 + len(self.tilted)], steps[:, :, 1 + len(self.tilted) :]
        np.divide(self.tilts[b], null[:, :, None], out=tilts)
        tilts *= self.tilted
        tilts += 1 - self.tilted
        np.add(state["histograms"].transpose(0, 2, 1)[row, b], in_bin.sum(1)[:, :, None], out=recent)
        recent /= null[:, :, None]
        recent += _CAUTION
        recent /= state["histograms"].sum(2) + earlier.sum(1)[:, :, None] + _CAUTION
        steps[~valid] = 1
        steps[0] *= state["products"]
        for i in range(1, L):  # at most BLOCK factors of at most n + 1 + sum N: no overflow
            steps[i] *= steps[i - 1]
        changed = (1 - state["changed"].sum(1)) * null + state["changed"][row, b]
        state["return"] = state["return"] + frozen * (np.log(null / changed) * valid).sum(0)
        counted = np.bincount(((row * G + g) * m + b)[valid], minlength=R * G * m).reshape(R, G, m)
        state["recent"] = state["recent"] + counted
        state["histograms"] = state["histograms"] + counted.sum(1)[:, None]
        state["products"] = steps[-1]
        return state["capital"][:, None] + np.log(np.einsum("lre,re->rl", steps, state["weights"]))

    def bet_on(self, weights: Floats, histograms: Floats) -> Floats:
        """Return what is bet on if there was a change, but for the share of the null hypothesis in it: (R, m)."""
        tilted, recent = np.split(weights[:, 1:] / weights[:, 1:].sum(1, keepdims=True), [len(self.tilted)], 1)
        recent = recent / (histograms.sum(2) + _CAUTION)
        return (tilted * self.tilted) @ self.tilts.T + (recent[:, :, None] * histograms).sum(1)

    def finish(self, state: State, whole: Any, frozen: Any, seen: Ints) -> Any:
        """End the block of the streams in which it is whole, and return of which no change is suspected."""
        weights, products = state["weights"], state["products"]
        posterior = weights * products
        gained = posterior.sum(1)
        bets = posterior[:, 1:].sum(1) / weights[:, 1:].sum(1)
        change = np.maximum(state["change"] + np.log(bets), 0.0)
        moved = self._moved(posterior / gained[:, None], state["blocks"] + 1)
        kept = state["histograms"] * self.kept[:, None]
        ended = {"weights": moved, "products": np.ones(products.shape), "histograms": kept}
        ended |= {"capital": state["capital"] + np.log(gained), "change": change, "blocks": state["blocks"] + 1}
        ended["return"] = np.maximum(state["return"], 0.0)
        for name, array in ended.items():
            state[name] = np.where(whole.reshape(-1, *[1] * (array.ndim - 1)), array, state[name])
        during = whole & frozen
        if during.any():
            now = self.bet_on(state["weights"][during], state["histograms"][during])
            state["changed"][during] += _RENEWED * (now - state["changed"][during])
        calm = whole & (state["change"] <= _CALM) & ~frozen
        state["since"] = np.where(calm, seen, state["since"])
        state["counts"] += state["recent"] * calm[:, None, None]
        state["recent"] *= ~calm[:, None, None]
        return calm


def bin_ranks(samples: Ints, edges: Sequence[float]) -> Ints:
    """Return for each group the least rank, of 0 to n, in each bin but the first: (G, m - 1).

    They depend on the numbers of samples alone: the masses of bins would not be Dirichlet's if they depended on the
    samples. Every bin has a rank in every group.
    """
    ranks: list[Ints] = []
    for edge in edges:
        rank = np.clip(np.rint(edge * (samples + 1)).astype(np.int64), 1, samples)
        if not ranks or (rank > ranks[-1]).all():
            ranks.append(rank)
    return np.stack(ranks, 1)


def gaps_of(ranks: Ints, samples: Ints) -> Floats:
    """Return how many of the n + 1 gaps between calibration scores each bin has: (G, m)."""
    return np.diff(ranks, axis=1, prepend=0, append=samples[:, None] + 1).astype(np.float64)
