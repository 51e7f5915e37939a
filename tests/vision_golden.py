#!/usr/bin/env python3
"""Golden file of tests/vision_test.c: logits of PyTorch's torchvision and timm for the random weights of examples/vision.

    python3 tests/vision_golden.py write tests/golden/vision.txt build/examples/vision    (needs torch, torchvision, timm)
    python3 tests/vision_golden.py check tests/golden/vision.txt build/examples/vision    the same, and compares
    python3 tests/vision_golden.py own . build/examples/vision       weights that the packages make themselves, no file

The program writes weights under either naming; the package's model must take all of them (strict), and its logits for one
picture, prepared by the package's own functions, are what the file holds. With `own`, the packages make random weights, also
in f16, and the program reads them.
"""
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from torchvision.transforms.v2 import functional as F

SIZE, CLASSES, WIDTH, HEIGHT = 64, 10, 100, 77
ARCHS = ("resnet18", "resnet50", "mobilenet_v3_large", "mobilenet_v3_small", "convnext_tiny", "vit_b_16")
TIMM = {"resnet18": "resnet18", "resnet50": "resnet50", "mobilenet_v3_large": "mobilenetv3_large_100",
        "mobilenet_v3_small": "mobilenetv3_small_100", "convnext_tiny": "convnext_tiny", "vit_b_16": "vit_base_patch16_224"}
TOLERANCE = 2e-5   # of the largest logit


def model(arch, names):
    if names == "timm":
        import timm
        size = {"img_size": SIZE} if arch.startswith("vit") else {}
        return timm.create_model(TIMM[arch], num_classes=CLASSES, **size).eval()
    import torchvision
    size = {"image_size": SIZE} if arch.startswith("vit") else {}
    return getattr(torchvision.models, arch)(weights=None, num_classes=CLASSES, **size).eval()


def picture():
    return bytes((i * i * 7 + i * 13 + i // 11) % 256 for i in range(WIDTH * HEIGHT * 3))


def prepare(arch):
    x = torch.tensor(list(picture()), dtype=torch.float32).reshape(HEIGHT, WIDTH, 3).permute(2, 0, 1) / 255
    resize = SIZE * (236 if arch.startswith("convnext") else 256) // 224
    x = F.center_crop(F.resize(x, [resize], antialias=True), [SIZE, SIZE])
    return F.normalize(x, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]).unsqueeze(0)


def run(program, folder, *arguments):
    out = os.path.join(folder, "logits.safetensors")
    path = os.path.join(folder, "picture.ppm")
    with open(path, "wb") as f:
        f.write(b"P6\n%d %d\n255\n" % (WIDTH, HEIGHT) + picture())
    subprocess.run([program, *arguments, "--size", str(SIZE), "--image", path, "--out", out], check=True, stdout=subprocess.DEVNULL)
    return load_file(out)["logits"]


def compare(what, ours, theirs):
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"{what}: the largest difference is {error:.2e} of the largest logit")
    return error <= TOLERANCE


def written(program):
    """Lines of the file, by weights that the program makes."""
    lines, ok = [], True
    for arch in ARCHS:
        for names in ("torchvision", "timm"):
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                ours = run(program, folder, "--random", arch, "--names", names, "--seed", "7", "--classes", str(CLASSES), "--save", folder)
                m = model(arch, names)
                state = load_file(os.path.join(folder, "model.safetensors"))
                counters = [k for k in m.state_dict() if k.endswith("num_batches_tracked")]
                shapes = {k: v.shape for k, v in m.state_dict().items()}
                state = {k: v.reshape(shapes[k]) if k in shapes else v for k, v in state.items()}
                m.load_state_dict(state | {k: torch.tensor(0) for k in counters}, strict=True)
                theirs = m(prepare(arch))
            ok = compare(f"{arch}, {names}", ours, theirs) and ok
            lines.append(f"{arch} {names} " + " ".join(f"{v:.9g}" for v in theirs[0].tolist()))
    return lines, ok


def own(program):
    ok = True
    for arch in ARCHS:
        for names in ("torchvision", "timm"):
            for dtype in (torch.float32, torch.float16):
                torch.manual_seed(3)
                m = model(arch, names)
                for name, t in m.state_dict().items():
                    if name.endswith("running_mean"):
                        t.normal_(0, 0.1)
                    elif name.endswith("running_var"):
                        t.uniform_(0.5, 1.5)
                    elif name.endswith(("layer_scale", "gamma")):
                        t.normal_(0.5, 0.1)
                    elif name.startswith("head"):   # zeros in torchvision's ViT
                        t.normal_(0, 0.1)
                    if t.is_floating_point():
                        t.copy_(t.to(dtype))
                with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                    state = {k: v.to(dtype).contiguous() if v.is_floating_point() else v for k, v in m.state_dict().items()}
                    save_file(state, os.path.join(folder, "model.safetensors"))
                    ours = run(program, folder, folder)
                    ok = compare(f"{arch}, {names}, {dtype}", ours, m(prepare(arch))) and ok
    return ok


def main():
    mode, path, program = sys.argv[1:]
    torch.set_num_threads(2)
    if mode == "own":
        return 0 if own(program) else 1
    lines, ok = written(program)
    if mode == "write":
        with open(path, "w") as f:
            f.write("\n".join(lines) + "\n")
        return 0 if ok else 1
    with open(path) as f:
        there = f.read().splitlines()
    for old, new in zip(there, lines, strict=True):
        a, b = old.split(), new.split()
        values = [torch.tensor([float(v) for v in x[2:]]) for x in (a, b)]
        ok = a[:2] == b[:2] and compare(f"golden file, {a[0]}, {a[1]}", *values) and ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
