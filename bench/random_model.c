/* Writes a model directory as hubs have it, with random weights in the shape of a published model: config.json,
 * model.safetensors in bf16, tokenizer.json. For timings of loading and decoding: nothing of value comes out of it.
 *
 *   ./build/bench/random_model DIR --shape llama_8b         16 GB
 *   ./build/bench/random_model DIR --shape gpt2 --smaller 4 heads, layers and vocabulary divided by 4: for trials
 *   ./build/bench/random_model DIR --shape llama_1b --noise bits that no compression shortens
 */
#define _DEFAULT_SOURCE
#include "../examples/common.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "../examples/byte_tokenizer.h"
#include "../examples/random.h"

typedef struct model_shape {
    const char *name;
    bool is_gpt2, tied; /* tied: the head is the table of tokens */
    int64_t layers, heads, groups, head, inner, vocab, context;
} model_shape;

/* Radford et al. 2019; Llama Team 2024. groups: heads of keys and values. */
static const model_shape shapes[] = {
    { "gpt2", true, true, 12, 12, 12, 64, 3072, 50257, 1024 },
    { "llama_1b", false, true, 16, 32, 8, 64, 8192, 128256, 131072 },
    { "llama_8b", false, false, 32, 32, 8, 128, 14336, 128256, 131072 },
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* ---- what the file holds ---- */

enum { MAX_TENSORS = 600, HEADER = 1 << 18, VALUES = 1 << 16, PIECE = 1 << 22, MAX_THREADS = 64 };

typedef struct tensor {
    uint64_t begin, end; /* bytes of the file */
    bool gain;
} tensor;

typedef struct model {
    model_shape s;
    const char *folder;
    bool noise;
    tensor t[MAX_TENSORS];
    int n, fd;
    size_t head;        /* bytes of `header` */
    uint64_t bytes;     /* of the file */
    atomic_ullong next; /* place of the next piece that a thread takes */
    atomic_int error;   /* errno of the first thing that failed */
    char header[HEADER];
    uint16_t values[2][VALUES]; /* what weights and what gains are drawn from, bf16 */
} model;

static void put(model *m, const char *format, ...) {
    va_list args;
    va_start(args, format);
    m->head += (size_t)vsnprintf(m->header + m->head, HEADER - m->head, format, args);
    va_end(args);
}

/* columns 0: a vector. layer < 0: of no layer. */
static void add(model *m, int64_t layer, const char *name, int64_t rows, int64_t columns, bool gain) {
    const char *folder = m->s.is_gpt2 ? "h" : "model.layers";
    uint64_t begin = m->n ? m->t[m->n - 1].end : 0, n = (uint64_t)(rows * (columns ? columns : 1));
    m->t[m->n++] = (tensor){ begin, begin + 2 * n, gain };
    put(m, m->n > 1 ? ",\"" : "{\"");
    if (layer >= 0) put(m, "%s.%lld.", folder, (long long)layer);
    put(m, "%s\":{\"dtype\":\"BF16\",\"shape\":[%lld", name, (long long)rows);
    if (columns) put(m, ",%lld", (long long)columns);
    put(m, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin, (unsigned long long)(begin + 2 * n));
}

static void add_gpt2(model *m) {
    int64_t d = m->s.heads * m->s.head, f = m->s.inner;
    const struct {
        const char *name;
        int64_t rows, columns;
        bool gain;
    } layer[] = { { "ln_1.weight", d, 0, true },
                  { "ln_1.bias", d, 0, false },
                  { "attn.c_attn.weight", d, 3 * d, false },
                  { "attn.c_attn.bias", 3 * d, 0, false },
                  { "attn.c_proj.weight", d, d, false },
                  { "attn.c_proj.bias", d, 0, false },
                  { "ln_2.weight", d, 0, true },
                  { "ln_2.bias", d, 0, false },
                  { "mlp.c_fc.weight", d, f, false },
                  { "mlp.c_fc.bias", f, 0, false },
                  { "mlp.c_proj.weight", f, d, false },
                  { "mlp.c_proj.bias", d, 0, false } };
    add(m, -1, "wte.weight", m->s.vocab, d, false);
    add(m, -1, "wpe.weight", m->s.context, d, false);
    add(m, -1, "ln_f.weight", d, 0, true);
    add(m, -1, "ln_f.bias", d, 0, false);
    for (int64_t l = 0; l < m->s.layers; l++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++)
            add(m, l, layer[i].name, layer[i].rows, layer[i].columns, layer[i].gain);
}

static void add_llama(model *m) {
    int64_t d = m->s.heads * m->s.head, kv = m->s.groups * m->s.head, f = m->s.inner;
    const struct {
        const char *name;
        int64_t rows, columns;
    } layer[] = { { "input_layernorm.weight", d, 0 },   { "self_attn.q_proj.weight", d, d },
                  { "self_attn.k_proj.weight", kv, d }, { "self_attn.v_proj.weight", kv, d },
                  { "self_attn.o_proj.weight", d, d },  { "post_attention_layernorm.weight", d, 0 },
                  { "mlp.gate_proj.weight", f, d },     { "mlp.up_proj.weight", f, d },
                  { "mlp.down_proj.weight", d, f } };
    add(m, -1, "model.embed_tokens.weight", m->s.vocab, d, false);
    add(m, -1, "model.norm.weight", d, 0, true);
    if (!m->s.tied) add(m, -1, "lm_head.weight", m->s.vocab, d, false);
    for (int64_t l = 0; l < m->s.layers; l++)
        for (size_t i = 0; i < sizeof layer / sizeof *layer; i++)
            add(m, l, layer[i].name, layer[i].rows, layer[i].columns, !layer[i].columns);
}

/* Length, header and blanks up to a multiple of 8 bytes. */
static void end_header(model *m) {
    put(m, "}");
    while (m->head % 8) put(m, " ");
    if (m->head >= HEADER - 8) exit((fprintf(stderr, "too many tensors\n"), EX_FAILED));
    uint64_t length = m->head;
    memmove(m->header + 8, m->header, m->head);
    memcpy(m->header, &length, 8);
    m->head += 8;
    m->bytes = m->head + m->t[m->n - 1].end;
}

static bool write_config(const model *m) {
    char text[1024];
    long long d = m->s.heads * m->s.head, layers = m->s.layers, heads = m->s.heads, vocab = m->s.vocab,
              context = m->s.context;
    if (m->s.is_gpt2)
        snprintf(text, sizeof text,
                 "{\"architectures\":[\"GPT2LMHeadModel\"],\"model_type\":\"gpt2\",\"torch_dtype\":\"bfloat16\","
                 "\"vocab_size\":%lld,\"n_embd\":%lld,\"n_layer\":%lld,\"n_head\":%lld,\"n_positions\":%lld,"
                 "\"n_inner\":%lld,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-5}\n",
                 vocab, d, layers, heads, context, (long long)m->s.inner);
    else
        snprintf(text, sizeof text,
                 "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"torch_dtype\":\"bfloat16\","
                 "\"vocab_size\":%lld,\"hidden_size\":%lld,\"num_hidden_layers\":%lld,\"num_attention_heads\":%lld,"
                 "\"num_key_value_heads\":%lld,\"head_dim\":%lld,\"intermediate_size\":%lld,"
                 "\"max_position_embeddings\":%lld,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,"
                 "\"rope_theta\":500000.0,\"tie_word_embeddings\":%s}\n",
                 vocab, d, layers, heads, (long long)m->s.groups, (long long)m->s.head, (long long)m->s.inner, context,
                 m->s.tied ? "true" : "false");
    return byte_tokenizer_put(m->folder, "config.json", text);
}

/* ---- numbers ---- */

/* Weights: bell-shaped with deviation 0.02, as models begin. noise: sign, fraction and 7 bits of the exponent are
 * drawn evenly, up to 2^-2, which has about the same deviation. Gains are about 1. */
static void make_values(model *m) {
    uint64_t state = random_begin(1, 0);
    for (uint32_t i = 0; i < VALUES; i++) {
        uint32_t sign = i & 0x8000u, rest = i & 0x3fffu;
        double x = random_normal(&state);
        rest = rest < 0x180 ? rest & 0x7f : rest - 0x180; /* the largest exponent is 124 */
        m->values[0][i] = m->noise ? (uint16_t)(sign | rest) : gn_f32_to_bf16((float)(0.02 * x));
        m->values[1][i] = gn_f32_to_bf16((float)(1 + 0.05 * x));
    }
}

/* Numbers of the file's bytes [begin, end), which are of one tensor or of several. */
static void draw_piece(const model *m, uint64_t begin, uint64_t end, uint16_t *out) {
    uint64_t state = random_begin(2, begin / PIECE);
    int i = 0;
    while (m->t[i].end <= begin) i++;
    for (uint64_t at = begin; at < end; i++) {
        const uint16_t *values = m->values[m->t[i].gain];
        uint64_t stop = m->t[i].end < end ? m->t[i].end : end;
        for (; at + 8 <= stop; at += 8, out += 4) {
            uint64_t x = random_next(&state);
            for (int k = 0; k < 4; k++) out[k] = values[x >> (16 * k) & (VALUES - 1)];
        }
        for (; at < stop; at += 2) *out++ = values[random_next(&state) >> 48];
    }
}

static bool write_all(int fd, const void *data, size_t n, uint64_t at) {
    const char *p = data;
    while (n > 0) {
        ssize_t done = pwrite(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return false;
        p += done, n -= (size_t)done, at += (uint64_t)done;
    }
    return true;
}

static void *write_pieces(void *arg) {
    model *m = arg;
    uint64_t end = m->t[m->n - 1].end, at;
    uint16_t *piece = malloc(PIECE);
    if (!piece) m->error = ENOMEM;
    while (piece && !m->error && (at = atomic_fetch_add(&m->next, PIECE)) < end) {
        uint64_t stop = end - at < PIECE ? end : at + PIECE;
        draw_piece(m, at, stop, piece);
        if (!write_all(m->fd, piece, stop - at, m->head + at)) m->error = errno;
    }
    free(piece);
    return NULL;
}

static bool write_weights(model *m, int64_t threads) {
    char path[PATH_MAX];
    pthread_t thread[MAX_THREADS];
    int64_t started = 1;
    snprintf(path, sizeof path, "%s/model.safetensors", m->folder);
    m->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (m->fd < 0 || !write_all(m->fd, m->header, m->head, 0)) m->error = errno;
    while (!m->error && started < threads && !pthread_create(&thread[started], NULL, write_pieces, m)) started++;
    if (!m->error) write_pieces(m);
    for (int64_t i = 1; i < started; i++) pthread_join(thread[i], NULL);
    if (m->fd >= 0 && close(m->fd) && !m->error) m->error = errno;
    if (m->error) fprintf(stderr, "%s: %s\n", path, strerror(m->error));
    return !m->error;
}

/* ---- the command line ---- */

/* Heads, layers, the MLP and the vocabulary by `by`, at least one group, two layers and the tokens there are. */
static void make_smaller(model_shape *s, int64_t by) {
    s->heads = s->heads / by > 0 ? s->heads / by : 1;
    s->groups = s->groups / by > 0 && s->heads % (s->groups / by) == 0 ? s->groups / by : 1;
    s->layers = s->layers / by > 2 ? s->layers / by : 2;
    s->inner = s->inner / by / 64 * 64 > 64 ? s->inner / by / 64 * 64 : 64;
    s->vocab = s->vocab / by > BYTE_TOKENIZER_TOKENS ? s->vocab / by : BYTE_TOKENIZER_TOKENS;
}

int main(int argc, char **argv) {
    static model m;
    const char *shape = "gpt2";
    int64_t smaller = 1, threads = sysconf(_SC_NPROCESSORS_ONLN), i = 0;
    const ex_option options[] = {
        { "shape", EX_TEXT, &shape, "NAME", "gpt2 (124M), llama_1b or llama_8b (gpt2)", 0, 0 },
        { "smaller", EX_INT, &smaller, "N", "divide heads, layers, MLP and vocabulary by N (1)", 1, 64 },
        { "noise", EX_FLAG, &m.noise, NULL, "weights that no compression shortens; without it, bell-shaped ones", 0,
          0 },
        { "threads", EX_INT, &threads, "N", "writers at once (one a processor)", 1, MAX_THREADS },
        { NULL, EX_FLAG, NULL, NULL, NULL, 0, 0 },
    };
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (argc > 1 && argv[1][0] != '-') m.folder = argv[1], argv[1] = argv[0], argc--, argv++;
    ex_operand = "DIR ";
    ex_parse(argc, argv, "random_model writes a model directory with random weights.", options);
    while (i < SHAPES && strcmp(shapes[i].name, shape)) i++;
    if (i == SHAPES) ex_usage(argv[0], "--shape is gpt2, llama_1b or llama_8b, not '%s'", shape);
    if (!m.folder) ex_usage(argv[0], "a directory to write to comes first");
    m.s = shapes[i];
    if (smaller > 1) make_smaller(&m.s, smaller);
    double start = ex_now();
    if (mkdir(m.folder, 0777) && errno != EEXIST) return perror(m.folder), EX_FAILED;
    m.s.is_gpt2 ? add_gpt2(&m) : add_llama(&m);
    end_header(&m);
    make_values(&m);
    if (!write_config(&m) || !byte_tokenizer_write(m.folder) || !write_weights(&m, threads)) return EX_FAILED;
    printf("%s: %s, %.3f GB in %.1f s\n", m.folder, shape, 1e-9 * (double)m.bytes, ex_now() - start);
    return EX_OK;
}
