/* genie_trace record and genie_trace calls: a program is run with something beside it that writes a trace. */
#ifndef TRACE_RECORD_H
#define TRACE_RECORD_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* Beside this program, or where $GENIE_TRACE_CUPTI says: the library that CUDA loads into every program. */
static inline bool find_injection(char *out, size_t cap) {
    const char *given = getenv("GENIE_TRACE_CUPTI");
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (given && *given) {
        snprintf(out, cap, "%s", given);
        return access(out, R_OK) == 0;
    }
    if (n <= 0) return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    *slash = 0;
    snprintf(out, cap, "%.3000s/genie_trace_cupti.so", self);
    return access(out, R_OK) == 0;
}

/* Runs a command to its end; its exit status, as a shell has it. */
static inline int run_command(char **command) {
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        execvp(command[0], command);
        fprintf(stderr, "genie_trace: %s: %s\n", command[0], strerror(errno));
        _exit(127);
    }
    if (child < 0) return 126;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return 126;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* CUDA loads the library that this variable names into any program that uses it, and CUPTI tells it what happens. */
static inline int record(const char *file, char **command) {
    char library[PATH_MAX + 32], full[PATH_MAX];
    if (!find_injection(library, sizeof library)) {
        fprintf(stderr, "genie_trace: genie_trace_cupti.so is not beside this program: ./build.sh makes it, or "
                        "GENIE_TRACE_CUPTI names it\n");
        return 1;
    }
    FILE *out = fopen(file, "wb");
    if (!out || !realpath(file, full)) {
        fprintf(stderr, "genie_trace: %s: %s\n", file, strerror(errno));
        return 1;
    }
    fclose(out);
    setenv("CUDA_INJECTION64_PATH", library, 1);
    setenv("GENIE_TRACE_RECORD", full, 1);
    int status = run_command(command);
    out = fopen(file, "rb");
    bool any = out && fgetc(out) != EOF;
    if (out) fclose(out);
    if (!any)
        fprintf(stderr,
                "genie_trace: nothing was recorded: the program did not start CUDA, or there is no driver here\n");
    else fprintf(stderr, "genie_trace: %s is written; genie_trace %s sums it up\n", file, file);
    return status;
}

/* ---- calls of libcuda, and of the kernel driver, by bpftrace ---- */

static const char calls_script[] = "uprobe:%s:cu* { @begin[tid] = nsecs; @name[tid] = func; }\n"
                                   "uretprobe:%s:cu* /@begin[tid]/ {\n"
                                   "  @us[@name[tid]] = hist((nsecs - @begin[tid]) / 1000);\n"
                                   "  @calls[@name[tid]] = count();\n"
                                   "  @total_us[@name[tid]] = sum((nsecs - @begin[tid]) / 1000);\n"
                                   "  delete(@begin[tid]); delete(@name[tid]);\n"
                                   "}\n"
                                   "END { clear(@begin); clear(@name); }\n";

static const char kernel_script[] =
    "tracepoint:syscalls:sys_enter_ioctl /pid == cpid/ { @in[tid] = nsecs; @request[tid] = args->cmd; }\n"
    "tracepoint:syscalls:sys_exit_ioctl /@in[tid]/ {\n"
    "  @ioctl_us[@request[tid]] = hist((nsecs - @in[tid]) / 1000);\n"
    "  @ioctls[@request[tid]] = count();\n"
    "  delete(@in[tid]); delete(@request[tid]);\n"
    "}\n"
    "tracepoint:sched:sched_switch /args->prev_pid == cpid/ { @off[args->prev_pid] = nsecs; @switches = count(); }\n"
    "tracepoint:sched:sched_switch /@off[args->next_pid]/ {\n"
    "  @waited_us = hist((nsecs - @off[args->next_pid]) / 1000);\n"
    "  delete(@off[args->next_pid]);\n"
    "}\n"
    "tracepoint:syscalls:sys_enter_mmap /pid == cpid/ { @mmap_bytes = sum(args->len); @mmaps = count(); }\n"
    "tracepoint:syscalls:sys_enter_munmap /pid == cpid/ { @munmap_bytes = sum(args->len); @munmaps = count(); }\n"
    "tracepoint:exceptions:page_fault_user /pid == cpid/ { @page_faults = count(); }\n"
    "END { clear(@in); clear(@request); clear(@off); }\n";

static inline bool on_path(const char *name) {
    const char *all = getenv("PATH");
    char full[PATH_MAX];
    while (all && *all) {
        size_t n = strcspn(all, ":");
        snprintf(full, sizeof full, "%.*s/%s", (int)(n < 3000 ? n : 0), all, name);
        if (access(full, X_OK) == 0) return true;
        all += n + (all[n] == ':');
    }
    return false;
}

/* The folders of the loader where libcuda usually lies; bpftrace wants a path. */
static inline const char *libcuda_path(void) {
    static const char *const places[] = { "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1",
                                          "/usr/lib/aarch64-linux-gnu/libcuda.so.1", "/usr/lib/libcuda.so.1",
                                          "/usr/local/cuda/compat/libcuda.so.1" };
    const char *given = getenv("GENIE_LIBCUDA");
    if (given && *given) return given;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (access(places[i], R_OK) == 0) return places[i];
    return NULL;
}

/* Prints the script (no command), or runs the command under it. */
static inline int trace_calls(bool kernel, char **command) {
    char script[8192], words[4096] = "";
    const char *library = libcuda_path();
    int n = snprintf(script, sizeof script, calls_script, library ? library : "libcuda.so.1",
                     library ? library : "libcuda.so.1");
    if (kernel) snprintf(script + n, sizeof script - (size_t)n, "%s", kernel_script);
    if (!command[0]) {
        fputs(script, stdout);
        return 0;
    }
    if (!on_path("bpftrace")) {
        fprintf(stderr, "genie_trace: bpftrace is not installed; without a command this prints the script\n");
        return 1;
    }
    if (!library) {
        fprintf(stderr, "genie_trace: libcuda.so.1 is not found: GENIE_LIBCUDA names it\n");
        return 1;
    }
    if (geteuid() != 0) {
        fprintf(stderr, "genie_trace: bpftrace needs root\n");
        return 1;
    }
    for (int i = 0; command[i]; i++) {
        size_t at = strlen(words);
        if (at + strlen(command[i]) + 2 > sizeof words) {
            fprintf(stderr, "genie_trace: the command is too long\n");
            return 1;
        }
        snprintf(words + at, sizeof words - at, "%s%s", i ? " " : "", command[i]);
    }
    char *const run[] = { "bpftrace", "-e", script, "-c", words, NULL };
    return run_command((char **)run);
}

#endif
