/* What each recogniser of parts of models is worth in steps that run, over two devices of given costs: with it and
 * without it (gn_desc.unrecognised) results are the same bits, ops run elsewhere, and more bytes cross without it.
 *
 * Tier: quick address */
#define GENIE_EXT
#define GENIE_IMPLEMENTATION
#include "genie.h"
#include "test.h"

enum { ROWS = 8, DIM = 64, HEADS = 4, HEAD = DIM / HEADS, WORDS = 96, SIDE = 16, MOST = 1 << 15 };

static gn_ctx *g;
static float numbers[1 << 16];
static int32_t ids[64];

/* ---- parts of models ---- */

static gn_tensor weight(gn_shape s) { return gn_weight(g, GN_F32, s, numbers, "w"); }
static gn_tensor given(gn_shape s) { return gn_data(g, GN_F32, s, numbers + 7); }
static gn_tensor table(int64_t rows) { return weight(GN_SHAPE(rows, DIM)); }
static gn_tensor found(gn_shape s) { return gn_data(g, GN_I32, s, ids); }
static gn_tensor hidden(void) { return gn_tanh(given(GN_SHAPE(ROWS, DIM))); }
static gn_tensor project(gn_tensor x) { return gn_matmul(x, weight(GN_SHAPE(DIM, DIM))); }
static gn_tensor dense(gn_tensor x, int64_t in, int64_t out) {
    return gn_add(gn_matmul(x, weight(GN_SHAPE(in, out))), weight(GN_SHAPE(out)));
}
static gn_tensor conv(gn_tensor x, int64_t out, int64_t in, int64_t kernel, int64_t groups) {
    gn_conv_desc d = { .before = { kernel / 2, kernel / 2 }, .after = { kernel / 2, kernel / 2 }, .groups = groups };
    return gn_conv(x, weight(GN_SHAPE(out, in / groups, kernel, kernel)), GN_NONE, &d);
}
static gn_tensor picture(int64_t channels) { return given(GN_SHAPE(1, channels, SIDE, SIDE)); }

/* (rows, DIM) to (1, HEADS, rows, HEAD) */
static gn_tensor heads(gn_tensor x, int64_t rows) {
    return gn_permute(gn_reshape(x, GN_SHAPE(1, rows, HEADS, HEAD)), GN_AXES(0, 2, 1, 3));
}
/* Attention written out, of x (rows, DIM) over y (rows, DIM). */
static gn_tensor attention(gn_tensor x, gn_tensor y, int64_t rows) {
    gn_tensor q = heads(project(x), rows), k = heads(project(y), rows), v = heads(project(y), rows);
    gn_tensor s = gn_softmax(gn_mul_c(gn_matmul(q, gn_transpose(k, 2, 3)), 0.25), -1);
    return gn_reshape(gn_permute(gn_matmul(s, v), GN_AXES(0, 2, 1, 3)), GN_SHAPE(rows, DIM));
}
static gn_tensor norm(gn_tensor x) {
    gn_tensor centred = gn_sub(x, gn_mean(x, GN_AXES(-1), true));
    gn_tensor deviation = gn_sqrt(gn_add_c(gn_mean(gn_square(centred), GN_AXES(-1), true), 1e-5));
    return gn_add(gn_mul(gn_div(centred, deviation), weight(GN_SHAPE(DIM))), weight(GN_SHAPE(DIM)));
}
static gn_tensor mlp(gn_tensor x) { return dense(gn_gelu(dense(x, DIM, 4 * DIM)), 4 * DIM, DIM); }
static gn_tensor encoder(gn_tensor x, int64_t rows) {
    gn_tensor a = norm(x);
    x = gn_add(x, project(attention(a, a, rows)));
    return gn_add(x, mlp(norm(x)));
}

/* ---- one graph for each recogniser ---- */

static gn_tensor conv_stages(void) {
    gn_tensor x = gn_relu(conv(picture(3), 16, 3, 3, 1));
    x = gn_relu(gn_add(conv(x, 16, 16, 3, 1), weight(GN_SHAPE(16, 1, 1))));
    return gn_relu(conv(x, 2, 16, 3, 1));
}
static gn_tensor conv_pipeline(void) {
    gn_tensor x = picture(3);
    for (int64_t in = 3, out = 16; out <= 32; in = out, out *= 2) {
        x = gn_relu(gn_add(conv(x, out, in, 3, 1), weight(GN_SHAPE(out, 1, 1))));
        x = gn_pool(x, &(gn_pool_desc){ .kernel = { 2, 2 }, .stride = { 2, 2 } });
    }
    return gn_relu(conv(x, 32, 32, 3, 1));
}
static gn_tensor conv_by_windows(void) {
    gn_tensor x =
        gn_im2col(given(GN_SHAPE(1, 3, 8, 8)), GN_SHAPE(3, 3), GN_SHAPE(1, 1), GN_SHAPE(1, 1), GN_SHAPE(1, 1));
    return gn_relu(gn_add(gn_matmul(weight(GN_SHAPE(8, 27)), x), weight(GN_SHAPE(8, 1))));
}
static gn_tensor separable_conv(void) {
    gn_tensor x = gn_tanh(picture(16));
    return gn_relu(conv(gn_relu(conv(x, 16, 16, 3, 16)), 4, 16, 1, 1));
}
static gn_tensor pooling_head(void) {
    gn_tensor x = gn_relu(conv(gn_tanh(picture(3)), 16, 3, 3, 1));
    x = gn_pool(x, &(gn_pool_desc){ .kernel = { 4, 4 }, .stride = { 4, 4 } });
    return gn_tanh(conv(x, 8, 16, 3, 1));
}
/* With a bias and learned places, also of rows and columns. */
static gn_tensor patches(void) {
    gn_tensor x = gn_permute(gn_reshape(picture(3), GN_SHAPE(1, 3, 4, 4, 4, 4)), GN_AXES(0, 2, 4, 1, 3, 5));
    x = gn_matmul(gn_reshape(x, GN_SHAPE(16, 48)), weight(GN_SHAPE(48, DIM)));
    x = gn_reshape(gn_add(gn_add(x, weight(GN_SHAPE(DIM))), weight(GN_SHAPE(16, DIM))), GN_SHAPE(4, 4, DIM));
    x = gn_add(gn_add(x, weight(GN_SHAPE(4, 1, DIM))), weight(GN_SHAPE(4, DIM)));
    return gn_reshape(x, GN_SHAPE(16, DIM));
}
static gn_tensor patch_embedding(void) { return project(gn_mean(gn_tanh(patches()), GN_AXES(0), true)); }
static gn_tensor vision_encoder(void) { return encoder(patches(), 16); }
static gn_tensor words(void) {
    gn_tensor at = gn_embedding(table(ROWS), gn_arange(g, GN_I32, ROWS, 0, 1));
    return gn_add(gn_embedding(table(WORDS), found(GN_SHAPE(ROWS))), at);
}
static gn_tensor positional_embedding(void) { return gn_tanh(gn_mul_c(words(), 8)); }
static gn_tensor text_encoder(void) { return encoder(words(), ROWS); }
static gn_tensor fusion(void) {
    gn_tensor a = gn_tanh(project(hidden())), b = gn_tanh(project(gn_exp(hidden())));
    return attention(a, b, ROWS);
}
static gn_tensor classifier_head(void) { return gn_softmax(dense(gn_relu(given(GN_SHAPE(64, 4))), 4, 512), -1); }
static gn_tensor gated_mlp(void) {
    gn_tensor x = hidden(), gate = gn_silu(gn_matmul(x, weight(GN_SHAPE(DIM, 4 * DIM))));
    return gn_matmul(gn_mul(gate, gn_matmul(x, weight(GN_SHAPE(DIM, 4 * DIM)))), weight(GN_SHAPE(4 * DIM, DIM)));
}
static gn_tensor adapter(void) {
    gn_tensor x = hidden(), low = gn_matmul(gn_matmul(x, weight(GN_SHAPE(DIM, 4))), weight(GN_SHAPE(4, DIM)));
    return gn_tanh(gn_add(project(x), gn_mul_c(low, 0.5)));
}
static gn_tensor diffusion_step(void) {
    gn_tensor x = picture(3), keep = gn_scalar(g, GN_F32, 0.8), take = gn_scalar(g, GN_F32, 0.6);
    gn_tensor noise = conv(gn_tanh(conv(x, 16, 3, 3, 1)), 3, 16, 3, 1);
    gn_tensor clean = gn_clamp(gn_div(gn_sub(x, gn_mul(take, noise)), keep), -1, 1);
    return gn_add(gn_mul(clean, keep), gn_mul(noise, take));
}
static gn_tensor unet_skip(void) {
    gn_tensor a = gn_relu(conv(picture(3), 16, 3, 3, 1)), b = gn_tanh(conv(a, 16, 16, 3, 1));
    return gn_relu(conv(gn_concat((gn_tensor[]){ a, b }, 2, 1), 2, 32, 3, 1));
}
static gn_tensor embedding_bags(void) {
    gn_tensor rows = gn_embedding(table(WORDS), found(GN_SHAPE(ROWS, 3)));
    return gn_tanh(gn_matmul(gn_sum(rows, GN_AXES(1), false), weight(GN_SHAPE(DIM, 8))));
}
static gn_tensor interaction(void) {
    static const int32_t below[6] = { 4, 8, 9, 12, 13, 14 };
    gn_tensor part[4], x = hidden();
    for (int i = 0; i < 4; i++) part[i] = gn_reshape(gn_tanh(project(x)), GN_SHAPE(ROWS, 1, DIM));
    x = gn_concat(part, 4, 1);
    x = gn_reshape(gn_matmul(x, gn_transpose(x, 1, 2)), GN_SHAPE(ROWS, 16));
    return gn_tanh(dense(gn_index_select(x, 1, gn_data(g, GN_I32, GN_SHAPE(6), below)), 6, 8));
}
static gn_tensor recurrent_cell(void) {
    gn_tensor x = gn_reshape(hidden(), GN_SHAPE(ROWS, 2, DIM / 2)), w = weight(GN_SHAPE(1, 4 * DIM, DIM / 2));
    x = gn_recurrent(x, w, weight(GN_SHAPE(1, 4 * DIM, DIM)), &(gn_recurrent_desc){ .cell = GN_CELL_LSTM });
    return gn_matmul(gn_relu(gn_reshape(x, GN_SHAPE(4 * (ROWS + 1), DIM))), weight(GN_SHAPE(DIM, 4)));
}

static gn_tensor pooled(gn_tensor x) { return gn_tanh(gn_mean(x, GN_AXES(0), true)); }
static gn_tensor fuse(gn_tensor a, gn_tensor b) { return gn_tanh(project(gn_mul(a, b))); }
/* The power of frames of a wave, through a product and an encoder. */
static gn_tensor sound(void) {
    gn_tensor frames = gn_reshape(given(GN_SHAPE(1, 2 * ROWS * DIM)), GN_SHAPE(2 * ROWS, DIM)),
              re = gn_matmul(frames, weight(GN_SHAPE(DIM, DIM))), im = gn_matmul(frames, weight(GN_SHAPE(DIM, DIM)));
    return encoder(project(gn_log(gn_add_c(gn_add(gn_square(re), gn_square(im)), 1))), 2 * ROWS);
}
static gn_tensor pictures_beside_text(void) { return fuse(pooled(encoder(patches(), 16)), pooled(text_encoder())); }
static gn_tensor sound_beside_text(void) { return fuse(pooled(sound()), pooled(text_encoder())); }
/* Pictures at two resolutions, which change over after each stage. */
static gn_tensor coarser(gn_tensor x) {
    gn_conv_desc d = { .stride = { 2, 2 }, .before = { 1, 1 }, .after = { 1, 1 } };
    return gn_conv(x, weight(GN_SHAPE(16, 8, 3, 3)), GN_NONE, &d);
}
static gn_tensor resolutions(void) {
    gn_tensor fine = gn_relu(conv(picture(3), 8, 3, 3, 1)), coarse = gn_relu(coarser(fine)), both[2];
    for (int i = 0; i < 3; i++) {
        gn_tensor a = gn_relu(conv(fine, 8, 8, 3, 1)), b = gn_relu(conv(coarse, 16, 16, 3, 1));
        gn_tensor up = gn_interpolate(conv(b, 8, 16, 1, 1), GN_AXES(2, 3), GN_SHAPE(SIDE, SIDE), NULL);
        fine = gn_relu(gn_add(a, up));
        coarse = gn_relu(gn_add(b, coarser(a)));
    }
    both[0] = gn_reshape(gn_mean(fine, GN_AXES(2, 3), false), GN_SHAPE(1, 8));
    both[1] = gn_reshape(gn_mean(coarse, GN_AXES(2, 3), false), GN_SHAPE(1, 16));
    return gn_tanh(gn_matmul(gn_concat(both, 2, 1), weight(GN_SHAPE(24, DIM))));
}
static gn_tensor resolutions_beside_text(void) { return fuse(resolutions(), pooled(text_encoder())); }

/* The base's weight is a state of the second device. */
static gn_tensor state_of_second(gn_shape s) {
    if (gn_device_count(g) > 1) gn_on(g, "1");
    gn_tensor t = gn_state(g, GN_F32, s, numbers, "lives on the second device");
    gn_on(g, NULL);
    return t;
}
static gn_tensor adapter_of_a_base(void) {
    gn_tensor x = hidden(), low = gn_matmul(gn_matmul(x, weight(GN_SHAPE(DIM, 4))), weight(GN_SHAPE(4, DIM)));
    gn_tensor base = gn_matmul(x, state_of_second(GN_SHAPE(DIM, DIM)));
    return gn_tanh(gn_add(base, gn_mul_c(low, 0.5)));
}
/* A step of decoding: the rotated key and the value go into caches, which the query attends to. */
static gn_tensor rotary_decoding(void) {
    gn_tensor x = gn_tanh(given(GN_SHAPE(1, DIM))), pos = gn_scalar(g, GN_I32, 5), at = gn_reshape(pos, GN_SHAPE(1));
    gn_tensor q = gn_rotary(heads(project(x), 1), at, 10000, false), cache[2], v = heads(project(x), 1);
    gn_tensor k = gn_rotary(heads(project(x), 1), at, 10000, false);
    for (int i = 0; i < 2; i++) {
        cache[i] = gn_state(g, GN_F32, GN_SHAPE(1, HEADS, 64, HEAD), numbers, i ? "values" : "keys");
        cache[i] = gn_kv_append(cache[i], i ? v : k, pos);
    }
    x = gn_attention(q, cache[0], cache[1], &(gn_attention_desc){ .length = gn_add_c(pos, 1) });
    return project(gn_tanh(gn_reshape(gn_permute(x, GN_AXES(0, 2, 1, 3)), GN_SHAPE(1, DIM))));
}
/* Queries and keys that are turned and then compared. */
static gn_tensor compared(gn_tensor (*turn)(gn_tensor)) {
    gn_tensor x = hidden(), q = turn(heads(project(x), ROWS)), k = turn(heads(project(x), ROWS));
    return gn_softmax(gn_matmul(q, gn_transpose(k, 2, 3)), -1);
}
static gn_tensor counted(void) { return gn_arange(g, GN_I32, ROWS, 0, 1); }
/* (ROWS,`pairs`): places times frequencies. */
static gn_tensor angles(int64_t pairs) {
    gn_tensor at = gn_reshape(given(GN_SHAPE(ROWS)), GN_SHAPE(ROWS, 1));
    return gn_mul(at, gn_exp(gn_mul_c(gn_arange(g, GN_F32, pairs, 0, 1), -0.5)));
}
static gn_tensor turned_by_op(gn_tensor x) { return gn_rotary(x, found(GN_SHAPE(ROWS)), 10000, false); }
/* x cos + (-b, a) sin, where a and b are the halves of x */
static gn_tensor turned_halves(gn_tensor x) {
    gn_tensor a = gn_slice(x, 3, 0, HEAD / 2, 1), b = gn_slice(x, 3, HEAD / 2, HEAD, 1), angle = angles(HEAD / 2);
    gn_tensor both = gn_concat((gn_tensor[]){ angle, angle }, 2, 1);
    x = gn_mul(x, gn_cos(both));
    return gn_add(x, gn_mul(gn_concat((gn_tensor[]){ gn_neg(b), a }, 2, 3), gn_sin(both)));
}
/* (a cos - b sin, b cos + a sin) of neighbours */
static gn_tensor turned_neighbours(gn_tensor x) {
    gn_tensor pairs = gn_reshape(x, GN_SHAPE(1, HEADS, ROWS, HEAD / 2, 2)), part[2], y[2], angle = angles(HEAD / 2);
    for (int i = 0; i < 2; i++)
        part[i] = gn_reshape(gn_slice(pairs, 4, i, i + 1, 1), GN_SHAPE(1, HEADS, ROWS, HEAD / 2));
    gn_tensor c = gn_cos(angle), s = gn_sin(angle);
    y[0] = gn_sub(gn_mul(part[0], c), gn_mul(part[1], s));
    y[1] = gn_add(gn_mul(part[1], c), gn_mul(part[0], s));
    return gn_reshape(gn_stack(y, 2, 4), GN_SHAPE(1, HEADS, ROWS, HEAD));
}
static gn_tensor rotary_op(void) { return compared(turned_by_op); }
static gn_tensor rotary_halves(void) { return compared(turned_halves); }
static gn_tensor rotary_neighbours(void) { return compared(turned_neighbours); }

static gn_tensor learned_places(void) {
    gn_tensor x = gn_embedding(table(WORDS), found(GN_SHAPE(ROWS)));
    return gn_tanh(gn_add(x, gn_embedding(table(ROWS), counted())));
}
static gn_tensor waves_as_places(void) {
    gn_tensor angle = angles(DIM / 2), waves = gn_concat((gn_tensor[]){ gn_sin(angle), gn_cos(angle) }, 2, 1);
    gn_tensor x = gn_mul_c(gn_embedding(table(WORDS), found(GN_SHAPE(ROWS))), 8);
    return gn_tanh(gn_add(x, waves));
}
/* Patches by a conv, behind a token of their own. */
static gn_tensor places_of_patches(void) {
    gn_conv_desc d = { .stride = { 4, 4 } };
    gn_tensor x = gn_conv(picture(3), weight(GN_SHAPE(DIM, 3, 4, 4)), GN_NONE, &d);
    x = gn_permute(gn_reshape(x, GN_SHAPE(1, DIM, 16)), GN_AXES(0, 2, 1));
    x = gn_concat((gn_tensor[]){ weight(GN_SHAPE(1, 1, DIM)), x }, 2, 1);
    return gn_tanh(gn_add(x, weight(GN_SHAPE(17, DIM))));
}

/* Cells written out, of three steps and, of a state, of one. */
static gn_tensor gate(gn_tensor all, int k) { return gn_slice(all, -1, k * DIM, (k + 1) * DIM, 1); }
static gn_tensor lstm_cell(gn_tensor x, gn_tensor h, gn_tensor *c, gn_tensor w, gn_tensor r) {
    gn_tensor all = gn_add(gn_add(gn_matmul(x, w), gn_matmul(h, r)), weight(GN_SHAPE(4 * DIM)));
    *c = gn_add(gn_mul(gn_sigmoid(gate(all, 0)), *c), gn_mul(gn_sigmoid(gate(all, 1)), gn_tanh(gate(all, 2))));
    return gn_mul(gn_sigmoid(gate(all, 3)), gn_tanh(*c));
}
static gn_tensor lstm_steps(void) {
    gn_tensor w = weight(GN_SHAPE(DIM, 4 * DIM)), r = weight(GN_SHAPE(DIM, 4 * DIM)), x = hidden();
    gn_tensor h = given(GN_SHAPE(1, DIM)), c = given(GN_SHAPE(1, DIM));
    for (int t = 0; t < 3; t++) h = lstm_cell(gn_slice(x, 0, t, t + 1, 1), h, &c, w, r);
    return h;
}
static gn_tensor gru_steps(void) {
    gn_tensor w[3], r[3], x = hidden(), h = given(GN_SHAPE(1, DIM));
    for (int i = 0; i < 3; i++) w[i] = weight(GN_SHAPE(DIM, DIM)), r[i] = weight(GN_SHAPE(DIM, DIM));
    for (int t = 0; t < 3; t++) {
        gn_tensor in = gn_slice(x, 0, t, t + 1, 1), z = gn_add(gn_matmul(in, w[0]), gn_matmul(h, r[0])),
                  let = gn_sigmoid(gn_add(gn_matmul(in, w[1]), gn_matmul(h, r[1]))),
                  n = gn_tanh(gn_add(gn_matmul(in, w[2]), gn_matmul(gn_mul(let, h), r[2])));
        z = gn_sigmoid(z);
        h = gn_add(gn_mul(gn_sub(gn_like(z, 1), z), n), gn_mul(z, h));
    }
    return h;
}
static gn_tensor rnn_steps(void) {
    gn_tensor w = weight(GN_SHAPE(2 * DIM, DIM)), x = hidden(), h = given(GN_SHAPE(1, DIM));
    for (int t = 0; t < 3; t++)
        h = gn_tanh(gn_add(gn_matmul(gn_concat((gn_tensor[]){ gn_slice(x, 0, t, t + 1, 1), h }, 2, 1), w),
                           weight(GN_SHAPE(DIM))));
    return h;
}
static gn_tensor lstm_of_a_state(void) {
    gn_tensor h = gn_state(g, GN_F32, GN_SHAPE(ROWS, DIM), numbers, "h"),
              was = gn_state(g, GN_F32, GN_SHAPE(ROWS, DIM), numbers, "c");
    gn_tensor c = was,
              next = lstm_cell(hidden(), h, &c, weight(GN_SHAPE(DIM, 4 * DIM)), weight(GN_SHAPE(DIM, 4 * DIM)));
    gn_assign(was, c);
    return gn_assign(h, next);
}

/* Late fusion of what two towers make of 16 patches and of 16 words. */
static gn_tensor image_rows(void) { return gn_tanh(patches()); }
static gn_tensor text_rows(void) {
    gn_tensor at = gn_embedding(table(16), gn_arange(g, GN_I32, 16, 0, 1));
    return gn_tanh(gn_add(gn_embedding(table(WORDS), found(GN_SHAPE(16))), at));
}
static gn_tensor fused_by_concat(void) {
    gn_tensor both[] = { image_rows(), text_rows() };
    return gn_tanh(gn_matmul(gn_concat(both, 2, 1), weight(GN_SHAPE(2 * DIM, 8))));
}
static gn_tensor fused_by_sum(void) {
    return gn_tanh(gn_matmul(gn_mul_c(gn_add(image_rows(), text_rows()), 0.5), weight(GN_SHAPE(DIM, 8))));
}
static gn_tensor fused_by_product(void) {
    return gn_tanh(gn_matmul(gn_mul_c(gn_mul(image_rows(), text_rows()), 0.5), weight(GN_SHAPE(DIM, 8))));
}
/* Each of 64 words with each of 64 patches: more numbers than there are of words and of patches. */
static gn_tensor similarity(void) {
    gn_tensor x = gn_reshape(given(GN_SHAPE(1, 3, 32, 32)), GN_SHAPE(1, 3, 8, 4, 8, 4));
    x = gn_reshape(gn_permute(x, GN_AXES(0, 2, 4, 1, 3, 5)), GN_SHAPE(64, 48));
    gn_tensor image = gn_tanh(gn_matmul(x, weight(GN_SHAPE(48, 4)))),
              text = gn_embedding(weight(GN_SHAPE(WORDS, 4)), gn_data(g, GN_I32, GN_SHAPE(64), ids));
    text = gn_tanh(gn_add(text, weight(GN_SHAPE(64, 4))));
    return gn_max(gn_softmax(gn_mul_c(gn_matmul(text, gn_transpose(image, 0, 1)), 14), 1), GN_AXES(0), false);
}
static gn_tensor two_towers(void) {
    gn_tensor image = encoder(patches(), 16), text = encoder(words(), ROWS);
    gn_tensor q = heads(project(text), ROWS), k = heads(project(image), 16), v = heads(project(image), 16);
    return gn_matmul(gn_softmax(gn_matmul(q, gn_transpose(k, 2, 3)), -1), v);
}

/* ---- steps that run ---- */

typedef struct block {
    const char *name;
    gn_tensor (*build)(void);
    uint64_t off;
    int cluster, policy; /* pair_make's and gn_policy, for which it matters */
} block;

typedef struct outcome {
    float out[MOST];
    size_t bytes_out;
    uint64_t crossed; /* bytes between the devices in a step */
    char where[512];  /* the device of each op */
} outcome;

typedef struct pair {
    gn_cluster cluster;
    gn_cluster_device devices[2];
    gn_cluster_link links[9];
} pair;

/* The k-th of 324: slow and fast arithmetic, memory and links, devices near and far, alike and not. The program is
   0.1 ms away. */
static void pair_make(pair *c, int k) {
    static const double flops[] = { 1e8, 1e10, 1e12 }, memory[] = { 1e8, 1e10, 1e12 }, links[] = { 1e8, 1e9, 1e11 },
                        delays[] = { 1e-5, 1e-7, 1e-6 };
    memset(c, 0, sizeof *c);
    c->cluster = (gn_cluster){ 2, c->devices, c->links };
    for (int d = 0; d < 2; d++) {
        for (int r = 0; r < GN_RATE__COUNT; r++) c->devices[d].flops_per_s[r] = flops[k % 3] * (d && k / 162 ? 4 : 1);
        c->devices[d].bytes_per_s = memory[k / 3 % 3];
        c->devices[d].launch_s = delays[k / 9 % 2];
    }
    for (int i = 0; i < 9; i++)
        c->links[i] = i % 3 == 2 || i / 3 == 2 ? (gn_cluster_link){ 1e-4, 1e9 }
                                               : (gn_cluster_link){ delays[k / 18 % 3], links[k / 54 % 3] };
}

/* Two devices that are this CPU, each with an executor and memory of its own. */
static gn_exec_i twin_tables[2];

static void describe_first(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "twin:0");
}
static void describe_second(void *self, gn_device_info *out) {
    gn__cpu_describe(self, out);
    snprintf(out->name, sizeof out->name, "twin:1");
}
static gn_result twin_open(const gn_exec_desc *d, gn_exec *out, gn_fault *f) {
    gn_result r = gn__cpu_open(d, out, f);
    out->i = &twin_tables[d->device[strlen(d->device) - 1] == '1'];
    return r;
}
static void use_twins(void) {
    static const gn_driver_i driver = { .prefix = "twin", .open = twin_open };
    twin_tables[0] = twin_tables[1] = gn__cpu_i;
    twin_tables[0].describe = describe_first;
    twin_tables[1].describe = describe_second;
    gn_register_driver(&driver);
}

static gn_ctx *open_two(gn_policy policy, uint64_t off) {
    return gn_open(&(gn_desc){
        .devices = "twin:0,twin:1", .threads = 1, .policy = policy, .keep_placement = true, .unrecognised = off });
}

/* The device of each op of the latest plan, in the order of the graph. */
static void places_of(char *out, size_t size) {
    const gn__multi_plan *p = g->plans[g->n_plans - 1].exec_plan;
    const gn_part *part = &g->cut.part;
    const gn_schedule *s = &p->splits[p->n_splits - 1]->schedule;
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_nodes && n + 1 < size; i++)
        if (!part->nodes[i].leaf && part->nodes[i].n_ins) out[n++] = (char)('0' + s->device[i]);
    out[n] = 0;
}

/* The second step is measured: where weights and states are is decided by then. */
static bool run(const block *b, uint64_t off, outcome *o) {
    pair c;
    gn_stats before, after;
    gn_info info = { 0 };
    memset(o, 0, sizeof *o);
    pair_make(&c, b->cluster);
    g = open_two((gn_policy)b->policy, off);
    bool ok = CHECK_RESULT(gn_status(g), GN_OK) && CHECK_RESULT(gn_set_cluster(g, &c.cluster), GN_OK);
    for (int step = 0; ok && step < 2; step++) {
        gn_get_stats(g, &before);
        gn_tensor y = b->build();
        ok = CHECK_RESULT(gn_describe(y, &info), GN_OK) && CHECK(info.bytes <= sizeof o->out) &&
             CHECK_RESULT(gn_read(y, o->out, info.bytes), GN_OK);
        if (!ok) break;
        places_of(o->where, sizeof o->where);
        gn_get_stats(g, &after);
        ok = CHECK_RESULT(gn_step(g), GN_OK);
    }
    if (!ok) printf("  %s: %s\n", b->name, gn_last_error(g)->text);
    o->bytes_out = info.bytes;
    o->crossed = ok ? after.transfer_bytes - before.transfer_bytes : 0;
    gn_close(g);
    return ok;
}

#define OFF(role) GN_OFF_ROLE(GN_ROLE_##role)
#define OFF_MODALITY(modality) GN_OFF_MODALITY(GN_MODALITY_##modality)
#define ENCODER (OFF(ATTENTION) | OFF(MLP) | OFF(NORM) | OFF(RESIDUAL) | OFF(LINEAR))
static const block blocks[] = {
    { "conv stages", conv_stages, OFF(CONV), 166, GN_MOST_THROUGHPUT },
    { "a pipeline of conv stages", conv_pipeline, OFF(CONV) | OFF(POOLING), 4, GN_MOST_THROUGHPUT },
    { "a conv by windows", conv_by_windows, OFF(CONV), 180, GN_MOST_THROUGHPUT },
    { "a separable conv", separable_conv, OFF(SEPARABLE_CONV), 174, GN_MOST_THROUGHPUT },
    { "pooling", pooling_head, OFF(POOLING), 9, GN_MOST_THROUGHPUT },
    { "a patch embedding", patch_embedding, OFF(PATCHES), 170, GN_MOST_THROUGHPUT },
    { "an encoder of pictures", vision_encoder, ENCODER | OFF(PATCHES), 0, GN_MOST_THROUGHPUT },
    { "an encoder of text", text_encoder, ENCODER | OFF(EMBEDDING), 1, GN_LEAST_LATENCY },
    { "a fusion of two towers", fusion, OFF(CROSS_ATTENTION), 169, GN_MOST_THROUGHPUT },
    { "two towers", two_towers, ENCODER | OFF(PATCHES) | OFF(EMBEDDING) | OFF(CROSS_ATTENTION), 1, GN_LEAST_LATENCY },
    { "a classifier head", classifier_head, OFF(HEAD), 12, GN_MOST_THROUGHPUT },
    { "a gated MLP", gated_mlp, OFF(MLP), 184, GN_MOST_THROUGHPUT },
    { "a positional embedding", positional_embedding, OFF(EMBEDDING), 229, GN_MOST_THROUGHPUT },
    { "rotated keys of a cache", rotary_decoding, OFF(KV_APPEND), 3, GN_MOST_THROUGHPUT },
    { "an adapter", adapter, OFF(ADAPTER), 165, GN_MOST_THROUGHPUT },
    { "an adapter of a base that lives elsewhere", adapter_of_a_base, OFF(ADAPTER), 165, GN_MOST_THROUGHPUT },
    { "a step of diffusion", diffusion_step, OFF(DENOISING), 170, GN_MOST_THROUGHPUT },
    { "a skip of a U-Net", unet_skip, OFF(SKIP), 67, GN_MOST_THROUGHPUT },
    { "bags of a table", embedding_bags, OFF(EMBEDDING_BAG), 0, GN_MOST_THROUGHPUT },
    { "an interaction of features", interaction, OFF(INTERACTION), 250, GN_MOST_THROUGHPUT },
    { "a recurrent layer", recurrent_cell, OFF(RECURRENT), 171, GN_MOST_THROUGHPUT },
    { "a rotation", rotary_op, OFF(ROTARY), 0, GN_MOST_THROUGHPUT },
    { "a rotation of halves, written out", rotary_halves, OFF(ROTARY), 9, GN_MOST_THROUGHPUT },
    { "a rotation of neighbours, written out", rotary_neighbours, OFF(ROTARY), 9, GN_MOST_THROUGHPUT },
    { "learned places", learned_places, OFF(POSITIONS), 0, GN_MOST_THROUGHPUT },
    { "waves as places", waves_as_places, OFF(POSITIONS), 0, GN_LEAST_LATENCY },
    { "places of patches", places_of_patches, OFF(POSITIONS), 184, GN_MOST_THROUGHPUT },
    { "an LSTM, written out", lstm_steps, OFF(RECURRENT), 0, GN_MOST_THROUGHPUT },
    { "a GRU, written out", gru_steps, OFF(RECURRENT), 5, GN_MOST_THROUGHPUT },
    { "an RNN, written out", rnn_steps, OFF(RECURRENT), 4, GN_MOST_THROUGHPUT },
    { "a step of an LSTM with its state", lstm_of_a_state, OFF(RECURRENT), 0, GN_MOST_THROUGHPUT },
    { "a fusion by concatenation", fused_by_concat, OFF(FUSION), 162, GN_MOST_THROUGHPUT },
    { "a fusion by a sum", fused_by_sum, OFF(FUSION), 70, GN_MOST_THROUGHPUT },
    { "a fusion by a product", fused_by_product, OFF(FUSION), 70, GN_MOST_THROUGHPUT },
    { "a similarity of two modalities", similarity, OFF(FUSION), 0, GN_MOST_THROUGHPUT },
};

/* With one of the two modalities unknown, both encoders are one, and nothing tells where to part them. */
static const block encoders[] = {
    { "pictures, beside text", pictures_beside_text, OFF_MODALITY(VISION), 166, GN_MOST_THROUGHPUT },
    { "text, beside pictures", pictures_beside_text, OFF_MODALITY(TEXT), 238, GN_LEAST_LATENCY },
    { "sound, beside text", sound_beside_text, OFF_MODALITY(AUDIO), 274, GN_LEAST_LATENCY },
    { "pictures at two resolutions", resolutions_beside_text, OFF_MODALITY(VISION), 180, GN_MOST_THROUGHPUT },
};

TEST(encoders_of_two_modalities_stand_whole_on_two_devices) {
    static outcome with, without;
    for (int i = 0; i < TEST_COUNT(encoders); i++) {
        if (!run(&encoders[i], 0, &with) || !run(&encoders[i], encoders[i].off, &without)) continue;
        printf("  %s: %llu bytes cross, %llu unless their modality is known; ops run on %s and %s\n", encoders[i].name,
               (unsigned long long)with.crossed, (unsigned long long)without.crossed, with.where, without.where);
        CHECK_INT(with.bytes_out, without.bytes_out);
        CHECK(!memcmp(with.out, without.out, with.bytes_out));
        CHECK_INT(with.crossed, DIM * sizeof(float)); /* what one encoder makes of its input */
        CHECK(without.crossed > with.crossed);
    }
}

TEST(each_recogniser_saves_bytes_in_a_step_that_runs) {
    static outcome with, without;
    for (int i = 0; i < TEST_COUNT(blocks); i++) {
        if (!run(&blocks[i], 0, &with) || !run(&blocks[i], blocks[i].off, &without)) continue;
        printf("  %s: %llu bytes cross, %llu unless it is recognised; ops run on %s and %s\n", blocks[i].name,
               (unsigned long long)with.crossed, (unsigned long long)without.crossed, with.where, without.where);
        CHECK_INT(with.bytes_out, without.bytes_out);
        CHECK(!memcmp(with.out, without.out, with.bytes_out));
        CHECK(with.crossed < without.crossed);
        CHECK(strcmp(with.where, without.where) != 0);
    }
}

int main(int argc, char **argv) {
    static const test_entry tests[] = { TEST_ENTRY(each_recogniser_saves_bytes_in_a_step_that_runs),
                                        TEST_ENTRY(encoders_of_two_modalities_stand_whole_on_two_devices) };
    test_begin(argc, argv);
    for (int i = 0; i < TEST_COUNT(numbers); i++) numbers[i] = (float)test_random_real(-1, 1);
    for (int i = 0; i < TEST_COUNT(ids); i++) ids[i] = (int32_t)test_random_int(0, ROWS - 1);
    use_twins();
    test_all(tests, TEST_COUNT(tests));
    return test_end();
}
