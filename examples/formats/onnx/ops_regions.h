/* ops_regions.h - a part of onnx.h: pooling of regions of pictures. What a region takes depends on its size: sizes are
   read while the step is built. */
#ifndef ONNX_OPS_REGIONS_H
#define ONNX_OPS_REGIONS_H

enum { OX_ROI_SAMPLES = 1024, OX_ROI_ELEMENTS = 16 << 20 }; /* of gn_roi_align; of the samples of regions together */

/* Regions by how many samples a cell of theirs takes along an axis: like ones are computed together, so that small ones
   do not take what the largest takes, and few at a time, so that memory stays small. */
typedef struct ox_regions {
    int64_t R, each; /* elements of a sample of each cell of a region */
    const int64_t *count;
    int64_t *order, *place; /* regions from few samples to many; where each of them is then */
    gn_tensor *parts;
    int n_parts;
} ox_regions;

static void ox_regions_sort(onnx__call *c, ox_regions *r) {
    size_t n = (size_t)r->R + 1;
    r->order = onnx__alloc(c->s, 2 * n * sizeof *r->order);
    r->place = r->order + n;
    r->parts = onnx__alloc(c->s, n * sizeof *r->parts);
    for (int64_t i = 0; i < r->R; i++) r->order[i] = i;
    ox_rows rows = { (const uint8_t *)r->count, GN_I64, (size_t)r->R, 1 };
    ox_sort_rows(&rows, r->order, r->place);
    for (int64_t i = 0; i < r->R; i++) r->place[r->order[i]] = i;
}

/* How many regions from place i on are computed together; *samples: of the last one, which takes most. */
static int64_t ox_regions_run(const ox_regions *r, int64_t i, int64_t *samples) {
    int64_t n = 1, each = r->each > 0 ? r->each : 1;
    for (; i + n < r->R; n++) {
        int64_t k = r->count[r->order[i + n]];
        if (n + 1 > OX_ROI_ELEMENTS / (k * k) / each) break;
    }
    *samples = r->count[r->order[i + n - 1]];
    return n;
}

static gn_tensor ox_regions_join(onnx__call *c, const ox_regions *r) {
    return gn_index_select(ox_join(c, r->parts, r->n_parts, 0), 0, ox_step_indices(c, r->place, r->R));
}

/* ---- averages and largest of samples between elements ---- */

/* Samples that each region takes along its axes, the more of the two, read at once; NULL: refused. */
static int64_t *ox_roi_counts(onnx__call *c, gn_tensor rois, const gn_roi_align_desc *d) {
    gn_dtype wide = onnx__dtype(rois) == GN_F64 ? GN_F64 : GN_F32;
    int64_t R = ox_dim(rois, 0), *count = onnx__alloc(c->s, (size_t)(R + 1) * sizeof *count);
    double *host = onnx__alloc(c->s, (size_t)(R + 1) * sizeof *host);
    gn_tensor ends[2], axis[2];
    for (int i = 0; i < 2; i++) /* as gn_roi_align computes it */
        ends[i] = gn_add_c(gn_mul_c(gn_slice(ox_cast(rois, wide), 1, 2 * i, 2 * i + 2, 1), d->scale),
                           d->half_pixel ? -0.5 : 0);
    gn_tensor length = gn_sub(ends[1], ends[0]);
    if (!d->half_pixel) length = gn_maximum(length, gn_like(length, 1));
    for (int i = 0; i < 2; i++)
        axis[i] = gn_ceil(gn_div_c(gn_slice(length, 1, i, i + 1, 1), (double)(i ? d->height : d->width)));
    c->s->counts.early_reads += c->g == c->s->g;
    gn_tensor most = ox_cast(gn_maximum(axis[0], axis[1]), GN_F64);
    if (R && gn_read(most, host, (size_t)R * sizeof *host) != GN_OK) onnx__no(c, "%s", gn_last_error(c->g)->text);
    for (int64_t i = 0; i < R && !c->failed; i++)
        if (!(host[i] <= OX_ROI_SAMPLES))
            onnx__no(c, "region %" PRId64 " takes %g samples a cell: at most %d are taken", i, host[i], OX_ROI_SAMPLES);
        else count[i] = host[i] > 1 ? (int64_t)host[i] : 1;
    return c->failed ? NULL : count;
}

/* As many samples as regions have elements. */
static gn_tensor ox_roi_adaptive(onnx__call *c, gn_tensor x, gn_tensor rois, gn_tensor which, gn_roi_align_desc d) {
    ox_regions r = { .R = ox_dim(rois, 0), .each = d.height * d.width * ox_dim(x, 1) };
    d.adaptive = true;
    d.samples = 1;
    if (!r.R) return gn_roi_align(x, rois, which, &d);
    r.count = ox_roi_counts(c, rois, &d);
    if (c->failed) return GN_NONE;
    ox_regions_sort(c, &r);
    for (int64_t i = 0, n; i < r.R; i += n) {
        n = ox_regions_run(&r, i, &d.samples);
        gn_tensor these = ox_step_indices(c, r.order + i, n);
        r.parts[r.n_parts++] = gn_roi_align(x, gn_index_select(rois, 0, these), gn_index_select(which, 0, these), &d);
    }
    return ox_regions_join(c, &r);
}

static void ox_roi_align(onnx__call *c) {
    gn_tensor x = ox_in(c, 0), rois = ox_in(c, 1), which = ox_in(c, 2);
    gn_roi_align_desc d = { .height = ox_int(c, "output_height", 1),
                            .width = ox_int(c, "output_width", 1),
                            .samples = ox_int(c, "sampling_ratio", 0),
                            .scale = ox_float(c, "spatial_scale", 1),
                            .half_pixel = c->version >= 16 &&
                                          ox_text_is(c, "coordinate_transformation_mode", "half_pixel", "half_pixel"),
                            .largest = ox_text_is(c, "mode", "max", "avg") };
    if (!d.largest && !ox_text_is(c, "mode", "avg", "avg")) onnx__no(c, "mode is neither avg nor max");
    if (d.samples < 0 || d.height < 1 || d.height > 65536 || d.width < 1 || d.width > 65536)
        onnx__no(c, "a result of %" PRId64 " by %" PRId64 " with %" PRId64 " samples each way", d.height, d.width,
                 d.samples);
    if (c->failed) return;
    gn_shape s = onnx__shape(x), r = onnx__shape(rois), w = onnx__shape(which);
    if (s.rank != 4 || r.rank != 2 || r.dims[1] != 4 || w.rank != 1 || w.dims[0] != r.dims[0])
        onnx__no(c, "it takes x of rank 4, regions (R,4) and (R) batch indices");
    if (c->failed) return;
    gn_tensor y = d.samples ? gn_roi_align(x, rois, which, &d) : ox_roi_adaptive(c, x, rois, which, d);
    if (!c->failed) ox_out_like(c, 0, y, 0);
}

/* ---- the largest of whole elements ---- */

/* Cells of regions along an axis of `size` elements: elements from[i] up to to[i], region by region. */
typedef struct ox_cells {
    int64_t n, size, *from, *to;
} ox_cells;

/* A region's ends, rounded to whole elements, cut into cells that may share an element. */
static void ox_roi_cells(ox_cells *a, int64_t region, double begin, double end, float scale) {
    int64_t first = (int64_t)roundf((float)begin * scale), last = (int64_t)roundf((float)end * scale);
    int64_t length = last >= first ? last - first + 1 : 1;
    float each = (float)length / (float)a->n;
    for (int64_t i = 0; i < a->n; i++) {
        int64_t from = first + (int64_t)floorf((float)i * each), to = first + (int64_t)ceilf((float)(i + 1) * each);
        a->from[region * a->n + i] = from < 0 ? 0 : from < a->size ? from : a->size;
        a->to[region * a->n + i] = to < 0 ? 0 : to < a->size ? to : a->size;
    }
}

/* Elements of the cells of n regions along an axis, S of each, the last one again where there are fewer; counts times
   `step`: (n,cells*S). */
static gn_tensor ox_cell_elements(onnx__call *c, const ox_cells *a, const int64_t *regions, int64_t n, int64_t S,
                                  int64_t step) {
    int64_t *out = onnx__alloc(c->s, (size_t)(n * a->n * S + 1) * sizeof *out), *to = out;
    for (int64_t i = 0; i < n * a->n; i++) {
        int64_t cell = regions[i / a->n] * a->n + i % a->n, last = a->to[cell] - 1;
        if (last < a->from[cell])
            last = a->from[cell] < a->size ? a->from[cell] : a->size - 1; /* of an empty one any */
        for (int64_t k = 0; k < S; k++, to++) *to = step * (a->from[cell] + k < last ? a->from[cell] + k : last);
    }
    return gn_data_copy(c->g, GN_I64, GN_SHAPE(n, a->n * S), out);
}

/* Reads regions (R,5): image, x1, y1, x2, y2. What each takes, and where its image begins. */
static void ox_roi_pool_read(onnx__call *c, ox_regions *r, ox_cells axis[2], int64_t *base) {
    gn_shape s = ox_in_shape(c, 0);
    double *of = onnx__alloc(c->s, (size_t)(5 * r->R + 1) * sizeof *of), limit = 1e9;
    int64_t *count = onnx__alloc(c->s, (size_t)(r->R + 1) * sizeof *count);
    for (int i = 0; i < 2; i++) {
        axis[i].from = onnx__alloc(c->s, 2 * (size_t)(r->R * axis[i].n + 1) * sizeof(int64_t));
        axis[i].to = axis[i].from + r->R * axis[i].n;
    }
    c->s->counts.early_reads += c->g == c->s->g;
    if (r->R && gn_read(ox_cast(ox_in(c, 1), GN_F64), of, (size_t)(5 * r->R) * sizeof *of) != GN_OK)
        return onnx__no(c, "%s", gn_last_error(c->g)->text);
    for (int64_t i = 0; i < r->R && !c->failed; i++) {
        const double *one = of + 5 * i;
        bool fits = one[0] >= 0 && one[0] < (double)s.dims[0];
        for (int k = 1; k < 5; k++) fits = fits && fabs(one[k]) < limit;
        if (!fits) return onnx__no(c, "region %" PRId64 " is of image %g, or has no size", i, one[0]);
        count[i] = 1;
        base[i] = (int64_t)one[0] * s.dims[2] * s.dims[3];
        for (int k = 0; k < 2; k++) {
            ox_roi_cells(&axis[k], i, one[2 - k], one[4 - k], (float)ox_float(c, "spatial_scale", 1));
            for (int64_t j = i * axis[k].n; j < (i + 1) * axis[k].n; j++)
                if (axis[k].to[j] - axis[k].from[j] > count[i]) count[i] = axis[k].to[j] - axis[k].from[j];
        }
    }
    r->count = count;
}

/* Which cells of n regions have an element: bool (n,1,rows,columns). */
static gn_tensor ox_cells_filled(onnx__call *c, const ox_cells axis[2], const int64_t *regions, int64_t n) {
    uint8_t *out = onnx__alloc(c->s, (size_t)(n * axis[0].n * axis[1].n + 1)), *to = out;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < axis[0].n; j++)
            for (int64_t k = 0; k < axis[1].n; k++) {
                int64_t a = regions[i] * axis[0].n + j, b = regions[i] * axis[1].n + k;
                *to++ = axis[0].to[a] > axis[0].from[a] && axis[1].to[b] > axis[1].from[b];
            }
    return gn_data_copy(c->g, GN_BOOL, GN_SHAPE(n, 1, axis[0].n, axis[1].n), out);
}

static void ox_max_roi_pool(onnx__call *c) {
    gn_tensor x = ox_in(c, 0);
    int n_shape;
    const int64_t *cells = ox_ints(c, "pooled_shape", &n_shape);
    gn_shape s = ox_in_shape(c, 0), q = ox_in_shape(c, 1);
    if (s.rank != 4 || q.rank != 2 || q.dims[1] != 5 || s.dims[2] < 1 || s.dims[3] < 1)
        onnx__no(c, "it takes x (N,C,H,W) with elements, and regions (R,5)");
    if (n_shape != 2 || cells[0] < 1 || cells[0] > 65536 || cells[1] < 1 || cells[1] > 65536)
        onnx__no(c, "a pooled_shape of %d numbers: 2 from 1 to 65536 are needed", n_shape);
    if (c->failed) return;
    int64_t C = s.dims[1], S, R = q.dims[0], *base = onnx__alloc(c->s, (size_t)(R + 1) * sizeof *base);
    ox_cells axis[2] = { { cells[0], s.dims[2], NULL, NULL }, { cells[1], s.dims[3], NULL, NULL } };
    ox_regions r = { .R = R, .each = cells[0] * cells[1] * C };
    ox_roi_pool_read(c, &r, axis, base);
    if (c->failed) return;
    if (!R) return ox_out_like(c, 0, gn_full(c->g, ox_dtype(c, 0), GN_SHAPE(0, C, cells[0], cells[1]), 0), 0);
    ox_regions_sort(c, &r);
    gn_tensor rows = gn_reshape(gn_permute(x, GN_AXES(0, 2, 3, 1)), GN_SHAPE(s.dims[0] * s.dims[2] * s.dims[3], C));
    for (int64_t i = 0, n; i < R; i += n) {
        n = ox_regions_run(&r, i, &S);
        const int64_t *these = r.order + i;
        gn_tensor id = gn_unsqueeze(ox_cell_elements(c, &axis[0], these, n, S, s.dims[3]), 2);
        id = gn_add(id, gn_unsqueeze(ox_cell_elements(c, &axis[1], these, n, S, 1), 1));
        gn_tensor first = gn_index_select(ox_step_indices(c, base, R), 0, ox_step_indices(c, these, n));
        gn_tensor y = gn_embedding(rows, gn_add(id, gn_reshape(first, GN_SHAPE(n, 1, 1))));
        y = gn_max(gn_reshape(y, GN_SHAPE(n, cells[0], S, cells[1], S, C)), GN_AXES(2, 4), false);
        y = gn_permute(y, GN_AXES(0, 3, 1, 2));
        r.parts[r.n_parts++] = gn_where(ox_cells_filled(c, axis, these, n), y, gn_like(y, 0));
    }
    ox_out_like(c, 0, ox_regions_join(c, &r), 0);
}
#endif
