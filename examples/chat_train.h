/* chat_train.h - a small model of bytes for examples/chat, trained on a poem and saved as a model of a hub is.
 * Included by chat.c behind language_model.h. */
#ifndef CHAT_TRAIN_H
#define CHAT_TRAIN_H

#include "byte_tokenizer.h"

#define TRAIN_PROMPT "'Twas brillig"

/* Lewis Carroll, Jabberwocky, 1871 */
static const char train_text[] = "'Twas brillig, and the slithy toves\n"
                                 "Did gyre and gimble in the wabe;\n"
                                 "All mimsy were the borogoves,\n"
                                 "And the mome raths outgrabe.\n\n"
                                 "\"Beware the Jabberwock, my son!\n"
                                 "The jaws that bite, the claws that catch!\n"
                                 "Beware the Jubjub bird, and shun\n"
                                 "The frumious Bandersnatch!\"\n\n"
                                 "He took his vorpal sword in hand:\n"
                                 "Long time the manxome foe he sought --\n"
                                 "So rested he by the Tumtum tree,\n"
                                 "And stood awhile in thought.\n\n"
                                 "And as in uffish thought he stood,\n"
                                 "The Jabberwock, with eyes of flame,\n"
                                 "Came whiffling through the tulgey wood,\n"
                                 "And burbled as it came!\n\n"
                                 "One, two! One, two! And through and through\n"
                                 "The vorpal blade went snicker-snack!\n"
                                 "He left it dead, and with its head\n"
                                 "He went galumphing back.\n\n"
                                 "\"And hast thou slain the Jabberwock?\n"
                                 "Come to my arms, my beamish boy!\n"
                                 "O frabjous day! Callooh! Callay!\"\n"
                                 "He chortled in his joy.\n\n"
                                 "'Twas brillig, and the slithy toves\n"
                                 "Did gyre and gimble in the wabe;\n"
                                 "All mimsy were the borogoves,\n"
                                 "And the mome raths outgrabe.\n";

enum {
    TRAIN_VOCAB = BYTE_TOKENIZER_TOKENS,
    TRAIN_DIM = 64,
    TRAIN_INNER = 160,
    TRAIN_LAYERS = 2,
    TRAIN_HEADS = 4,
    TRAIN_CONTEXT = 256,
    TRAIN_BATCH = 5,
    TRAIN_TOKENS = 160, /* of each sequence of a batch */
    TRAIN_TENSORS = 3 + 9 * TRAIN_LAYERS
};

typedef struct train_tensor {
    char name[80];
    int64_t dims[2];
    int rank;
    float *value;
} train_tensor;

static bool train_write_config(const char *folder) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"torch_dtype\":\"float32\","
             "\"vocab_size\":%d,\"hidden_size\":%d,\"intermediate_size\":%d,\"num_hidden_layers\":%d,"
             "\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"max_position_embeddings\":%d,"
             "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,"
             "\"eos_token_id\":%d}\n",
             TRAIN_VOCAB, TRAIN_DIM, TRAIN_INNER, TRAIN_LAYERS, TRAIN_HEADS, TRAIN_HEADS, TRAIN_CONTEXT,
             TRAIN_VOCAB - 1);
    return byte_tokenizer_put(folder, "config.json", text);
}

static uint64_t train_random(uint64_t *state) { /* xorshift64* (Vigna 2016) */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

/* Adds a tensor: gains are 1, the others uniform with a standard deviation of 1 / sqrt(cols). */
static void train_add(train_tensor *t, uint64_t *random, const char *name, int64_t rows, int64_t cols) {
    size_t n = (size_t)(rows ? rows * cols : cols);
    snprintf(t->name, sizeof t->name, "%s", name);
    t->rank = rows ? 2 : 1;
    t->dims[0] = rows ? rows : cols;
    t->dims[1] = cols;
    t->value = malloc(n * sizeof *t->value);
    double half = sqrt(3.0 / (double)cols);
    for (size_t i = 0; t->value && i < n; i++)
        t->value[i] = rows ? (float)(half * ((double)(train_random(random) >> 11) * 0x1p-52 - 1)) : 1;
}

static void train_tensors(train_tensor t[TRAIN_TENSORS]) {
    static const struct {
        const char *name;
        int rows, cols;
    } layer[] = { { "input_layernorm", 0, TRAIN_DIM },          { "self_attn.q_proj", TRAIN_DIM, TRAIN_DIM },
                  { "self_attn.k_proj", TRAIN_DIM, TRAIN_DIM }, { "self_attn.v_proj", TRAIN_DIM, TRAIN_DIM },
                  { "self_attn.o_proj", TRAIN_DIM, TRAIN_DIM }, { "post_attention_layernorm", 0, TRAIN_DIM },
                  { "mlp.gate_proj", TRAIN_INNER, TRAIN_DIM },  { "mlp.up_proj", TRAIN_INNER, TRAIN_DIM },
                  { "mlp.down_proj", TRAIN_DIM, TRAIN_INNER } };
    uint64_t random = UINT64_C(0xD1B54A32D192ED03);
    int n = 0;
    train_add(&t[n++], &random, "model.embed_tokens.weight", TRAIN_VOCAB, TRAIN_DIM);
    train_add(&t[n++], &random, "model.norm.weight", 0, TRAIN_DIM);
    train_add(&t[n++], &random, "lm_head.weight", TRAIN_VOCAB, TRAIN_DIM);
    for (int i = 0; i < TRAIN_LAYERS; i++)
        for (size_t k = 0; k < sizeof layer / sizeof *layer; k++) {
            char name[80];
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", i, layer[k].name);
            train_add(&t[n++], &random, name, layer[k].rows, layer[k].cols);
        }
}

static bool train_save(const char *folder, const train_tensor t[TRAIN_TENSORS]) {
    safetensors_tensor out[TRAIN_TENSORS];
    char path[PATH_MAX], error[SAFETENSORS_ERROR];
    for (int i = 0; i < TRAIN_TENSORS; i++) {
        if (!t[i].value) return false;
        int64_t n = t[i].dims[0] * (t[i].rank == 2 ? t[i].dims[1] : 1);
        out[i] = (safetensors_tensor){ .name = t[i].name,
                                       .dims = t[i].dims,
                                       .data = (const uint8_t *)t[i].value,
                                       .bytes = (uint64_t)n * sizeof(float),
                                       .rank = (uint8_t)t[i].rank,
                                       .dtype = SAFETENSORS_F32 };
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    const char *const format[] = { "format", "pt", NULL };
    bool ok = safetensors_write(path, out, TRAIN_TENSORS, format, error);
    if (!ok) fprintf(stderr, "%s\n", error);
    return ok;
}

/* The states of a model that is trained, by the names of its tensors. */
typedef struct trained {
    gn_tensor w[TRAIN_TENSORS], m[TRAIN_TENSORS], v[TRAIN_TENSORS];
} trained;

static void train_states(const lm_model *m, const train_tensor t[TRAIN_TENSORS], trained *out) {
    const char *name;
    gn_tensor w;
    gn_shape shape;
    for (int layer = -1; layer < TRAIN_LAYERS; layer++)
        for (int role = 0; role < LM_ROLES; role++) {
            if (!lm_tensor_at(m, layer, role, &name, &w, &shape)) continue;
            int i = 0;
            while (strcmp(t[i].name, name)) i++;
            out->w[i] = w;
            out->m[i] = gn_state(m->g, GN_F32, shape, NULL, "m");
            out->v[i] = gn_state(m->g, GN_F32, shape, NULL, "v");
        }
}

/* One step of AdamW on sequences from random places of the text. */
static bool train_step(const lm_model *m, const trained *s, int64_t step, int64_t steps, uint64_t *random,
                       float *loss) {
    int32_t ids[TRAIN_BATCH][TRAIN_TOKENS], next[TRAIN_BATCH][TRAIN_TOKENS];
    gn_tensor grads[TRAIN_TENSORS];
    const size_t size = sizeof train_text - 1; /* its end is followed by its beginning */
    for (int b = 0; b < TRAIN_BATCH; b++) {
        size_t at = train_random(random) % size;
        for (size_t i = 0; i < TRAIN_TOKENS; i++) {
            ids[b][i] = (unsigned char)train_text[(at + i) % size];
            next[b][i] = (unsigned char)train_text[(at + i + 1) % size];
        }
    }
    gn_tensor x =
        lm_forward_batch(m, gn_data(m->g, GN_I32, GN_SHAPE(TRAIN_BATCH, TRAIN_TOKENS), ids), TRAIN_BATCH, TRAIN_TOKENS);
    gn_tensor y = gn_data(m->g, GN_I32, GN_SHAPE(TRAIN_BATCH * TRAIN_TOKENS), next);
    gn_tensor l = gn_cross_entropy(lm_logits(m, x), y);
    gn_adamw_desc d = { .lr = gn_scalar(m->g, GN_F32, 4e-3 * (1 - (double)(step - 1) / (double)steps)),
                        .step = gn_scalar(m->g, GN_F32, (double)step) };
    if (!ex_check(m->g, gn_grad(l, s->w, TRAIN_TENSORS, grads), "gradients")) return false;
    return ex_check(m->g, gn_adamw(&d, s->w, grads, s->m, s->v, TRAIN_TENSORS), "AdamW") &&
           ex_check(m->g, gn_read(l, loss, sizeof *loss), "training") && ex_check(m->g, gn_step(m->g), "training");
}

static bool train_run(const char *folder, train_tensor t[TRAIN_TENSORS], lm_model *m, int64_t steps) {
    trained s = { 0 };
    char error[LM_ERROR];
    uint64_t random = 12345;
    float loss = 0;
    if (!lm_load(m, m->g, LM_STATES, error)) {
        fprintf(stderr, "%s\n", error);
        return false;
    }
    train_states(m, t, &s);
    for (int64_t i = 1; i <= steps && !ex_interrupted; i++) {
        if (!train_step(m, &s, i, steps, &random, &loss)) return false;
        if (isatty(STDERR_FILENO) && i % 10 == 0)
            fprintf(stderr, "\rstep %lld of %lld, loss %.3f\033[K", (long long)i, (long long)steps, (double)loss);
    }
    fprintf(stderr, "%strained %lld steps on %zu bytes, loss %.3f\n", isatty(STDERR_FILENO) ? "\r" : "",
            (long long)steps, sizeof train_text - 1, (double)loss);
    for (int i = 0; i < TRAIN_TENSORS; i++) {
        size_t n = (size_t)(t[i].dims[0] * (t[i].rank == 2 ? t[i].dims[1] : 1));
        if (!ex_check(m->g, gn_read(s.w[i], t[i].value, n * sizeof(float)), "reading the weights")) return false;
    }
    return !ex_interrupted && train_save(folder, t);
}

/* Writes a directory with a model that is not trained, opens it as any other, trains and writes it again. */
static bool train_small(const char *folder, int64_t steps) {
    train_tensor t[TRAIN_TENSORS];
    char error[LM_ERROR];
    lm_model *m = NULL;
    train_tensors(t);
    bool ok = train_write_config(folder) && byte_tokenizer_write(folder) && train_save(folder, t);
    if (ok) {
        m = lm_open(folder, GN_F32, error);
        if (!m) fprintf(stderr, "%s\n", error);
    }
    if (m) m->g = gn_open(NULL);
    ok = m && ex_check(m->g, gn_status(m->g), "cannot connect") && train_run(folder, t, m, steps);
    if (m) gn_close(m->g);
    lm_close(m);
    for (int i = 0; i < TRAIN_TENSORS; i++) free(t[i].value);
    return ok;
}

#endif
