/* Weights that name a file and an offset: the same bits as from memory, on this CPU, through a server and on the device
 * of $GENIE_TEST_DEVICES; no copy in this program; files that are missing, too short, cut or replaced meanwhile.
 *
 * Tier: quick address thread */
#define GENIE_EXT
#include "../examples/common.h"

#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "loopback.h"

enum { ROWS = 300, COLUMNS = 500, BYTES = ROWS * COLUMNS * 4, ODD = 137, LARGE = 16 << 20 };

static float values[ROWS * COLUMNS], x[ROWS];
static char path[64];

static void write_file(const char *name, const void *bytes, size_t n, size_t before) {
    char zero[ODD + 1] = { 0 };
    FILE *to = fopen(name, "wb");
    if (!to || before > sizeof zero || fwrite(zero, 1, before, to) != before || fwrite(bytes, 1, n, to) != n)
        test_fail(__FILE__, __LINE__, "the file is not written");
    if (to) fclose(to);
}

static void prepare(size_t before) {
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)test_random_int(-1000, 1000) / 64;
    for (int i = 0; i < ROWS; i++) x[i] = (float)test_random_int(-1000, 1000) / 64;
    snprintf(path, sizeof path, "/tmp/genie_weight_%ld", (long)getpid());
    write_file(path, values, sizeof values, before);
}

static gn_ctx *device(int which) {
    const char *named = getenv("GENIE_TEST_DEVICES");
    if (which == 0) return gn_open(&(gn_desc){ .devices = "cpu" });
    return which == 1 ? loopback_open(&(gn_desc){ 0 }) : named ? gn_open(&(gn_desc){ .devices = named }) : NULL;
}

static gn_tensor of_file(gn_ctx *g, const char *name, uint64_t offset) {
    return gn_weight_file(g, GN_F32, GN_SHAPE(ROWS, COLUMNS), name, offset, "filed");
}

static gn_result product(gn_ctx *g, gn_tensor w, float *out) {
    return gn_read(gn_matmul(gn_data(g, GN_F32, GN_SHAPE(1, ROWS), x), w), out, COLUMNS * 4);
}

TEST(the_same_bits_as_from_memory) {
    static float want[COLUMNS], got[COLUMNS];
    for (int odd = 0; odd < 2; odd++)
        for (int which = 0; which < 3; which++) {
            uint64_t offset = odd ? ODD : 64;
            prepare(offset);
            gn_ctx *g = device(which);
            if (!g) continue;
            CHECK_RESULT(product(g, gn_weight(g, GN_F32, GN_SHAPE(ROWS, COLUMNS), values, "held"), want), GN_OK);
            memset(got, 0xee, sizeof got);
            gn_tensor w = of_file(g, path, offset), again = of_file(g, path, offset);
            CHECK_RESULT(product(g, w, got), GN_OK);
            CHECK(memcmp(want, got, sizeof want) == 0);
            CHECK_RESULT(gn_release(w), GN_OK);
            memset(got, 0xee, sizeof got);
            CHECK_RESULT(product(g, again, got), GN_OK); /* the file is still open for it */
            CHECK(memcmp(want, got, sizeof want) == 0);
            CHECK_RESULT(gn_release(again), GN_OK);
            gn_close(g);
        }
    unlink(path);
}

/* A weight, a value and a state of bytes at `p`, as a product and an element of its own each, in f64. */
static void of_bytes(gn_ctx *g, gn_dtype dtype, const uint8_t *p, double out[6]) {
    gn_tensor t[3] = { gn_weight(g, dtype, GN_SHAPE(24, 24), p, "w"), gn_data(g, dtype, GN_SHAPE(24, 24), p),
                       gn_state(g, dtype, GN_SHAPE(24, 24), p, "s") };
    for (int i = 0; i < 3; i++) {
        gn_tensor sum = gn_sum(gn_cast(gn_matmul(t[i], t[i]), GN_F64), GN_ALL_AXES, false);
        gn_tensor one = gn_cast(gn_slice(gn_add(t[i], t[i]), 1, 3, 4, 1), GN_F64);
        CHECK_RESULT(gn_read(sum, &out[i], sizeof out[i]), GN_OK);
        CHECK_RESULT(gn_read(gn_sum(one, GN_ALL_AXES, false), &out[3 + i], sizeof out[i]), GN_OK);
    }
}

/* What files hold begins anywhere: a header's length need not be a multiple of a dtype's size. */
TEST(bytes_at_any_alignment_are_the_same_value) {
    static const gn_dtype dtypes[] = { GN_F16, GN_F32, GN_F64, GN_I64 };
    static _Alignas(64) uint8_t even[24 * 24 * 8], odd[24 * 24 * 8 + 8];
    int32_t whole[576];
    for (int i = 0; i < 576; i++) whole[i] = i * 7 % 23 - 5;
    for (int which = 0; which < 2; which++)
        for (int d = 0; d < 4; d++) {
            gn_ctx *g = device(which);
            gn_tensor small = gn_cast(gn_data(g, GN_I32, GN_SHAPE(24, 24), whole), dtypes[d]);
            size_t bytes = 576 * (d == 0 ? 2u : d == 1 ? 4u : 8u);
            CHECK_RESULT(gn_read(small, even, bytes), GN_OK);
            double want[6], got[6];
            of_bytes(g, dtypes[d], even, want);
            CHECK(want[0] > 1000 && want[0] == want[1] && want[0] == want[2]);
            for (int at = 1; at < 8; at++) {
                memcpy(odd + at, even, bytes);
                of_bytes(g, dtypes[d], odd + at, got);
                CHECK(memcmp(want, got, sizeof want) == 0);
            }
            gn_close(g);
        }
}

TEST(a_server_that_has_the_bytes_is_sent_none) {
    static float out[COLUMNS];
    gn_stats first, second;
    prepare(ODD);
    gn_ctx *g = device(1);
    CHECK_RESULT(product(g, of_file(g, path, ODD), out), GN_OK);
    gn_get_stats(g, &first);
    gn_close(g);
    g = device(1);
    CHECK_RESULT(product(g, gn_weight(g, GN_F32, GN_SHAPE(ROWS, COLUMNS), values, "held"), out), GN_OK);
    gn_get_stats(g, &second);
    gn_close(g);
    CHECK(first.weight_bytes_sent == BYTES && second.weight_bytes_sent == 0 && second.weight_bytes_known == BYTES);
    unlink(path);
}

static int64_t status_bytes(const char *name) {
    char line[128];
    long long kb = -1;
    size_t n = strlen(name);
    FILE *from = fopen("/proc/self/status", "r");
    while (from && fgets(line, sizeof line, from))
        if (strncmp(line, name, n) == 0 && line[n] == ':') sscanf(line + n + 1, "%lld", &kb);
    if (from) fclose(from);
    return kb * 1024;
}

/* Through a server in this process: its copy, and nothing else. On the CPU: no copy at all. */
TEST(the_program_holds_no_copy) {
    if (TEST_SANITIZED || status_bytes("RssAnon") < 0) {
        test_skip("the system does not count memory, or a sanitizer's own is in it");
        return;
    }
    float *large = malloc((size_t)LARGE * 4), sum[2];
    REQUIRE(large);
    for (int i = 0; i < LARGE; i++) large[i] = (float)((uint32_t)i * 2654435761u >> 8);
    prepare(0);
    write_file(path, large, (size_t)LARGE * 4, 0);
    free(large);
    for (int which = 0; which < 2; which++) {
        gn_ctx *g = device(which);
        int64_t before = status_bytes("RssAnon");
        gn_tensor w = gn_weight_file(g, GN_F32, GN_SHAPE(LARGE), path, 0, "large");
        CHECK_RESULT(gn_read(gn_sum(w, GN_ALL_AXES, false), &sum[which], 4), GN_OK);
        int64_t grown = status_bytes("RssAnon") - before;
        int64_t most = (which ? (int64_t)LARGE * 4 : 0) + LARGE * 3; /* a copy has LARGE * 4, pieces under way less */
        if (grown > most) test_fail(__FILE__, __LINE__, "%lld bytes of memory for %d", (long long)grown, LARGE * 4);
        gn_close(g);
    }
    CHECK(sum[0] == sum[1]);
    unlink(path);
}

/* In pieces, by several threads where the device has memory of its own. */
TEST(large_weights_are_the_same_by_every_way) {
    enum { N = (5 << 18) + 77 }; /* 5 MiB and 308 bytes */
    float *large = malloc((size_t)N * 4), *back = malloc((size_t)N * 4);
    REQUIRE(large && back);
    for (int i = 0; i < N; i++) large[i] = (float)((uint32_t)i * 2654435761u >> 8);
    prepare(0);
    write_file(path, large, (size_t)N * 4, 3);
    for (int which = 0; which < 3; which++) {
        gn_ctx *g = device(which);
        if (!g) continue;
        gn_tensor w[3] = { gn_weight_file(g, GN_F32, GN_SHAPE(N), path, 3, "filed"),
                           gn_weight(g, GN_F32, GN_SHAPE(N), large, "held"),
                           gn_state(g, GN_F32, GN_SHAPE(N), large, "state") };
        for (int k = 0; k < 3; k++) {
            memset(back, 0xee, (size_t)N * 4);
            CHECK_RESULT(gn_read(gn_relu(w[k]), back, (size_t)N * 4), GN_OK);
            int different = 0;
            for (int i = 0; i < N; i++) different += back[i] != large[i];
            CHECK_INT(different, 0);
        }
        gn_tensor cut = gn_weight_file(g, GN_F32, GN_SHAPE(N - 1), path, 7, "cut");
        REQUIRE(truncate(path, 3 << 20) == 0);
        CHECK_RESULT(gn_read(gn_relu(cut), back, (size_t)(N - 1) * 4), GN_IO_ERROR);
        CHECK(strstr(gn_last_error(g)->text, "are gone") != NULL);
        CHECK_RESULT(gn_release(cut), GN_OK); /* and all goes on */
        CHECK_RESULT(gn_read(gn_relu(w[1]), back, (size_t)N * 4), GN_OK);
        CHECK(back[N - 1] == large[N - 1]);
        gn_close(g);
        write_file(path, large, (size_t)N * 4, 3);
    }
    free(large);
    free(back);
    unlink(path);
}

static void refused(gn_tensor w, gn_result want, const char *text) {
    static float out[COLUMNS];
    CHECK_RESULT(gn_read(gn_sum(w, GN_ALL_AXES, false), out, 4), want);
    if (!strstr(gn_last_error(w.ctx)->text, text))
        test_fail(__FILE__, __LINE__, "the error is: %s", gn_last_error(w.ctx)->text);
    gn_step(w.ctx);
}

/* Descriptors of this test's files; a device may open others at any time. */
static int open_files(void) {
    char link[300], to[300];
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *e; d && (e = readdir(d));) {
        snprintf(link, sizeof link, "/proc/self/fd/%.250s", e->d_name);
        ssize_t length = readlink(link, to, sizeof to - 1);
        to[length > 0 ? length : 0] = 0;
        n += strstr(to, "/tmp/genie_weight_") != NULL;
    }
    if (d) closedir(d);
    return n;
}

TEST(wrong_files_are_told_at_the_read) {
    char pipe_path[80];
    prepare(0);
    gn_ctx *g = device(0);
    refused(of_file(g, "/nowhere/at all", 0), GN_IO_ERROR, "/nowhere/at all cannot be opened: No such file");
    refused(of_file(g, "/tmp", 0), GN_IO_ERROR, "/tmp is no regular file");
    refused(of_file(g, NULL, 0), GN_BAD_ARGUMENT, "'filed', f32 (300, 500): no path is given");
    refused(of_file(g, path, 1), GN_BAD_SIZE, "f32 (300, 500): takes 600000 bytes from byte 1 on");
    refused(of_file(g, path, UINT64_MAX), GN_BAD_SIZE, "from byte 18446744073709551615 on");
    refused(of_file(g, path, UINT64_MAX - 3), GN_BAD_SIZE, "has 600000");
    refused(gn_weight_file(g, GN_F32, GN_SHAPE(INT64_MAX / 2, 4), path, 0, "huge"), GN_BAD_SHAPE, "huge");
    snprintf(pipe_path, sizeof pipe_path, "%s_pipe", path);
    REQUIRE(mkfifo(pipe_path, 0600) == 0);
    refused(of_file(g, pipe_path, 0), GN_IO_ERROR, "is no regular file");
    unlink(pipe_path);
    CHECK_INT(open_files(), 0); /* none of them stays open */
    gn_close(g);
    unlink(path);
}

TEST(a_file_that_is_cut_before_it_is_needed) {
    for (int which = 0; which < 3; which++) {
        float sum;
        prepare(0);
        gn_ctx *g = device(which);
        if (!g) continue;
        gn_tensor w = of_file(g, path, 0), small = gn_full(g, GN_F32, GN_SCALAR, 7);
        CHECK_INT(open_files(), 1);
        REQUIRE(truncate(path, BYTES - 8192) == 0);
        refused(w, GN_IO_ERROR, which ? "bytes " : "had 600000 bytes and has 591808: bytes 0 to 600000 are gone");
        CHECK_RESULT(gn_release(w), GN_OK); /* and all goes on */
        small = gn_full(g, GN_F32, GN_SCALAR, 7);
        CHECK_RESULT(gn_read(small, &sum, 4), GN_OK);
        CHECK(sum == 7 && open_files() == 0);
        gn_close(g);
        unlink(path);
    }
}

/* The old one stays what the weight is; a weight made afterwards is of the new one. */
TEST(a_file_that_is_replaced) {
    static float was[COLUMNS], same[COLUMNS], now[COLUMNS], want[COLUMNS];
    char other[80];
    prepare(0);
    gn_ctx *g = device(1);
    gn_tensor w = of_file(g, path, 0);
    CHECK_RESULT(product(g, gn_weight(g, GN_F32, GN_SHAPE(ROWS, COLUMNS), values, "held"), was), GN_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = -values[i] * 2;
    snprintf(other, sizeof other, "%s_new", path);
    write_file(other, values, sizeof values, 0);
    REQUIRE(rename(other, path) == 0);
    gn_tensor next = of_file(g, path, 0);
    CHECK_RESULT(product(g, w, same), GN_OK);
    CHECK_RESULT(product(g, next, now), GN_OK);
    for (int i = 0; i < COLUMNS; i++) want[i] = -was[i] * 2;
    CHECK(memcmp(was, same, sizeof was) == 0 && memcmp(want, now, sizeof want) == 0);
    gn_close(g);
    unlink(path);
}

int main(int argc, char **argv) {
    static const test_entry tests[] = {
        TEST_ENTRY(the_same_bits_as_from_memory),
        TEST_ENTRY(bytes_at_any_alignment_are_the_same_value),
        TEST_ENTRY(a_server_that_has_the_bytes_is_sent_none),
        TEST_ENTRY(the_program_holds_no_copy),
        TEST_ENTRY(large_weights_are_the_same_by_every_way),
        TEST_ENTRY(wrong_files_are_told_at_the_read),
        TEST_ENTRY(a_file_that_is_cut_before_it_is_needed),
        TEST_ENTRY(a_file_that_is_replaced),
    };
    test_begin(argc, argv);
    test_all(tests, TEST_COUNT(tests));
    loopback_close();
    return test_end();
}
