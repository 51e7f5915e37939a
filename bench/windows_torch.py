"""PyTorch's side of bench_gpu's rows of convolutions, norms, pooling and matrices: the program starts it, with
$TORCH_BENCH as the interpreter. bf16, channels last, cuDNN's fastest form; a CUDA graph holds the runs of a reading.
Matrices are f32, and solved without a graph: its libraries do not let themselves be captured.

A line in, a line out:
    conv IMAGES CHANNELS SIDE FILTERS KERNEL STRIDE GROUPS    what "time" times, padded to keep the side at stride 1
    norm IMAGES CHANNELS SIDE GROUPS                          in training over the batch (0 groups), else over groups
    pool IMAGES CHANNELS SIDE KERNEL STRIDE                   the maximum
    solve COUNT ROWS SIDES                                    matrices, for so many right sides each
    time N                                                    answers with the seconds of one of N runs
An answer is a number (0: ready) or "no WHY".
"""
import sys

import torch

F = torch.nn.functional
torch.backends.cudnn.benchmark = True


def picture(*shape):
    return torch.randn(*shape, device='cuda', dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)


def conv(images, channels, side, filters, kernel, stride, groups):
    x, w = picture(images, channels, side, side), picture(filters, channels // groups, kernel, kernel)
    return lambda: F.conv2d(x, w, stride=stride, padding=kernel // 2, groups=groups)


def norm(images, channels, side, groups):
    x = picture(images, channels, side, side)
    scale, shift = (torch.ones(channels, device='cuda', dtype=torch.bfloat16) for _ in range(2))
    if groups:
        return lambda: F.group_norm(x, groups, scale, shift)
    return lambda: F.batch_norm(x, None, None, scale, shift, training=True)


def pool(images, channels, side, kernel, stride):
    x = picture(images, channels, side, side)
    return lambda: F.max_pool2d(x, kernel, stride, kernel // 2 if kernel % 2 else 0)


def solve(count, rows, sides):
    a, b = torch.rand(count, rows, rows, device='cuda') * 2 - 1, torch.rand(count, rows, sides, device='cuda')
    return lambda: torch.linalg.solve_ex(a, b)


class Run:
    def __init__(self, work, captured):
        self.work, self.graphs, self.captured = work, {}, captured
        for _ in range(3):
            work()
        torch.cuda.synchronize()

    def seconds(self, n):
        if n not in self.graphs and self.captured:
            self.graphs[n] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graphs[n]):
                for _ in range(n):
                    self.work()
            self.graphs[n].replay()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        if self.captured:
            self.graphs[n].replay()
        for _ in range(0 if self.captured else n):
            self.work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3 / n


def main():
    run = None
    for line in sys.stdin:
        word, *numbers = line.split()
        try:
            if word == 'time':
                answer = run.seconds(int(numbers[0]))
            else:
                works = {'conv': conv, 'norm': norm, 'pool': pool, 'solve': solve}
                run, answer = Run(works[word](*map(int, numbers)), word != 'solve'), 0
        except Exception as why:   # told to the program, which says it in its row
            answer = 'no ' + ' '.join(str(why).split())[:200]
        print(answer, flush=True)


if __name__ == '__main__':
    with torch.no_grad():
        main()
