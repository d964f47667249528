"""Angles between signatures by plain double loops, one pair and one column at a time."""

import math

import numpy as np


def _angle(u, w) -> float:
    """Degrees between two lines, from sine and cosine, so that small angles are right, too."""
    u = np.asarray(u, np.float64)
    w = np.asarray(w, np.float64)
    u = u / math.sqrt(float(u @ u))
    w = w / math.sqrt(float(w @ w))
    cosine = float(u @ w)
    across = w - cosine * u
    return math.degrees(math.atan2(math.sqrt(float(across @ across)), abs(cosine)))


def trace(bases, mask):
    """Float64 [N, N]: sum over the columns real in both of the angle between corresponding columns."""
    result = np.zeros((len(bases), len(bases)))
    for i, j in np.ndindex(result.shape):
        if i != j:
            common = [k for k in range(bases.shape[2]) if mask[i, k] and mask[j, k]]
            result[i, j] = sum(_angle(bases[i][:, k], bases[j][:, k]) for k in common)
    return result


def smallest_entry(bases, mask):
    """Float64 [N, N]: the smallest angle between any real column of one and any real column of the other."""
    result = np.zeros((len(bases), len(bases)))
    for i, j in np.ndindex(result.shape):
        if i != j:
            ours = np.flatnonzero(mask[i])
            theirs = np.flatnonzero(mask[j])
            result[i, j] = min(_angle(bases[i][:, k], bases[j][:, m]) for k in ours for m in theirs)
    return result
