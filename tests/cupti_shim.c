/* A stand-in for CUPTI: tells of one record of each kind, laid out byte by byte as the headers of CUDA 12.9 and 13.5
 * have it. tests/genie_trace_test.sh has genie_trace record meet it. */
#include <stdint.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

static void (*wanted)(uint8_t **, size_t *, size_t *);
static void (*full)(void *, uint32_t, uint8_t *, size_t, size_t);
static int enabled[64];

API int cuptiActivityRegisterCallbacks(void (*a)(uint8_t **, size_t *, size_t *),
                                       void (*b)(void *, uint32_t, uint8_t *, size_t, size_t));
API int cuptiActivityEnable(int kind);
API int cuptiActivityFlushAll(uint32_t flags);
API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record);
API int cuptiGetCallbackName(int domain, uint32_t id, const char **out);
API int cuptiGetTimestamp(uint64_t *out);

int cuptiActivityRegisterCallbacks(void (*a)(uint8_t **, size_t *, size_t *),
                                   void (*b)(void *, uint32_t, uint8_t *, size_t, size_t)) {
    wanted = a;
    full = b;
    return 0;
}
int cuptiActivityEnable(int kind) { return kind < 64 ? (enabled[kind] = 1, 0) : 1; }

/* A clock of its own: 5 s ahead of the monotonic one. */
int cuptiGetTimestamp(uint64_t *out) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *out = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + 5000000000u;
    return 0;
}

int cuptiGetCallbackName(int domain, uint32_t id, const char **out) {
    *out = domain == 1 && id == 307 ? "cuLaunchKernel" : domain == 2 && id == 211 ? "cudaLaunchKernel_v7000" : "other";
    return 0;
}

enum { RECORD = 256 };

static void put(uint8_t *at, const void *value, size_t n) { memcpy(at, value, n); }
static void put4(uint8_t *at, uint32_t v) { put(at, &v, 4); }
static void put8(uint8_t *at, uint64_t v) { put(at, &v, 8); }

static uint8_t *begin(uint8_t *at, uint32_t kind) {
    memset(at, 0, RECORD);
    put4(at, kind);
    return at;
}

int cuptiActivityFlushAll(uint32_t flags) {
    static const char *const name = "vector_add<float>(\"quoted\")";
    uint8_t *p = NULL;
    size_t size = 0, most = 0;
    uint64_t now;
    (void)flags;
    if (!enabled[10] || !enabled[1] || !enabled[4] || !enabled[5]) return 1;
    cuptiGetTimestamp(&now);
    wanted(&p, &size, &most);
    if (size < 8 * RECORD) return 1;
    uint8_t *k = begin(p, 10);
    put8(k + 16, now);
    put8(k + 24, now + 4000);
    put4(k + 40, 1);
    put4(k + 48, 7);
    put4(k + 52, 128);
    put4(k + 56, 1);
    put4(k + 60, 1);
    put4(k + 64, 256);
    put4(k + 68, 1);
    put4(k + 72, 1);
    put(k + 104, &name, sizeof name);
    uint8_t *c = begin(p + RECORD, 1);
    c[4] = 1; /* from the host to the device */
    put8(c + 8, 1048576);
    put8(c + 16, now + 5000);
    put8(c + 24, now + 9000);
    put4(c + 40, 7);
    uint8_t *d = begin(p + 2 * RECORD, 4);
    put4(d + 4, 307);
    put8(d + 8, now - 2000);
    put8(d + 16, now - 1000);
    put4(d + 28, 4242);
    uint8_t *r = begin(p + 3 * RECORD, 5);
    put4(r + 4, 211);
    put8(r + 8, now - 3000);
    put8(r + 16, now - 500);
    put4(r + 28, 4242);
    full(NULL, 0, p, size, 4 * RECORD);
    return 0;
}

int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record) {
    uint8_t *next = *record ? (uint8_t *)*record + RECORD : buffer;
    if (next >= buffer + valid) return 12;
    *record = next;
    return 0;
}
