/* Clicks that a hidden rule makes, for examples/recommend: what a shop might know of a visit, and whether the visitor
 * clicked. Ids are drawn with the skew of real logs (Zipf 1935): the id of rank r with a probability of about 1 / r. */
#ifndef CLICKS_H
#define CLICKS_H

#include "random.h"

enum { CLICKS_DENSE = 6, CLICKS_HIDDEN = 3, CLICKS_FIELDS = 7 };

/* A field of a visit: a bag of `least` to `most` ids. */
typedef struct clicks_field {
    const char *name;
    int32_t ids, least, most;
} clicks_field;

static const clicks_field clicks_fields[CLICKS_FIELDS] = {
    { "item", 8000, 1, 1 }, { "visitor", 20000, 1, 1 }, { "seen_before", 8000, 0, 12 }, { "words", 3000, 1, 5 },
    { "city", 600, 1, 1 },  { "tags", 1000, 0, 6 },     { "device", 40, 1, 1 },
};

/* One field's ids: how often each is drawn (a table of aliases: Walker 1977), and what the rule knows of it. */
typedef struct clicks_ids {
    double *keep;
    int32_t *alias;
    float *taste; /* (ids, CLICKS_HIDDEN + 1): a vector, and how much the id adds by itself */
} clicks_ids;

typedef struct clicks {
    clicks_ids field[CLICKS_FIELDS];
    double dense[CLICKS_DENSE];
} clicks;

/* A batch, in memory of the caller's. Ids lie one bag after the other; room for them is batch * most of the field. */
typedef struct clicks_batch {
    int64_t n;
    float *dense;  /* (n, CLICKS_DENSE) */
    float *label;  /* (n), 0 or 1 */
    float *chance; /* (n), what the rule says: nobody can predict better */
    int32_t *ids[CLICKS_FIELDS], *lengths[CLICKS_FIELDS];
} clicks_batch;

static inline void clicks_close(clicks *c) {
    for (int f = 0; f < CLICKS_FIELDS; f++) {
        free(c->field[f].keep);
        free(c->field[f].alias);
        free(c->field[f].taste);
    }
    memset(c, 0, sizeof *c);
}

/* Pairs each id that is drawn less than 1 / n of the time with one that is drawn more. `keep` holds n times the
 * probabilities at first. */
static inline bool clicks_pair(clicks_ids *f, int32_t n) {
    int32_t *small = malloc((size_t)n * sizeof *small), *large = malloc((size_t)n * sizeof *large), s = 0, l = 0;
    bool ok = small && large;
    for (int32_t i = 0; ok && i < n; i++) {
        f->alias[i] = i;
        if (f->keep[i] < 1) small[s++] = i;
        else large[l++] = i;
    }
    while (ok && s && l) {
        int32_t a = small[--s], b = large[l - 1];
        f->alias[a] = b;
        f->keep[b] -= 1 - f->keep[a];
        if (f->keep[b] < 1) {
            l--;
            small[s++] = b;
        }
    }
    free(small);
    free(large);
    return ok;
}

static inline bool clicks_open(clicks *c, uint64_t seed) {
    uint64_t random = random_begin(seed, 10);
    bool ok = true;
    memset(c, 0, sizeof *c);
    for (int k = 0; k < CLICKS_DENSE; k++) c->dense[k] = 0.4 * random_normal(&random);
    for (int k = 0; k < CLICKS_FIELDS && ok; k++) {
        clicks_ids *f = &c->field[k];
        int32_t n = clicks_fields[k].ids;
        size_t hidden = (size_t)n * (CLICKS_HIDDEN + 1);
        double sum = 0;
        f->keep = malloc((size_t)n * sizeof *f->keep);
        f->alias = malloc((size_t)n * sizeof *f->alias);
        f->taste = malloc(hidden * sizeof *f->taste);
        ok = f->keep && f->alias && f->taste;
        for (int32_t i = 0; ok && i < n; i++) sum += 1.0 / (i + 1);
        for (int32_t i = 0; ok && i < n; i++) f->keep[i] = n / (sum * (i + 1));
        for (size_t i = 0; ok && i < hidden; i++) f->taste[i] = (float)random_normal(&random);
        ok = ok && clicks_pair(f, n);
    }
    return ok;
}

static inline int32_t clicks_draw(const clicks_ids *f, int32_t n, uint64_t *random) {
    int32_t i = (int32_t)random_int(random, n);
    return random_uniform(random, 0, 1) < f->keep[i] ? i : f->alias[i];
}

/* Draws one bag; adds the mean of what the rule knows of its ids to sum[CLICKS_HIDDEN + 1]. Returns how many ids. */
static inline int32_t clicks_bag(const clicks *c, int k, uint64_t *random, int32_t *ids, double *sum) {
    const clicks_field *field = &clicks_fields[k];
    int32_t n = field->least + (int32_t)random_int(random, field->most - field->least + 1);
    for (int32_t i = 0; i < n; i++) {
        ids[i] = clicks_draw(&c->field[k], field->ids, random);
        for (int h = 0; h <= CLICKS_HIDDEN; h++)
            sum[h] += c->field[k].taste[ids[i] * (CLICKS_HIDDEN + 1) + h] / (double)n;
    }
    return n;
}

/* One visit: how it is to be liked depends on each field, on how what was seen before, the words and the visitor fit
 * the item, and on the dense numbers, one of them squared. */
static inline void clicks_visit(const clicks *c, uint64_t *random, clicks_batch *b, int64_t row, int64_t *at) {
    double taste[CLICKS_FIELDS][CLICKS_HIDDEN + 1] = { { 0 } }, score = -0.4;
    for (int k = 0; k < CLICKS_FIELDS; k++) {
        b->lengths[k][row] = clicks_bag(c, k, random, b->ids[k] + at[k], taste[k]);
        at[k] += b->lengths[k][row];
        score += 0.5 * taste[k][CLICKS_HIDDEN];
    }
    for (int k = 1; k <= 3; k++)
        for (int h = 0; h < CLICKS_HIDDEN; h++) score += 0.8 * taste[0][h] * taste[k][h];
    for (int k = 0; k < CLICKS_DENSE; k++) {
        double x = random_normal(random);
        b->dense[row * CLICKS_DENSE + k] = (float)x;
        score += c->dense[k] * (k == 0 ? x * x - 1 : x);
    }
    b->chance[row] = (float)(1 / (1 + exp(-1.5 * score)));
    b->label[row] = random_uniform(random, 0, 1) < b->chance[row] ? 1.0f : 0.0f;
}

/* The next b->n visits. What is left of the room for ids is 0, an id that is in no bag. */
static inline void clicks_next(const clicks *c, uint64_t *random, clicks_batch *b) {
    int64_t at[CLICKS_FIELDS] = { 0 };
    for (int64_t row = 0; row < b->n; row++) clicks_visit(c, random, b, row, at);
    for (int k = 0; k < CLICKS_FIELDS; k++)
        memset(b->ids[k] + at[k], 0, (size_t)(b->n * clicks_fields[k].most - at[k]) * sizeof *b->ids[k]);
}

static inline void clicks_batch_destroy(clicks_batch *b) {
    free(b->dense);
    free(b->label);
    free(b->chance);
    for (int k = 0; k < CLICKS_FIELDS; k++) {
        free(b->ids[k]);
        free(b->lengths[k]);
    }
    memset(b, 0, sizeof *b);
}

static inline bool clicks_batch_make(clicks_batch *b, int64_t n) {
    memset(b, 0, sizeof *b);
    b->n = n;
    b->dense = malloc((size_t)n * CLICKS_DENSE * sizeof *b->dense);
    b->label = malloc((size_t)n * sizeof *b->label);
    b->chance = malloc((size_t)n * sizeof *b->chance);
    bool ok = b->dense && b->label && b->chance;
    for (int k = 0; k < CLICKS_FIELDS; k++) {
        b->ids[k] = malloc((size_t)(n * clicks_fields[k].most) * sizeof *b->ids[k]);
        b->lengths[k] = malloc((size_t)n * sizeof *b->lengths[k]);
        ok = ok && b->ids[k] && b->lengths[k];
    }
    return ok;
}

/* ---- area under the ROC curve: how often a click scores above a visit without one; equal scores count half ---- */
typedef struct clicks_scored {
    float score, label;
} clicks_scored;

static inline int clicks_compare(const void *a, const void *b) {
    float x = ((const clicks_scored *)a)->score, y = ((const clicks_scored *)b)->score;
    return (x > y) - (x < y);
}

/* Sorts them. NaN without both a click and a visit without one. */
static inline double clicks_auc(clicks_scored *s, size_t n) {
    double clicked = 0, not = 0, above = 0;
    qsort(s, n, sizeof *s, clicks_compare);
    for (size_t i = 0, end; i < n; i = end) {
        double yes = 0, no = 0;
        for (end = i; end < n && !(s[end].score > s[i].score); end++) {
            yes += s[end].label > 0;
            no += !(s[end].label > 0);
        }
        above += yes * (not +no / 2);
        clicked += yes;
        not += no;
    }
    return above / (clicked * not );
}

#endif
