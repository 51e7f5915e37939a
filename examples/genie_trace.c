/* What a trace says: in the terminal, or drawn as one HTML file; and traces of any CUDA program.
 *
 *   GENIE_TRACE=run.jsonl ./examples/remote_mlp
 *   ./examples/genie_trace run.jsonl                          tables: stages, calls, kernels, gaps, what was saved
 *   ./examples/genie_trace run.jsonl --html run.html          a timeline for a browser
 *   ./examples/genie_trace record -- python3 train.py         kernels, copies and driver calls, by CUPTI
 *   ./examples/genie_trace calls --kernel -- ./prog           calls of libcuda and of the kernel, by bpftrace
 */
#define JSON_IMPLEMENTATION
#include "genie.h"
#include "trace/record.h"
#include "trace/timeline.h"

static int usage(FILE *to, int status) {
    fprintf(
        to,
        "usage: genie_trace FILE [--html OUT]               summarise a trace, or draw it as a page for a browser\n"
        "       genie_trace record [--out FILE] -- COMMAND  trace any CUDA program by CUPTI (genie_trace.jsonl)\n"
        "       genie_trace calls [--kernel] [-- COMMAND]   trace calls of libcuda, and with --kernel those of the\n"
        "                                                   system, by bpftrace; without COMMAND: print the script\n"
        "FILE is what GENIE_TRACE=FILE, genie_serve --trace or genie_trace record has written: JSON Lines or\n"
        "Chrome's format. --help prints this, --version the version.\n");
    return status;
}

static int not_known(const char *word, bool last) {
    bool named = !strcmp(word, "--html") || !strcmp(word, "--out");
    fprintf(stderr, "genie_trace: %s: %s\n", word, named && last ? "the name of a file is missing" : "not known here");
    return usage(stderr, 2);
}

static int tell(const char *file, const char *html) {
    static trace t;
    if (!trace_read(&t, file)) return 1;
    if (html) return page_write(&t, html, file) ? 0 : 1;
    print_summary(&t, file);
    return 0;
}

int main(int argc, char **argv) {
    const char *out = NULL, *file = NULL;
    bool records = argc > 1 && !strcmp(argv[1], "record"), calls = argc > 1 && !strcmp(argv[1], "calls"),
         kernel = false;
    int i = 1 + (records || calls);
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) return usage(stdout, 0);
        if (!strcmp(argv[i], "--version")) return printf("genie %s\n", GN_VERSION) < 0;
        bool named = !strcmp(argv[i], records ? "--out" : "--html") && i + 1 < argc && !calls;
        if (named) out = argv[++i];
        else if (calls && !strcmp(argv[i], "--kernel")) kernel = true;
        else if (records || calls || argv[i][0] == '-' || file) return not_known(argv[i], i + 1 == argc);
        else file = argv[i];
    }
    char **command = argv + i + (i < argc);
    if (records) return *command ? record(out ? out : "genie_trace.jsonl", command) : usage(stderr, 2);
    if (calls) return trace_calls(kernel, command);
    return file ? tell(file, out) : usage(stderr, 2);
}
