/* What a result of genie_bench says of the machine: CPU, system, versions, and the GPU's state as NVML tells it. */
#ifndef GN_SUITE_MACHINE_H
#define GN_SUITE_MACHINE_H

#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/utsname.h>

typedef struct gpu_state {
    char name[96], driver[80], cuda[16];
    double sm_mhz, memory_mhz, most_sm_mhz, watts, limit_watts, celsius; /* NAN: the driver does not tell */
} gpu_state;

typedef struct machine {
    char cpu[128], system[200], compiler[64], commit[64], class_name[192]; /* class_name: what compare goes by */
    char device[96], identity[192];
    int cores;
    double memory;
    gpu_state gpu;
} machine;

/* ---- files and commands ---- */

/* The text behind "NAME<tab>: " of the first line of a file that begins so. */
static bool line_of(const char *path, const char *name, char *out, size_t size) {
    char line[512];
    FILE *f = fopen(path, "r");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, name, strlen(name)) || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        colon[strcspn(colon, "\n")] = 0;
        snprintf(out, size, "%s", colon);
        found = true;
    }
    if (f) fclose(f);
    return found;
}

/* The highest resident memory of this process since the last reset, in bytes. */
static void host_memory_reset(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}
static double host_memory(void) {
    char text[64];
    struct rusage u;
    if (line_of("/proc/self/status", "VmHWM", text, sizeof text)) return 1024 * atof(text);
    return getrusage(RUSAGE_SELF, &u) == 0 ? 1024 * (double)u.ru_maxrss : NAN;
}

/* The first line that a command prints; "" if it fails. */
static void say_of(const char *command, char *out, size_t size) {
    FILE *f = popen(command, "r");
    out[0] = 0;
    if (!f) return;
    if (!fgets(out, (int)size, f)) out[0] = 0;
    if (pclose(f) != 0) out[0] = 0;
    out[strcspn(out, "\n")] = 0;
}

/* ---- NVML ---- */

#define NVML(X)                                              \
    X(nvmlInit_v2, (void))                                   \
    X(nvmlSystemGetDriverVersion, (char *, unsigned))        \
    X(nvmlSystemGetCudaDriverVersion_v2, (int *))            \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, void **))    \
    X(nvmlDeviceGetName, (void *, char *, unsigned))         \
    X(nvmlDeviceGetClockInfo, (void *, int, unsigned *))     \
    X(nvmlDeviceGetMaxClockInfo, (void *, int, unsigned *))  \
    X(nvmlDeviceGetPowerUsage, (void *, unsigned *))         \
    X(nvmlDeviceGetEnforcedPowerLimit, (void *, unsigned *)) \
    X(nvmlDeviceGetTemperature, (void *, int, unsigned *))

static struct {
#define GN__X(name, args) int(*name) args;
    NVML(GN__X)
#undef GN__X
    bool tried, ready;
} nvml;

static bool open_nvml(void) {
    if (nvml.tried) return nvml.ready;
    nvml.tried = true;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL), *p;
    if (!library) return false;
#define GN__X(name, args)      \
    p = dlsym(library, #name); \
    if (!p) return false;      \
    memcpy(&nvml.name, &p, sizeof p);
    NVML(GN__X)
#undef GN__X
    return nvml.ready = nvml.nvmlInit_v2() == 0;
}

/* The value is read once the call that wrote it has returned: arguments of one call have no order. */
static double told(int code, const unsigned *value, double scale) { return code == 0 ? scale * *value : NAN; }

/* NVML counts all GPUs: a CUDA_VISIBLE_DEVICES of plain numbers is followed. */
static unsigned nvml_index(const char *device) {
    const char *colon = strchr(device, ':'), *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = colon ? atoi(colon + 1) : 0;
    for (; visible && n > 0 && (visible = strchr(visible, ',')); n--) visible++;
    return visible && *visible >= '0' && *visible <= '9' ? (unsigned)atoi(visible) : (unsigned)n;
}

static gpu_state gpu_now(const char *device) {
    gpu_state s = {
        .sm_mhz = NAN, .memory_mhz = NAN, .most_sm_mhz = NAN, .watts = NAN, .limit_watts = NAN, .celsius = NAN
    };
    void *d;
    unsigned v = 0;
    int cuda = 0;
    if (strncmp(device, "cuda", 4) != 0 || !open_nvml()) return s;
    if (nvml.nvmlSystemGetDriverVersion(s.driver, sizeof s.driver) != 0) s.driver[0] = 0;
    if (nvml.nvmlSystemGetCudaDriverVersion_v2(&cuda) == 0)
        snprintf(s.cuda, sizeof s.cuda, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    if (nvml.nvmlDeviceGetHandleByIndex_v2(nvml_index(device), &d) != 0) return s;
    if (nvml.nvmlDeviceGetName(d, s.name, sizeof s.name) != 0) s.name[0] = 0;
    s.sm_mhz = told(nvml.nvmlDeviceGetClockInfo(d, 1, &v), &v, 1);
    s.memory_mhz = told(nvml.nvmlDeviceGetClockInfo(d, 2, &v), &v, 1);
    s.most_sm_mhz = told(nvml.nvmlDeviceGetMaxClockInfo(d, 1, &v), &v, 1);
    s.watts = told(nvml.nvmlDeviceGetPowerUsage(d, &v), &v, 1e-3);
    s.limit_watts = told(nvml.nvmlDeviceGetEnforcedPowerLimit(d, &v), &v, 1e-3);
    s.celsius = told(nvml.nvmlDeviceGetTemperature(d, 0, &v), &v, 1);
    return s;
}

/* ---- all of it ---- */

/* What comparisons go by: the GPU of "cuda genie V generator N NAME sm_90 driver ...", the CPU for one here,
   else all that a device says of itself. */
static void class_of(const machine *m, bool remote, char *out, size_t size) {
    const char *at = strstr(m->identity, " generator "), *end = at ? strstr(at, " sm_") : NULL;
    if (end) at = strchr(at + strlen(" generator "), ' ');
    if (end && at && at < end) snprintf(out, size, "%.*s", (int)(end - at - 1), at + 1);
    else snprintf(out, size, "%s", remote ? m->identity : m->cpu);
}

/* The folder of this program, in which the other benchmarks lie. */
static void own_folder(char *out, size_t size) {
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    out[n > 0 ? n : 0] = 0;
    char *slash = strrchr(out, '/');
    if (slash) *slash = 0;
}

/* As it was behind timed steps; later a GPU rests. */
static gpu_state gpu_seen;

static machine machine_now(gn_ctx *g, const char *device) {
    machine m = { .cores = (int)sysconf(_SC_NPROCESSORS_ONLN),
                  .memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) };
    struct utsname u;
    gn_device_info info;
    char folder[PATH_MAX], command[PATH_MAX + 80];
    if (!line_of("/proc/cpuinfo", "model name", m.cpu, sizeof m.cpu)) snprintf(m.cpu, sizeof m.cpu, "unknown");
    if (uname(&u) == 0) snprintf(m.system, sizeof m.system, "%.60s %.60s %.60s", u.sysname, u.release, u.machine);
    snprintf(m.compiler, sizeof m.compiler, "%.60s", __VERSION__);
    own_folder(folder, sizeof folder);
    snprintf(command, sizeof command, "git -C '%s' describe --always --dirty --abbrev=12 2>/dev/null", folder);
    if (!strchr(folder, '\'')) say_of(command, m.commit, sizeof m.commit);
    if (getenv("GENIE_BENCH_COMMIT")) snprintf(m.commit, sizeof m.commit, "%s", getenv("GENIE_BENCH_COMMIT"));
    if (!m.commit[0]) snprintf(m.commit, sizeof m.commit, "unknown");
    m.gpu = gpu_seen.name[0] ? gpu_seen : gpu_now(device);
    memset(&info, 0, sizeof info);
    if (g && gn_get_device(g, &info) == GN_OK) {
        snprintf(m.device, sizeof m.device, "%s", info.name);
        snprintf(m.identity, sizeof m.identity, "%s", info.identity);
    }
    class_of(&m, info.remote, m.class_name, sizeof m.class_name);
    return m;
}

#endif
