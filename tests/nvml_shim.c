/* A stand-in for NVML: each question has an answer of its own, so that a value in another's place is seen.
 * tests/genie_bench_test.sh has genie_bench ask it. Types and numbers are those of nvml.h: NVML_CLOCK_SM 1,
 * NVML_CLOCK_MEM 2, NVML_TEMPERATURE_GPU 0; MHz, mW, degrees Celsius. */
#include <string.h>

#define API __attribute__((visibility("default")))

typedef void *nvmlDevice_t;

API int nvmlInit_v2(void);
API int nvmlSystemGetDriverVersion(char *out, unsigned size);
API int nvmlSystemGetCudaDriverVersion_v2(int *out);
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out);
API int nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned size);
API int nvmlDeviceGetClockInfo(nvmlDevice_t d, int kind, unsigned *mhz);
API int nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int kind, unsigned *mhz);
API int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts);
API int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *milliwatts);
API int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *celsius);

static int device;

static int give(const nvmlDevice_t d, unsigned *out, unsigned value) { return d == &device ? (*out = value, 0) : 2; }

int nvmlInit_v2(void) { return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return size > 8 ? (strcpy(out, "999.25"), 0) : 7; }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return *out = 12090, 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out) { return index == 0 ? (*out = &device, 0) : 2; }
int nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned size) {
    return d == &device && size > 16 ? (strcpy(out, "GPU of the shim"), 0) : 2;
}
int nvmlDeviceGetClockInfo(nvmlDevice_t d, int kind, unsigned *mhz) {
    return give(d, mhz, kind == 1 ? 1755 : kind == 2 ? 2619 : 1);
}
int nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, int kind, unsigned *mhz) { return give(d, mhz, kind == 1 ? 1980 : 1); }
int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts) { return give(d, milliwatts, 411500); }
int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *milliwatts) { return give(d, milliwatts, 700000); }
int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *celsius) {
    return give(d, celsius, sensor ? 99 : 48);
}
