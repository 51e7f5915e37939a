"""What the adapters of genie_bench share: the request, inputs from a seed, times, the answer. README.md says what both hold."""
import json
import math
import os
import sys
import time


class Unavailable(Exception):
    """The stack is not here, or cannot do what is asked for."""


def mix(h):
    """The finaliser of MurmurHash3, on integers or arrays of 64 bits that hold 32."""
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return h ^ (h >> 16)


def key_of(seed, place):
    return mix((seed * 1000003 + place) & 0xFFFFFFFF)


def summary(seconds):
    """Of the times of steps, as bench.h counts quantiles."""
    x = sorted(1e3 * t for t in seconds)
    at = lambda q: x[int(q * (len(x) - 1) + 0.5)]
    mean = min(max(math.fsum(x) / len(x), x[0]), x[-1])
    return {'mean': mean, 'p50': at(0.5), 'p95': at(0.95), 'min': x[0], 'max': x[-1]}


def timed(request, step):
    """step(number) runs one step and returns when it is over. Seconds of each timed one."""
    first, seconds = request['checks'], []
    for i in range(request['warmup'] + request['iters']):
        start = time.perf_counter()
        step(first + i)
        if i >= request['warmup']:
            seconds.append(time.perf_counter() - start)
    return seconds


def sample(flat, request):
    """Of a flat sequence with len(): the elements that are compared."""
    n = len(flat)
    return [float(flat[i * 7919 % n]) for i in range(min(n, request['sample']))]


def answer(request, seconds, result, peak, versions):
    return {'status': 'ok', 'latency_ms': summary(seconds),
            'throughput_tokens_per_sec': request['units_a_step'] * len(seconds) / math.fsum(seconds),
            'peak_memory_bytes': peak, 'versions': versions, 'result': result}


def measure(r, o, versions):
    """Runs a workload on a stack `o`: leaf, call, sample, argmax and wait; see numpy_cpu.py. Yields an answer a round."""
    import workloads
    specs = workloads.inputs(r)
    t = [o.leaf(spec, place) for place, spec in enumerate(specs)]
    slots = [i for i, spec in enumerate(specs) if spec.state]
    model, training = workloads.is_model(r), r['workload'] == 'training'

    def step(number):
        out, states = o.call(t, workloads.first_position(r, number) if model else 0)
        for i, state in zip(slots, states):
            t[i] = state
        return out

    def timed_step(number):
        out = step(number)
        if model:
            tokens = o.tokens(out)  # waits: the next tokens have come to the host
            if r['new'] == 1:
                t[0] = tokens
        elif training:
            o.item(out)
        else:
            o.wait(out)

    result = []
    for number in range(r['checks']):
        result += sample(o.flat(step(number)), r)
    while True:
        yield answer(r, timed(r, timed_step), result, o.peak(), versions)


def limit_threads(r, *variables):
    """Before a library is loaded that reads these."""
    for name in variables if r.get('threads') else ():
        os.environ[name] = str(r['threads'])


def host_peak():
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def my_turn():
    """Waits for the next round; False: there is none."""
    return os.read(int(os.environ['GENIE_BENCH_TURNS']), 1) != b''


def answers_of(run, request):
    """run(request) gives an answer, or yields one a round, or raises Unavailable. Answers, and whether more can follow."""
    try:
        out = run(request)
        many = not isinstance(out, dict)
        for one in out if many else [out]:
            yield one, many
    except (Unavailable, ImportError) as why:
        yield {'status': 'unavailable', 'reason': str(why)[:200] or type(why).__name__}, False
    except Exception as why:  # told in the answer, and in full on standard error
        import traceback
        traceback.print_exc()
        yield {'status': 'failed', 'reason': f'{type(why).__name__}: {why}'[:200]}, False


def main(run):
    request = json.loads(sys.stdin.readline())
    if request.get('schema') != 'genie-bench-request-1':
        raise SystemExit('a request of another schema')
    for name, value in request.items():
        if isinstance(value, float) and value == int(value):
            request[name] = int(value)
    left = request.get('rounds', 1) if 'GENIE_BENCH_TURNS' in os.environ else 1
    for out, more in answers_of(run, request):
        left -= 1
        print(json.dumps({**out, 'stays': True} if more and left else out, allow_nan=True), flush=True)
        if not more or not left or not my_turn():
            return


def gpu_number(device):
    """0 of cuda:0; None of the CPU."""
    if device == 'cpu':
        return None
    if device.startswith('cuda:') and device[5:].isdigit():
        return int(device[5:])
    raise Unavailable(f'no device {device} of this stack')
