/* bench_gpu: norms over pictures and pooling, beside the bandwidth of a device copy. */

/* `images` squares of `side` places, of `channels` channels. groups: of a group norm, 0: batch norm; kernel,
   stride: of a maximum pool. */
typedef struct picture_row {
    const char *name;
    int images, channels, side, groups, kernel, stride;
    double reads; /* of x; the result is written once */
} picture_row;
/* last: x and the result of a pool are held as (images, side, side, channels); back: its gradient by x. */
typedef struct picture_job {
    const picture_row *row;
    bool last, back;
} picture_job;

static const picture_row picture_rows[] = {
    { "batchnorm_56_256", 32, 256, 56, 0, 0, 0, 2 },   { "groupnorm_56_256", 32, 256, 56, 32, 0, 0, 1 },
    { "batchnorm_14_1024", 32, 1024, 14, 0, 0, 0, 2 }, { "groupnorm_28_512", 32, 512, 28, 32, 0, 0, 1 },
    { "pool_112_64", 32, 64, 112, 0, 3, 2, 1 },        { "pool_56_256", 32, 256, 56, 0, 2, 2, 1 },
};

static gn_pool_desc picture_pool(const picture_row *r) {
    int64_t pad = r->kernel / 2, after = r->kernel % 2 ? pad : 0;
    return (gn_pool_desc){ .kernel = { r->kernel, r->kernel },
                           .stride = { r->stride, r->stride },
                           .before = { after, after },
                           .after = { after, after } };
}

static int64_t picture_side(const picture_row *r) {
    return r->kernel ? (r->side + 2 * picture_pool(r).before[0] - r->kernel) / r->stride + 1 : r->side;
}

/* What windows give, in[1], goes to the place of the first largest element of each, as gn_grad adds it. */
static gn_tensor build_pool_back(gn_ctx *g, const job *j) {
    const picture_row *r = ((const picture_job *)j->of)->row;
    const int64_t planes = j->in_shape[0].dims[0] * r->channels, side = picture_side(r);
    gn_pool_desc pool = picture_pool(r);
    pool.kind = GN_POOL_INDEX;
    gn_tensor zeros = gn_full(g, j->d, GN_SHAPE(planes, (int64_t)r->side * r->side), 0),
              at = gn_reshape(gn_pool(j->in[0], &pool), GN_SHAPE(planes, side * side)),
              given = gn_reshape(j->in[1], GN_SHAPE(planes, side * side));
    return gn_reshape(gn_scatter_add(zeros, 1, at, given), j->in_shape[0]);
}

static gn_tensor build_picture(gn_ctx *g, const job *j) {
    const picture_job *of = (const picture_job *)j->of;
    const picture_row *r = of->row;
    const gn_pool_desc pool = picture_pool(r);
    (void)g;
    if (of->last) return gn_permute(gn_pool(gn_permute(j->in[0], GN_AXES(0, 3, 1, 2)), &pool), GN_AXES(0, 2, 3, 1));
    if (r->kernel) return gn_pool(j->in[0], &pool);
    if (r->groups) return gn_group_norm(j->in[0], r->groups, j->in[1], j->in[2], 1e-5);
    return gn_batch_norm_train(j->in[0], j->in[1], j->in[2], 1e-5, NULL, NULL);
}

/* Channels whose values are compared: of each all places of a norm, for which every one counts. */
static void picture_norm_error(const job *j, const picture_row *r, int64_t n, int64_t c, largest_error *e) {
    const int64_t *d = j->in_shape[0].dims, places = d[2] * d[3], each = r->groups ? d[1] / r->groups : 1;
    double sum = 0, squares = 0, all = 0;
    for (int64_t k = r->groups ? n : 0; k < (r->groups ? n + 1 : d[0]); k++)
        for (int64_t i = 0; i < each * places; i++, all++) {
            double x = at(j, 0, (k * d[1] + c / each * each) * places + i);
            sum += x;
            squares += x * x;
        }
    double mean = sum / all, deviation = sqrt(squares / all - mean * mean + 1e-5);
    for (int64_t i = 0; i < places; i++) {
        int64_t to = (n * d[1] + c) * places + i;
        error_add(e, element(j->d, j->out, (size_t)to), (at(j, 0, to) - mean) / deviation * at(j, 1, c) + at(j, 2, c));
    }
}

static void picture_pool_error(const job *j, const picture_row *r, int64_t n, int64_t c, largest_error *e) {
    const int64_t side = r->side, pad = picture_pool(r).before[0], to = picture_side(r);
    for (int64_t i = 0; i < to * to; i++) {
        double most = -INFINITY;
        for (int k = 0; k < r->kernel * r->kernel; k++) {
            int64_t y = i / to * r->stride + k / r->kernel - pad, x = i % to * r->stride + k % r->kernel - pad;
            if (y < 0 || x < 0 || y >= side || x >= side) continue;
            most = fmax(most, at(j, 0, window_at(((const picture_job *)j->of)->last, r->channels, side, n, c, y, x)));
        }
        error_add(e,
                  element(j->d, j->out,
                          (size_t)window_at(((const picture_job *)j->of)->last, r->channels, to, n, c, i / to, i % to)),
                  most);
    }
}

/* Of one plane; each sum is rounded. */
static void picture_back_error(const job *j, const picture_row *r, int64_t n, int64_t c, largest_error *e) {
    const int64_t side = r->side, pad = picture_pool(r).before[0], to = picture_side(r), plane = n * r->channels + c;
    float *sums = (float *)calloc((size_t)(side * side), sizeof *sums);
    for (int64_t i = 0; i < to * to && sums; i++) {
        double most = -INFINITY;
        int64_t where = 0;
        for (int k = 0; k < r->kernel * r->kernel; k++) {
            int64_t y = i / to * r->stride + k / r->kernel - pad, x = i % to * r->stride + k % r->kernel - pad;
            if (y < 0 || x < 0 || y >= side || x >= side || at(j, 0, plane * side * side + y * side + x) <= most)
                continue;
            where = y * side + x;
            most = at(j, 0, plane * side * side + where);
        }
        sums[where] = gn_bf16_to_f32(gn_f32_to_bf16(sums[where] + (float)at(j, 1, plane * to * to + i)));
    }
    for (int64_t i = 0; i < side * side && sums; i++)
        error_add(e, element(j->d, j->out, (size_t)(plane * side * side + i)), (double)sums[i]);
    free(sums);
}

static void bench_picture(gn_ctx *g, const picture_row *r, bool last, bool back) {
    const picture_job of = { r, last, back };
    int64_t images = sized(r->images);
    double theirs[9];
    char line[120], name[48];
    int64_t side = picture_side(r);
    job j = { .d = GN_BF16,
              .n_in = r->kernel ? 1 : 3,
              .each = 20,
              .rests = true,
              .scale = 1,
              .of = &of,
              .beside = theirs,
              .in_shape = { last ? GN_SHAPE(images, r->side, r->side, r->channels)
                                 : GN_SHAPE(images, r->channels, r->side, r->side),
                            GN_SHAPE(r->channels), GN_SHAPE(r->channels) },
              .out_shape =
                  last ? GN_SHAPE(images, side, side, r->channels) : GN_SHAPE(images, r->channels, side, side) };
    if (back) {
        j.n_in = 2;
        j.beside = NULL;
        j.in_shape[1] = j.out_shape;
        j.out_shape = j.in_shape[0];
    }
    snprintf(name, sizeof name, "%s%s%s", r->name, last ? "_last" : "", back ? "_back" : "");
    if (!wanted(name)) return;
    job_open(g, &j);
    snprintf(line, sizeof line, r->kernel ? "pool %d %d %d %d %d" : "norm %d %d %d %d", (int)images, r->channels,
             r->side, r->kernel ? r->kernel : r->groups, r->stride);
    if (!back) torch_ask(line);
    int k = job_run(g, &j, back ? build_pool_back : build_picture, repeats(9));
    double work = 2e-12 * (r->reads * (double)count(&j.in_shape[0]) + (double)count(&j.out_shape) +
                           (back ? (double)count(&j.in_shape[1]) : 0));
    const double same = copy_of(1e12 * work);
    row *out = add_row(name, "TB/s", 0.85 * same, false);
    largest_error e = { 0 };
    for (int s = 0; s < 4; s++)
        (back        ? picture_back_error
         : r->kernel ? picture_pool_error
                     : picture_norm_error)(&j, r, s % images, s * 7919 % r->channels, &e);
    out->value = work / quantile(samples, k, 0.5);
    out->p95 = work / quantile(samples, k, 0.95);
    out->error = error_of(&e);
    out->bound = eps_of(GN_BF16);
    set_ceiling(out, same, "device copy of as many bytes");
    snprintf(out->note, sizeof out->note, "%.1f us, b%d, %g reads%s and a write", 1e6 * quantile(samples, k, 0.5),
             (int)images, r->reads, back ? ", one of its gradient," : "");
    note_long_copy(out);
    if (!back) torch_note(out, quantile(samples, k, 0.5), theirs, k);
    print_row(out);
    job_close(&j);
}

static void bench_pictures(gn_ctx *g) {
    for (size_t i = 0; i < sizeof picture_rows / sizeof *picture_rows; i++)
        for (int last = picture_rows[i].kernel > 0; last >= 0; last--) bench_picture(g, &picture_rows[i], last, false);
    for (size_t i = 0; i < sizeof picture_rows / sizeof *picture_rows; i++)
        if (picture_rows[i].kernel) bench_picture(g, &picture_rows[i], false, true);
}
