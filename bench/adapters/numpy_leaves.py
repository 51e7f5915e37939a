"""Inputs from the seed as NumPy arrays, for the stacks that take those."""
import numpy as np

import adapter


def hashes(seed, place, begin, end):
    i = np.arange(begin, end, dtype=np.int64)
    return adapter.mix((i & 0xFFFFFFFF) ^ adapter.key_of(seed, place))


def floats(spec, seed, place):
    """f32 (spec.shape); other dtypes round these to nearest even."""
    n = int(np.prod(spec.shape, dtype=np.int64))
    out = np.empty(n, np.float32)
    for at in range(0, n, 1 << 22):
        end = min(n, at + (1 << 22))
        u = (hashes(seed, place, at, end) >> 8).astype(np.float32) * np.float32(2.0 ** -23) - np.float32(1)
        out[at:end] = np.float32(spec.middle) + np.float32(spec.spread) * u
    return out.reshape(spec.shape)


def integers(spec, seed, place):
    n = int(np.prod(spec.shape, dtype=np.int64))
    return (hashes(seed, place, 0, n) % spec.below).reshape(spec.shape)
