/* wav.h - reads and writes waves of 16-bit samples in the WAV format (RIFF WAVE, PCM). C99; standard library.

       char error[WAV_ERROR];
       wav w;
       uint8_t *file = wav_load("a.wav", &w, error);              NULL: error says why; free(file) ends w too
       for (size_t i = 0; i < w.frames; i++) use(wav_mono(&w, i));

   A file is believed only if all of it fits: sizes of RIFF and of each chunk against the bytes that are there, one fmt
   chunk before one data chunk, PCM of 16 bits, one or two channels, and numbers in fmt that agree with each other.
   Chunks of other names are skipped. Other encodings are refused by name, none is converted.

   The format: Multimedia Programming Interface and Data Specifications 1.0, IBM and Microsoft 1991. */
#ifndef WAV_H
#define WAV_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WAV_ERROR = 256, WAV_MOST_BYTES = 256 << 20 };

typedef struct wav {
    const uint8_t *samples; /* frames * channels little-endian 16-bit numbers, the channels of one frame together */
    size_t frames;
    uint32_t rate; /* frames per second */
    int channels;  /* 1 or 2 */
} wav;

static inline uint32_t wav__u16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static inline uint32_t wav__u32(const uint8_t *p) { return wav__u16(p) | wav__u16(p + 2) << 16; }

static inline bool wav__fail(char *error, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, WAV_ERROR, format, args);
    va_end(args);
    return false;
}

/* One sample from -1 to 1. */
static inline float wav_sample(const wav *w, size_t frame, int channel) {
    uint32_t u = wav__u16(w->samples + 2 * (frame * (size_t)w->channels + (size_t)channel));
    return (float)((int32_t)u - (u & 0x8000 ? 0x10000 : 0)) / 32768;
}
/* The mean of the channels. */
static inline float wav_mono(const wav *w, size_t frame) {
    return w->channels == 1 ? wav_sample(w, frame, 0) : (wav_sample(w, frame, 0) + wav_sample(w, frame, 1)) / 2;
}

/* The body of a fmt chunk. */
static inline bool wav__format(const uint8_t *p, uint32_t size, wav *out, char *error) {
    if (size < 16) return wav__fail(error, "its fmt chunk has %u bytes, 16 are the least", (unsigned)size);
    uint32_t kind = wav__u16(p), channels = wav__u16(p + 2), rate = wav__u32(p + 4), bits = wav__u16(p + 14);
    if (kind != 1) return wav__fail(error, "its encoding is %u; only PCM (1) is read", (unsigned)kind);
    if (bits != 16) return wav__fail(error, "its samples have %u bits; only 16 are read", (unsigned)bits);
    if (channels != 1 && channels != 2)
        return wav__fail(error, "it has %u channels; one or two are read", (unsigned)channels);
    if (rate == 0 || wav__u16(p + 12) != 2 * channels || wav__u32(p + 8) != (uint64_t)rate * 2 * channels)
        return wav__fail(error, "the numbers of its fmt chunk contradict each other");
    out->rate = rate;
    out->channels = (int)channels;
    return true;
}

/* A file in memory; out->samples points into it. False: error says why, and *out is all zero. */
static inline bool wav_parse(const uint8_t *data, size_t size, wav *out, char error[WAV_ERROR]) {
    wav w = { NULL, 0, 0, 0 };
    memset(out, 0, sizeof *out);
    if (size < 12 || memcmp(data, "RIFF", 4) != 0 || memcmp(data + 8, "WAVE", 4) != 0)
        return wav__fail(error, "it is not a WAV file");
    if (wav__u32(data + 4) != size - 8)
        return wav__fail(error, "it says that it has %llu bytes, and has %llu",
                         (unsigned long long)wav__u32(data + 4) + 8, (unsigned long long)size);
    for (size_t at = 12; at < size;) {
        if (size - at < 8) return wav__fail(error, "a chunk at byte %llu is cut short", (unsigned long long)at);
        const uint8_t *body = data + at + 8;
        uint32_t bytes = wav__u32(data + at + 4);
        if ((uint64_t)bytes + (bytes & 1) > size - at - 8)
            return wav__fail(error, "the chunk at byte %llu says that it has %u bytes; %llu are there",
                             (unsigned long long)at, (unsigned)bytes, (unsigned long long)(size - at - 8));
        if (!memcmp(data + at, "fmt ", 4)) {
            if (w.rate) return wav__fail(error, "it has two fmt chunks");
            if (!wav__format(body, bytes, &w, error)) return false;
        } else if (!memcmp(data + at, "data", 4)) {
            if (!w.rate || w.samples) return wav__fail(error, "it has two data chunks, or one before its fmt chunk");
            if (bytes % (2 * (uint32_t)w.channels))
                return wav__fail(error, "its data of %u bytes ends within a frame", (unsigned)bytes);
            w.samples = body;
            w.frames = bytes / (2 * (uint32_t)w.channels);
        }
        at += 8 + (size_t)bytes + (bytes & 1);
    }
    if (!w.samples) return wav__fail(error, "it has no data chunk");
    *out = w;
    return true;
}

/* The whole file, of at most WAV_MOST_BYTES, which w points into. */
static inline uint8_t *wav_load(const char *path, wav *out, char error[WAV_ERROR]) {
    FILE *f = fopen(path, "rb");
    size_t room = 1 << 16, size = 0;
    uint8_t *data = f ? malloc(room) : NULL;
    int why = f ? 0 : errno;
    while (data) {
        size += fread(data + size, 1, room - size, f);
        if (size < room || room > WAV_MOST_BYTES) break;
        uint8_t *more = realloc(data, room *= 2);
        if (!more) free(data);
        data = more;
    }
    if (f && ferror(f)) why = errno ? errno : EIO;
    if (f) fclose(f);
    bool ok = data && !why && size <= WAV_MOST_BYTES && wav_parse(data, size, out, error);
    if (ok) return data;
    if (why) wav__fail(error, "%s", strerror(why));
    else if (!data) wav__fail(error, "out of memory");
    else if (size > WAV_MOST_BYTES) wav__fail(error, "it is larger than %d MiB", WAV_MOST_BYTES >> 20);
    free(data);
    return NULL;
}

/* One channel from -1 to 1; what is louder is refused. */
static inline bool wav_write(const char *path, const float *samples, size_t n, uint32_t rate, char error[WAV_ERROR]) {
    const uint32_t bytes = (uint32_t)(2 * n);
    const uint32_t numbers[] = { 36 + bytes, 16, 1 | 1 << 16, rate, 2 * rate, 2 | 16 << 16, bytes };
    static const char *const words[] = { "RIFF", "WAVEfmt ", "", "", "", "", "data" };
    if (n > (WAV_MOST_BYTES - 44) / 2) return wav__fail(error, "it would be larger than %d MiB", WAV_MOST_BYTES >> 20);
    for (size_t i = 0; i < n; i++)
        if (!(samples[i] >= -1 && samples[i] <= 1)) return wav__fail(error, "a sample is outside -1 to 1");
    FILE *f = fopen(path, "wb");
    bool ok = f != NULL;
    for (int i = 0; ok && i < 7; i++) {
        uint8_t b[4] = { (uint8_t)numbers[i], (uint8_t)(numbers[i] >> 8), (uint8_t)(numbers[i] >> 16),
                         (uint8_t)(numbers[i] >> 24) };
        ok = fputs(words[i], f) >= 0 && fwrite(b, 1, 4, f) == 4;
    }
    for (size_t i = 0; ok && i < n; i++) {
        int32_t v = (int32_t)(32767 * samples[i] + (samples[i] < 0 ? -0.5f : 0.5f));
        ok = fputc(v & 255, f) != EOF && fputc(v >> 8 & 255, f) != EOF;
    }
    if (f && fclose(f) != 0) ok = false;
    return ok ? true : wav__fail(error, "%s", strerror(errno));
}

#endif
