"""PyTorch's side of bench_gpu's rows of convolutions, norms, pooling, matrices and networks: the program starts it,
with $TORCH_BENCH as the interpreter. bf16, channels last, cuDNN's fastest form; a CUDA graph holds the runs of a reading.
Networks are what torch.compile makes of them. Matrices are f32, and solved without a graph: its libraries do not let
themselves be captured.

A line in, a line out:
    conv IMAGES CHANNELS SIDE FILTERS KERNEL STRIDE GROUPS    what "time" times, padded to keep the side at stride 1
    norm IMAGES CHANNELS SIDE GROUPS                          in training over the batch (0 groups), else over groups
    pool IMAGES CHANNELS SIDE KERNEL STRIDE                   the maximum
    solve COUNT ROWS SIDES                                    matrices, for so many right sides each
    vit IMAGES                                                ViT-B/16, forward
    resnet_training IMAGES                                    ResNet-50: forward, cross entropy, gradients, SGD
    time N                                                    answers with the seconds of one of N runs
An answer is a number (0: ready) or "no WHY".
"""
import sys

import torch

nn, F = torch.nn, torch.nn.functional
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


class Layer(nn.Module):
    def __init__(self, dim, heads, inner):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(dim, eps=1e-6) for _ in range(2))
        self.qkv, self.out, self.up, self.down = (nn.Linear(*shape) for shape in (
            (dim, 3 * dim), (dim, dim), (dim, inner), (inner, dim)))

    def forward(self, x):
        n, places, dim = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(n, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, places, dim))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class ViT(nn.Module):
    def __init__(self, dim=768):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, 16, 16)
        self.first, self.places = (nn.Parameter(torch.randn(1, n, dim)) for n in (1, 197))
        self.layers = nn.Sequential(*(Layer(dim, 12, 4 * dim) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, 1000)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(len(x), -1, -1), x), 1) + self.places
        return self.head(self.norm(self.layers(x)[:, 0]))


def vit(images):
    model = torch.compile(ViT().cuda().bfloat16())
    x = torch.randn(images, 3, 224, 224, device='cuda', dtype=torch.bfloat16)
    return lambda: model(x)


class Bottleneck(nn.Module):
    def __init__(self, channels, thin, stride):
        super().__init__()

        def conv(came, goes, kernel, stride):
            return nn.Sequential(nn.Conv2d(came, goes, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(goes))
        self.way = nn.Sequential(conv(channels, thin, 1, 1), nn.ReLU(), conv(thin, thin, 3, stride), nn.ReLU(),
                                 conv(thin, 4 * thin, 1, 1))
        self.past = conv(channels, 4 * thin, 1, stride) if channels != 4 * thin else nn.Identity()

    def forward(self, x):
        return F.relu(self.way(x) + self.past(x))


def resnet_training(images):
    stages, channels = [], 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        for block in range(blocks):
            stages.append(Bottleneck(channels, 64 << stage, 2 if stage and not block else 1))
            channels = 256 << stage
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                          *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000, bias=False))
    model = model.cuda().bfloat16().to(memory_format=torch.channels_last)
    x, y = picture(images, 3, 224, 224), torch.arange(images, device='cuda') * 7919 % 1000
    sgd = torch.optim.SGD(model.parameters(), lr=0.001, fused=True)
    loss = torch.compile(lambda: F.cross_entropy(model(x), y))

    def work():
        with torch.enable_grad():
            loss().backward()
        sgd.step()
        sgd.zero_grad(set_to_none=True)
    return work


class Run:
    def __init__(self, work, captured):
        self.work, self.graphs, self.captured = work, {}, captured
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                work()
        torch.cuda.current_stream().wait_stream(stream)
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
                works = {'conv': conv, 'norm': norm, 'pool': pool, 'solve': solve, 'vit': vit,
                         'resnet_training': resnet_training}
                run, answer = Run(works[word](*map(int, numbers)), word != 'solve'), 0
        except Exception as why:   # told to the program, which says it in its row
            answer = 'no ' + ' '.join(str(why).split())[:200]
        print(answer, flush=True)


if __name__ == '__main__':
    with torch.no_grad():
        main()
