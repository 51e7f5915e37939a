/* picture.h - reads pictures as 8-bit RGB: PPM and PGM itself, PNG and JPEG with libraries that are found at run time.

   One C file of the program:   #define PICTURE_IMPLEMENTATION
                                #include "picture.h"
   Elsewhere:                   #include "picture.h"       C99 and C++11; POSIX; -ldl with an older C library.

       picture p;
       char error[PICTURE_ERROR];
       if (!picture_open(&p, "cat.png", error)) puts(error);
       ... p.rgb[3 * (y * p.width + x)] ...                rows from the top, no gaps
       picture_close(&p);

   The kind is told by the first bytes, not by the name. PPM and PGM are the binary kinds (P6, P5) with at most 8 bits a
   sample, one picture a file, checked to its last byte: https://netpbm.sourceforge.net/doc/ppm.html. PNG needs
   libpng16, JPEG needs libturbojpeg; where one is missing, the error says what to install. What is transparent in a PNG
   is shown on white. A picture has at most 2^26 pixels, a file at most 2^28 bytes; nothing is allocated for a picture
   before its size has been checked. */
#ifndef PICTURE_H
#define PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PICTURE_ERROR = 512 };

typedef struct picture {
    int64_t width, height; /* pixels, 1 or more */
    uint8_t *rgb;          /* height * width * 3 */
} picture;

/* False: `error` says why, and there is nothing to close. */
bool picture_open(picture *out, const char *path, char error[PICTURE_ERROR]);
/* The same of a file's bytes; `name` is for errors. */
bool picture_read(picture *out, const void *data, size_t size, const char *name, char error[PICTURE_ERROR]);
void picture_close(picture *p);

#ifdef __cplusplus
}
#endif
#endif

#if defined(PICTURE_IMPLEMENTATION) && !defined(PICTURE_IMPLEMENTED)
#define PICTURE_IMPLEMENTED
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PICTURE__PIXELS = 1 << 26, PICTURE__BYTES = 1 << 28 };

/* What is read: the bytes of a file, where the reader stands, whom to tell what is wrong. */
typedef struct picture__file {
    const uint8_t *data;
    size_t size, at;
    const char *name;
    char *error;
} picture__file;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
picture__fail(const picture__file *f, const char *format, ...) {
    int n = snprintf(f->error, PICTURE_ERROR, "%.200s: ", f->name);
    va_list args;
    va_start(args, format);
    vsnprintf(f->error + n, PICTURE_ERROR - (size_t)n, format, args);
    va_end(args);
    return false;
}

/* Room for a picture of a size that a file states. */
static bool picture__room(picture *p, const picture__file *f, int64_t width, int64_t height) {
    if (width < 1 || height < 1 || width > PICTURE__PIXELS || height > PICTURE__PIXELS / width)
        return picture__fail(f, "a picture of %lld x %lld pixels; 1 to %d are read", (long long)width,
                             (long long)height, PICTURE__PIXELS);
    *p = (picture){ .width = width, .height = height, .rgb = (uint8_t *)malloc((size_t)(width * height * 3)) };
    return p->rgb || picture__fail(f, "out of memory for %lld x %lld pixels", (long long)width, (long long)height);
}

/* ---- PPM and PGM ---- */

static bool picture__blank(uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* The next number of a header: blanks or comments, then digits. A comment goes from # to the end of its line. */
static bool picture__number(picture__file *f, const char *what, int64_t most, int64_t *out) {
    size_t begin = f->at;
    while (f->at < f->size && (picture__blank(f->data[f->at]) || f->data[f->at] == '#'))
        if (f->data[f->at++] == '#')
            while (f->at < f->size && f->data[f->at] != '\n' && f->data[f->at] != '\r') f->at++;
    size_t first = f->at;
    for (*out = 0; f->at < f->size && f->data[f->at] >= '0' && f->data[f->at] <= '9' && *out <= most; f->at++)
        *out = *out * 10 + (f->data[f->at] - '0');
    if (first == begin || f->at == first)
        return picture__fail(f, f->at >= f->size ? "ends at byte %zu, before its %s" : "byte %zu: no %s", f->at, what);
    return *out <= most || picture__fail(f, "byte %zu: its %s is more than %lld", first, what, (long long)most);
}

/* Samples of 0 to `most` become 0 to 255; one of a grey picture becomes three. */
static bool picture__samples(picture *p, picture__file *f, int64_t most, int channels) {
    int64_t n = p->width * p->height * channels, more = 3 / channels;
    for (int64_t i = 0; i < n; i++) {
        int64_t v = f->data[f->at + (size_t)i];
        if (v > most)
            return picture__fail(f, "byte %zu: a sample of %lld, though the largest is stated to be %lld",
                                 f->at + (size_t)i, (long long)v, (long long)most);
        memset(p->rgb + i * more, (int)((v * 255 + most / 2) / most), (size_t)more);
    }
    return true;
}

static bool picture__netpbm(picture *p, picture__file *f) {
    int channels = f->data[1] == '6' ? 3 : 1;
    int64_t width, height, most;
    f->at = 2;
    if (!picture__number(f, "width", PICTURE__PIXELS, &width) ||
        !picture__number(f, "height", PICTURE__PIXELS, &height) || !picture__number(f, "largest sample", 65535, &most))
        return false;
    if (most < 1 || most > 255)
        return picture__fail(f, "its largest sample is %lld; 1 to 255 is read", (long long)most);
    if (f->at >= f->size || !picture__blank(f->data[f->at]))
        return picture__fail(f, "byte %zu: one blank stands before the samples", f->at);
    f->at++;
    uint64_t have = f->size - f->at;
    bool fits = width > 0 && height > 0 && width <= PICTURE__PIXELS / height;
    if (fits && have != (uint64_t)(width * height * channels))
        return picture__fail(f, "%lld x %lld pixels take %lld bytes, and %llu follow the header", (long long)width,
                             (long long)height, (long long)(width * height * channels), (unsigned long long)have);
    return picture__room(p, f, width, height) && picture__samples(p, f, most, channels);
}

/* ---- PNG and JPEG ---- */

/* A library by the names that systems give it; the last loaded stays for the next picture. */
static void *picture__library(const picture__file *f, const char *const *names, const char *kind, const char *install) {
    for (; *names; names++) {
        void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
        if (library) return library;
    }
    picture__fail(f, "a %s picture needs a library that is not here: install %s, or convert it to PPM", kind, install);
    return NULL;
}

/* A function of a library, into a pointer to a function; false: it has none of that name. */
static bool picture__function(void *library, const char *name, void *out) {
    void *found = dlsym(library, name);
    memcpy(out, &found, sizeof found);
    return found != NULL;
}

/* libpng's png_image, version 1 of its simplified interface: http://www.libpng.org/pub/png/libpng-manual.txt */
typedef struct picture__png_image {
    void *opaque;
    uint32_t version, width, height, format, flags, colormap_entries, warning_or_error;
    char message[64];
} picture__png_image;

static bool picture__png(picture *p, picture__file *f) {
    static const char *const names[] = { "libpng16.so.16", "libpng16.dylib", "libpng16.so", NULL };
    int (*begin)(picture__png_image *, const void *, size_t);
    int (*finish)(picture__png_image *, const void *, void *, int32_t, void *);
    void (*end)(picture__png_image *);
    void *library = picture__library(f, names, "PNG", "libpng16 (Debian: libpng16-16)");
    if (!library) return false;
    if (!picture__function(library, "png_image_begin_read_from_memory", (void *)&begin) ||
        !picture__function(library, "png_image_finish_read", (void *)&finish) ||
        !picture__function(library, "png_image_free", (void *)&end))
        return picture__fail(f, "libpng16 here lacks the functions png_image_...: version 1.6 has them");
    const uint8_t white[3] = { 255, 255, 255 };
    picture__png_image image = { .version = 1 };
    bool ok = begin(&image, f->data, f->size) || picture__fail(f, "libpng: %.63s", image.message);
    image.format = 2; /* 8-bit RGB */
    if (ok && (ok = picture__room(p, f, image.width, image.height)))
        ok = finish(&image, white, p->rgb, 0, NULL) || picture__fail(f, "libpng: %.63s", image.message);
    end(&image);
    return ok;
}

/* libturbojpeg's decompressor: https://libjpeg-turbo.org/Documentation/Documentation */
static bool picture__jpeg(picture *p, picture__file *f) {
    static const char *const names[] = { "libturbojpeg.so.0", "libturbojpeg.dylib", "libturbojpeg.so", NULL };
    enum { RGB = 0, ACCURATE_DCT = 4096, STOP_ON_WARNING = 8192 };
    void *(*init)(void);
    int (*header)(void *, const uint8_t *, unsigned long, int *, int *, int *, int *);
    int (*decompress)(void *, const uint8_t *, unsigned long, uint8_t *, int, int, int, int, int);
    char *(*text)(void *);
    int (*destroy)(void *), width = 0, height = 0, sampling, space;
    void *library = picture__library(f, names, "JPEG", "libturbojpeg (Debian: libturbojpeg0)");
    if (!library) return false;
    if (!picture__function(library, "tjInitDecompress", (void *)&init) ||
        !picture__function(library, "tjDecompressHeader3", (void *)&header) ||
        !picture__function(library, "tjDecompress2", (void *)&decompress) ||
        !picture__function(library, "tjGetErrorStr2", (void *)&text) ||
        !picture__function(library, "tjDestroy", (void *)&destroy))
        return picture__fail(f, "libturbojpeg here lacks the functions tj...: version 1.4 and later have them");
    void *handle = init();
    if (!handle) return picture__fail(f, "libturbojpeg: out of memory");
    bool ok = !header(handle, f->data, (unsigned long)f->size, &width, &height, &sampling, &space) ||
              picture__fail(f, "libturbojpeg: %.200s", text(handle));
    if (ok && (ok = picture__room(p, f, width, height)))
        ok = !decompress(handle, f->data, (unsigned long)f->size, p->rgb, width, 0, height, RGB,
                         ACCURATE_DCT | STOP_ON_WARNING) ||
             picture__fail(f, "libturbojpeg: %.200s", text(handle));
    destroy(handle);
    return ok;
}

/* ---- any ---- */

static const struct {
    const char *magic;
    size_t size;
    bool (*read)(picture *, picture__file *);
} picture__kinds[] = {
    { "P5", 2, picture__netpbm },
    { "P6", 2, picture__netpbm },
    { "\x89PNG\r\n\x1a\n", 8, picture__png },
    { "\xff\xd8\xff", 3, picture__jpeg },
};

bool picture_read(picture *out, const void *data, size_t size, const char *name, char error[PICTURE_ERROR]) {
    picture__file f = { .data = (const uint8_t *)data, .size = size, .name = name, .error = error };
    *out = (picture){ 0, 0, NULL };
    for (size_t i = 0; i < sizeof picture__kinds / sizeof *picture__kinds; i++) {
        if (size < picture__kinds[i].size || memcmp(data, picture__kinds[i].magic, picture__kinds[i].size)) continue;
        if (picture__kinds[i].read(out, &f)) return true;
        picture_close(out);
        return false;
    }
    return picture__fail(&f, "not a picture that is read: binary PPM or PGM (P6, P5), PNG, JPEG");
}

bool picture_open(picture *out, const char *path, char error[PICTURE_ERROR]) {
    picture__file f = { .name = path, .error = error };
    FILE *from = fopen(path, "rb");
    uint8_t *data = NULL;
    bool ok = from != NULL || picture__fail(&f, "%s", strerror(errno));
    for (size_t room = 1 << 16, got = 1; ok && got; room = f.size == room ? 2 * room : room) {
        uint8_t *more = (uint8_t *)realloc(data, room);
        ok = more != NULL || picture__fail(&f, "out of memory");
        if (!ok) break;
        data = more;
        f.size += got = fread(data + f.size, 1, room - f.size, from);
        ok = (!ferror(from) || picture__fail(&f, "%s", strerror(errno))) &&
             (f.size <= PICTURE__BYTES || picture__fail(&f, "longer than %d bytes", PICTURE__BYTES));
    }
    if (from) fclose(from);
    ok = ok && picture_read(out, data, f.size, path, error);
    free(data);
    return ok;
}

void picture_close(picture *p) {
    free(p->rgb);
    *p = (picture){ 0, 0, NULL };
}
#endif
