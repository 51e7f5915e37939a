#!/usr/bin/env bash
# Files that the formats' own packages write (safetensors, gguf, from PyPI), as the readers under examples/formats see
# them: names, shapes, every value. The other way round for what they write. Skipped where a package is missing;
# tests/oracles.txt names them.
# Tier: quick
. "$(dirname "$0")/script.sh"
export PYTHONPATH=$ROOT/build/oracles${PYTHONPATH:+:$PYTHONPATH}

# Prints each tensor: name, type, dimensions, FNV-1a of its bytes; writes GGUF's as f32 to NAME.f32.
write_reader() {
    cat >"$WORK/read.c" <<'TEXT'
#define SAFETENSORS_IMPLEMENTATION
#include "examples/formats/safetensors.h"
#define GGUF_IMPLEMENTATION
#include "examples/formats/gguf.h"

static void line(const char *name, size_t size, const char *type, int rank, const int64_t *dims, const uint8_t *data, uint64_t n) {
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (uint64_t i = 0; i < n; i++) h = (h ^ data[i]) * UINT64_C(0x100000001b3);
    printf("%.*s %s [", (int)size, name, type);
    for (int d = 0; d < rank; d++) printf("%s%" PRId64, d ? "," : "", dims[d]);
    printf("] %016" PRIx64 "\n", h);
}

static int read_safetensors(const char *path) {
    char error[SAFETENSORS_ERROR];
    safetensors *s = safetensors_open(path, error);
    for (size_t i = 0; s && i < safetensors_count(s); i++) {
        const safetensors_tensor *t = safetensors_at(s, i);
        line(t->name, strlen(t->name), safetensors_dtype_name(t->dtype), t->rank, t->dims, t->data, t->bytes);
    }
    if (!s) puts(error);
    safetensors_close(s);
    return s == NULL;
}

static int read_gguf(const char *path, const char *folder) {
    char error[GGUF_ERROR], out[512];
    gguf *g = gguf_open(path, error);
    gguf_tensor t;
    for (size_t i = 0; g && gguf_at(g, i, &t); i++) {
        uint64_t n = gguf_elements(&t);
        float *x = malloc((size_t)n * 4 + 1);
        line(t.name.text, (size_t)t.name.size, gguf_type_name(t.type), (int)t.rank, t.dims, t.data, t.bytes);
        snprintf(out, sizeof out, "%s/%.*s.f32", folder, (int)t.name.size, t.name.text);
        FILE *f = fopen(out, "wb");
        if (!x || !f || !gguf_to_f32(t.type, t.data, n, x) || fwrite(x, 4, (size_t)n, f) != n || fclose(f)) return 1;
        free(x);
    }
    if (!g) puts(error);
    gguf_close(g);
    return g == NULL;
}

static int write_safetensors(const char *path) {
    static const int64_t dims[2] = { 3, 5 };
    static const char *const metadata[] = { "format", "pt", "quote\"", "\xc3\xa4\n", NULL };
    float x[15];
    char error[SAFETENSORS_ERROR];
    for (int i = 0; i < 15; i++) x[i] = (float)i * 0.5f;
    safetensors_tensor t[2] = { { "a.weight", dims, (const uint8_t *)x, 60, 0, SAFETENSORS_F32, 2 },
                                { "flag \xe2\x82\xac", NULL, (const uint8_t *)"\1", 1, 0, SAFETENSORS_BOOL, 0 } };
    bool ok = safetensors_write(path, t, 2, metadata, error);
    if (!ok) puts(error);
    return !ok;
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "write")) return write_safetensors(argv[2]);
    if (argc == 3 && !strcmp(argv[1], "safetensors")) return read_safetensors(argv[2]);
    return argc == 4 ? read_gguf(argv[2], argv[3]) : 2;
}
TEXT
    $CC -std=gnu11 -O1 -g ${SAN:+-fsanitize=$SAN -fno-sanitize-recover=all} -Wall -Wextra -Wconversion -Wshadow -Werror -I. \
        "$WORK/read.c" -o "$WORK/read" -lm -lpthread
}

cat >"$WORK/oracle.py" <<'TEXT'
import json, os, subprocess, sys
import numpy as np
work = sys.argv[2]
rng = np.random.default_rng(7)

def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = ((h ^ b) * 0x100000001b3) & (2**64 - 1)
    return f'{h:016x}'

def read(*args):
    done = subprocess.run([work + '/read', *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()

def check(got, tensors):
    want = sorted(f'{name} {kind} [{",".join(map(str, shape))}] {fnv(data)}' for name, kind, shape, data in tensors)
    assert sorted(got) == want, f'{got}\nnot\n{want}'

def random_tensors(n):
    kinds = {'F32': np.float32, 'F64': np.float64, 'F16': np.float16, 'I8': np.int8, 'I16': np.int16, 'I32': np.int32, 'I64': np.int64,
             'U8': np.uint8, 'U16': np.uint16, 'U32': np.uint32, 'U64': np.uint64, 'BOOL': np.bool_}
    out = {}
    for i in range(n):
        kind = rng.choice(list(kinds))
        shape = tuple(int(d) for d in rng.integers(0, 6, rng.integers(0, 6)))
        out[f'layer.{i}.gewicht_ä\"\\\t{i}'.replace('\t', ' ')] = (kind, np.asarray(rng.standard_normal(shape) * 50).astype(kinds[kind]))
    return out

def safetensors_files():
    from safetensors.numpy import save_file
    for n in (0, 1, 3, 200):
        tensors = random_tensors(n)
        save_file({name: x for name, (_, x) in tensors.items()}, work + '/a.safetensors', metadata={'format': 'np', 'ü': '"'})
        check(read('safetensors', work + '/a.safetensors'), [(name, k, x.shape, x.tobytes()) for name, (k, x) in tensors.items()])

def safetensors_shards():
    from safetensors.numpy import save_file
    folder, tensors, names = work + '/shards', random_tensors(30), {}
    os.makedirs(folder, exist_ok=True)
    for k in range(3):
        part = dict(list(tensors.items())[k::3])
        file = f'model-{k + 1:05}-of-00003.safetensors'
        save_file({name: x for name, (_, x) in part.items()}, f'{folder}/{file}')
        names.update({name: file for name in part})
    json.dump({'metadata': {'total_size': 1}, 'weight_map': names}, open(folder + '/model.safetensors.index.json', 'w'), indent=2)
    check(read('safetensors', folder), [(name, k, x.shape, x.tobytes()) for name, (k, x) in tensors.items()])

def safetensors_written():
    from safetensors import safe_open
    read('write', work + '/w.safetensors')
    with safe_open(work + '/w.safetensors', 'np') as f:
        assert f.metadata() == {'format': 'pt', 'quote"': 'ä\n'}, f.metadata()
        assert (f.get_tensor('a.weight') == (np.arange(15, dtype=np.float32) / 2).reshape(3, 5)).all()
        assert f.get_tensor('flag €').shape == () and f.get_tensor('flag €').item() is True

def gguf_blocks():
    from gguf import GGUFWriter, GGMLQuantizationType as Type
    from gguf.quants import dequantize, quantize
    writer, want, lines = GGUFWriter(work + '/a.gguf', 'llama'), {}, []
    writer.add_array('tokenizer.ggml.tokens', ['a', 'ü', ''])
    writer.add_uint32('llama.block_count', 2)
    writer.add_float64('x', 0.5)
    def add(name, kind, data, rows, columns):
        writer.add_tensor(name, data, raw_dtype=kind)
        want[name] = dequantize(data, kind).astype(np.float32)
        lines.append((name, kind.name, (rows, columns), data.tobytes()))
    for kind in (Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1):
        add('made.' + kind.name, kind, quantize(rng.standard_normal((5, 512)).astype(np.float32) * 3, kind), 5, 512)
    for kind, block, scales in ((Type.Q4_K, 144, (0, 2)), (Type.Q5_K, 176, (0, 2)), (Type.Q6_K, 210, (208,))):
        data = rng.integers(0, 256, (7, 4, block), dtype=np.uint8)       # any bits but for the scales, which are finite
        for at in scales:
            data[:, :, at:at + 2] = rng.standard_normal((7, 4)).astype(np.float16).view(np.uint8).reshape(7, 4, 2)
        add('bits.' + kind.name, kind, data.reshape(7, 4 * block), 7, 1024)
    writer.write_header_to_file(); writer.write_kv_data_to_file(); writer.write_tensors_to_file(); writer.close()
    check(read('gguf', work + '/a.gguf', work), lines)
    for name, x in want.items():
        got = np.fromfile(f'{work}/{name}.f32', np.float32).reshape(x.shape)
        assert np.array_equal(got, x), f'{name}: {np.abs(got - x).max()}'

globals()[sys.argv[1]]()
TEXT

oracle() { python3 "$WORK/oracle.py" "$1" "$WORK"; }
missing=$(for module in numpy safetensors gguf; do python3 -c "import $module" 2>/dev/null || printf ' %s' "$module"; done)
check reader_compiles write_reader
for name in safetensors_files safetensors_shards safetensors_written gguf_blocks; do
    if [ -z "$missing" ]; then
        check "${name}_are_as_their_package_has_them" oracle $name
    else
        skip "${name}_are_as_their_package_has_them" "python3 has no$missing (pip install --target build/oracles -r tests/oracles.txt)"
    fi
done
finish
