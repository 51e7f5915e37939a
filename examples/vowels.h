/* Words of three vowels, spoken by a synthesiser of voices: pulses of the vocal cords through a filter for each of
 * three formants (Fant 1960; frequencies of Peterson & Barney 1952, of men, which a voice scales). For
 * examples/speech. */
#ifndef VOWELS_H
#define VOWELS_H

#include "random.h"

enum { VOWELS_RATE = 8000, VOWELS_SAMPLES = 8192, VOWELS_WORDS = 10 };
#define VOWELS_PI 3.141592653589793

/* The same vowels in different orders, so that a word is known by its order alone. */
static const char *const vowels_words[VOWELS_WORDS] = { "aiu", "aui", "iau", "iua", "uai",
                                                        "uia", "eao", "eoa", "oea", "oae" };

static inline const double *vowels_formants(char vowel) { /* Hz */
    static const double a[3] = { 730, 1090, 2440 }, e[3] = { 530, 1840, 2480 }, i[3] = { 270, 2290, 3010 },
                        o[3] = { 570, 840, 2410 }, u[3] = { 300, 870, 2240 };
    return vowel == 'a' ? a : vowel == 'e' ? e : vowel == 'i' ? i : vowel == 'o' ? o : u;
}

typedef struct vowels_voice {
    double pitch, drift, size, loud, noise; /* Hz, Hz a second, a factor on formants, amplitudes */
    double begin, end[3];                   /* seconds: of the word, and of each vowel */
} vowels_voice;

static inline vowels_voice vowels_any_voice(uint64_t *random) {
    vowels_voice v = { .pitch = random_uniform(random, 85, 230),
                       .drift = random_uniform(random, -40, 20),
                       .size = random_uniform(random, 0.88, 1.16),
                       .loud = random_uniform(random, 0.15, 0.8),
                       .begin = random_uniform(random, 0.02, 0.12) };
    v.noise = v.loud * random_uniform(random, 0.005, 0.06);
    double at = v.begin;
    for (int k = 0; k < 3; k++) v.end[k] = at += random_uniform(random, 0.16, 0.29);
    return v;
}

/* The formants at a time: those of a vowel, with 50 ms from one to the next. */
static inline void vowels_at(const vowels_voice *v, const char *word, double t, double out[3]) {
    int k = t < v->end[0] ? 0 : t < v->end[1] ? 1 : 2;
    const double *now = vowels_formants(word[k]), *before = vowels_formants(word[k ? k - 1 : 0]);
    double share = k ? fmin(1, (t - v->end[k - 1]) / 0.05) : 1;
    for (int f = 0; f < 3; f++) out[f] = v->size * (before[f] + share * (now[f] - before[f]));
}

/* One second of a word of three vowels, from -1 to 1, in a voice of its own. */
static inline void vowels_say(const char *word, uint64_t *random, float out[VOWELS_SAMPLES]) {
    static const double bandwidth[3] = { 60, 90, 130 };
    vowels_voice v = vowels_any_voice(random);
    double y[3][2] = { { 0 } }, phase = 0, formant[3] = { 0 }, a[3] = { 0 }, b[3] = { 0 }, peak = 1e-9;
    for (int i = 0; i < VOWELS_SAMPLES; i++) {
        double t = (double)i / VOWELS_RATE, pitch = v.pitch + v.drift * t, x = 0;
        if (i % 32 == 0) vowels_at(&v, word, t, formant);
        phase += pitch / VOWELS_RATE;
        if (phase >= 1) phase -= 1, x = t > v.begin && t < v.end[2] ? 1 : 0;
        for (int f = 0; f < 3; f++) { /* x + a y[-1] + b y[-2], 1 at 0 Hz */
            if (i % 32 == 0) {
                double radius = exp(-VOWELS_PI * bandwidth[f] / VOWELS_RATE);
                a[f] = 2 * radius * cos(2 * VOWELS_PI * fmin(formant[f], 3900) / VOWELS_RATE);
                b[f] = -radius * radius;
            }
            x = (1 - a[f] - b[f]) * x + a[f] * y[f][0] + b[f] * y[f][1];
            y[f][1] = y[f][0];
            y[f][0] = x;
        }
        out[i] = (float)x;
        peak = fmax(peak, fabs(x));
    }
    for (int i = 0; i < VOWELS_SAMPLES; i++) {
        double x = v.loud * (double)out[i] / peak + v.noise * random_uniform(random, -1, 1);
        out[i] = (float)fmax(-1, fmin(1, x));
    }
}

#endif
