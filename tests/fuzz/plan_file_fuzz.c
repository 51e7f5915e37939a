/* The file of recorded plans, which a server reads when it starts: any bytes are a warning at most. The first byte says
 * whether the rest is the file (even) or the one plan in it, as a program (odd). */
#include "fuzz.h"
#include "graph_program.h"

static char plan_file_path[64];

static void plan_file_remove(void) { unlink(plan_file_path); }

static bool plan_file_write(const gn__buf *b) {
    FILE *f = plan_file_path[0] ? fopen(plan_file_path, "wb") : NULL;
    if (!plan_file_path[0]) {
        snprintf(plan_file_path, sizeof plan_file_path, "/tmp/genie-fuzz-XXXXXX");
        int fd = mkstemp(plan_file_path);
        f = fd >= 0 ? fdopen(fd, "wb") : NULL;
        atexit(plan_file_remove);
        setenv("GENIE_MEASURE", "0", 1);
    }
    bool ok = f && (!b->n || fwrite(b->p, 1, b->n, f) == b->n);
    return f && fclose(f) == 0 && ok;
}

static void plan_file_log(void *user, gn_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = { data, size };
    gn__buf b = { NULL, 0, 0, false }, plan = { NULL, 0, 0, false };
    uint8_t program = fuzz_byte(&in);
    if (program & 1) {
        graph_program(&in, &plan);
        gn__put_bytes(&b, gn__record_head, sizeof gn__record_head);
        gn__put_u32(&b, (uint32_t)plan.n);
        gn__put_bytes(&b, plan.p, plan.n);
    } else {
        gn__put_bytes(&b, in.p, in.n);
    }
    gn_server *server = NULL;
    gn_error error;
    gn_server_desc desc = {
        .listen = "none", .devices = "cpu,null", .threads = 1, .warm_file = plan_file_path, .log = plan_file_log
    };
    if (!b.failed && plan_file_write(&b)) {
        gn_result r = gn_server_open(&desc, &server, &error);
        FUZZ_CHECK(r == GN_OK || r == GN_OUT_OF_MEMORY);
        while (r == GN_OK && !gn__atomic_load(&server->warmed)) usleep(100);
        gn_server_close(server);
    }
    gn__buf_deinit(&plan);
    gn__buf_deinit(&b);
    return 0;
}

size_t fuzz_seed(size_t index, uint8_t *out, size_t cap) {
    static const uint8_t wrong[] = { 0, 'G', 'N', 'P', 'L', 'A', 'N', 'S', '1', 255, 255, 255, 255, 0 };
    static const uint8_t program[] = { 1, GRAPH_DATA,   0, 2, 3, 4, GRAPH_WEIGHT, 0, 2, 4, 3, 0, GRAPH_OPS + 40, 1,
                                       0, GRAPH_OUT_ALL };
    if (index > 2 || cap < 32) return 0;
    memcpy(out, index < 2 ? wrong : program, index < 2 ? sizeof wrong : sizeof program);
    return index == 0 ? 9 : index == 1 ? sizeof wrong : sizeof program;
}
