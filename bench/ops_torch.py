"""PyTorch's side of bench_core's rows ops_: the program starts it, with $TORCH_BENCH as the interpreter.

    ops_torch.py DESCRIPTOR THREADS

Tensors lie in the file of that descriptor, which both map. A line in, a line out ("in" and "let" have no answer):
    new                             forgets tensors and numbers
    in NAME DTYPE OFFSET DIM...     a tensor, copied from the file
    let NAME NUMBER                 a number; "let dt DTYPE" a dtype
    do OFFSET EXPRESSION            computes, puts the results there one after the other, each at a multiple of 64;
                                    answers "ok DTYPE COUNT DTYPE COUNT..." or "no WHY"
    time N                          runs it for WAKE seconds, once at least, then answers with the seconds that N times
                                    of it take: the processor's with one thread
"""
import mmap
import os
import sys
import time

import torch

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16, "i8": torch.int8,
    "i16": torch.int16, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8, "bool": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
F = torch.nn.functional
WAKE = 5e-3


def lenet(images, labels, weights):
    """One step of LeNet-5 by plain descent, as bench/ops.h has it: the loss and the new parameters."""
    p = [w.detach().requires_grad_() for w in weights]
    with torch.enable_grad():
        x = F.conv2d(images, p[0].view(6, 1, 5, 5), p[1].view(6), padding=2)
        x = F.max_pool2d(F.relu(x), 2)
        x = F.conv2d(x, p[2].view(16, 6, 5, 5), p[3].view(16))
        x = F.max_pool2d(F.relu(x), 2).flatten(1)
        x = F.relu(torch.addmm(p[5], x, p[4]))
        x = F.relu(torch.addmm(p[7], x, p[6]))
        loss = F.cross_entropy(torch.addmm(p[9], x, p[8]), labels)
        grads = torch.autograd.grad(loss, p)
    return (loss, *(w - 0.01 * g for w, g in zip(weights, grads)))


def rotary(x, positions):
    half = x.shape[-1] // 2
    angles = positions[:, None].double() * 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def components(a):
    """Connected components of grids, along axes: each element takes the least place around it until none changes."""
    b, h, w = a.shape
    place = torch.arange(h * w).view(1, h, w).expand(b, h, w).clone()
    while True:
        before = place.clone()
        for axis in (1, 2):
            n = a.shape[axis] - 1
            p, q = place.narrow(axis, 0, n), place.narrow(axis, 1, n)
            same = a.narrow(axis, 0, n) == a.narrow(axis, 1, n)
            least = torch.minimum(p, q)
            p.copy_(torch.where(same, least, p))
            q.copy_(torch.where(same, torch.minimum(p, q), q))
        if torch.equal(before, place):
            return place


def suppress(boxes, scores, bound, overlap):
    """Non-maximum suppression of boxes (N,4), centres and sizes, by PyTorch's own ops."""
    corners = torch.cat((boxes[:, :2] - boxes[:, 2:] / 2, boxes[:, :2] + boxes[:, 2:] / 2), 1)
    low, high = torch.minimum(corners[:, :2], corners[:, 2:]), torch.maximum(corners[:, :2], corners[:, 2:])
    area, left, kept = (high - low).prod(1), scores.argsort(descending=True), []
    while len(left) and len(kept) < bound:
        best, left = left[0], left[1:]
        kept.append(best)
        both = (torch.minimum(high[best], high[left]) - torch.maximum(low[best], low[left])).clamp(min=0).prod(1)
        left = left[both <= overlap * (area[best] + area[left] - both)]
    return torch.stack(kept)


class Case:
    def __init__(self, memory):
        self.memory = memory
        self.clear()

    def clear(self):
        self.known = {"torch": torch, "F": F, "lenet": lenet, "rotary": rotary, "components": components,
                      "suppress": suppress}
        self.run = None

    def tensor(self, name, dtype, offset, *dims):
        dims = [int(d) for d in dims]
        count = 1
        for d in dims:
            count *= d
        flat = torch.frombuffer(self.memory, dtype=DTYPES[dtype], count=count, offset=int(offset))
        self.known[name] = flat.reshape(dims).clone()

    def let(self, name, value):
        self.known[name] = DTYPES[value] if name == "dt" else int(value)

    def do(self, offset, expression):
        at, said = int(offset), []
        try:
            self.run = eval("lambda: " + expression, self.known)
            results = self.run()
            for r in results if isinstance(results, tuple) else (results,):
                size = r.numel() * r.element_size()
                if size:
                    to = torch.frombuffer(self.memory, dtype=r.dtype, count=r.numel(), offset=at)
                    to.copy_(r.reshape(-1))
                said.append(f"{NAMES[r.dtype]} {r.numel()}")
                at += (size + 63) // 64 * 64
        except Exception as e:
            return "no " + " ".join(str(e).split())[:160]
        return "ok " + " ".join(said)

    def time(self, count):
        run, clock = self.run, time.process_time if torch.get_num_threads() == 1 else time.perf_counter
        awake = time.perf_counter() + WAKE
        run()
        while time.perf_counter() < awake:
            run()
        start = clock()
        for _ in range(int(count)):
            run()
        return f"{clock() - start:.9f}"


def main():
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(int(sys.argv[2]))
    torch.set_grad_enabled(False)
    case = Case(mmap.mmap(int(sys.argv[1]), 0))
    out.write(f"ready {torch.__version__} {torch.get_num_threads()}\n")
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "new":
            case.clear()
        elif word == "in":
            case.tensor(*rest.split())
        elif word == "let":
            case.let(*rest.split())
        elif word == "do":
            out.write(case.do(*rest.split(" ", 1)) + "\n")
        elif word == "time":
            out.write(case.time(rest) + "\n")
        else:
            sys.exit(f"ops_torch.py: '{word}' is not known")


main()
