/* A driver library for tests: every answer is looked up in the text file that FAKE_NVML names, "KEY NUMBER" a line.
   A key that is not there is "not supported"; `N.hang` seconds are slept before device N's temperature is told. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };
typedef unsigned long long u64;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned gpu, memory; } rates;
typedef struct { u64 total, free, used; } memory_info;
typedef union { double d; unsigned ui; unsigned long ul; u64 ull; long long sll; } field_union;
typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type, status; field_union value; } field_value;

static int look(const char *key, u64 *value) {
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[128];
    int found = 0;
    u64 number;
    while (file && fscanf(file, "%127s %llu", name, &number) == 2)
        if (!strcmp(name, key)) { *value = number; found = 1; }
    if (file) fclose(file);
    return found;
}

static int of_device(void *handle, const char *what, u64 *value) {
    char key[128];
    snprintf(key, sizeof key, "%d.%s", (int)(size_t)handle - 1, what);
    return look(key, value) ? SUCCESS : NOT_SUPPORTED;
}

static int number(void *handle, const char *what, unsigned *value) {
    u64 found = 0;
    int status = of_device(handle, what, &found);
    *value = (unsigned)found;
    return status;
}

int nvmlInitWithFlags(unsigned flags) { u64 status = 0; (void)flags; look("init", &status); return (int)status; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int status) {
    return status == 9 ? "Driver Not Loaded" : status == 15 ? "GPU is lost" : "Not Supported";
}
int nvmlDeviceGetCount_v2(unsigned *count) { u64 found = 0; look("count", &found); *count = (unsigned)found; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    u64 status = 0;
    *handle = (void *)(size_t)(index + 1);
    of_device(*handle, "error", &status);
    return (int)status;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned length) {
    snprintf(text, length, "GPU-%08d", (int)(size_t)handle - 1);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(void *handle, pci_info *info) {
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:9%X:00.0", (unsigned)(size_t)handle - 1);
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *handle, unsigned sensor, unsigned *value) {
    u64 seconds = 0;
    (void)sensor;
    if (of_device(handle, "hang", &seconds) == SUCCESS) sleep((unsigned)seconds);
    return number(handle, "temperature", value);
}
int nvmlDeviceGetTemperatureThreshold(void *h, unsigned which, unsigned *v) { (void)which; return number(h, "slowdown", v); }
int nvmlDeviceGetPowerUsage(void *h, unsigned *v) { return number(h, "power", v); }
int nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *v) { return number(h, "power_limit", v); }
int nvmlDeviceGetClockInfo(void *h, unsigned kind, unsigned *v) { return number(h, kind == 1 ? "sm_clock" : "mem_clock", v); }
int nvmlDeviceGetMaxClockInfo(void *h, unsigned kind, unsigned *v) { return number(h, kind == 1 ? "sm_max" : "mem_max", v); }
int nvmlDeviceGetCurrPcieLinkGeneration(void *h, unsigned *v) { return number(h, "pcie_generation", v); }
int nvmlDeviceGetMaxPcieLinkGeneration(void *h, unsigned *v) { return number(h, "pcie_generation_max", v); }
int nvmlDeviceGetCurrPcieLinkWidth(void *h, unsigned *v) { return number(h, "pcie_width", v); }
int nvmlDeviceGetMaxPcieLinkWidth(void *h, unsigned *v) { return number(h, "pcie_width_max", v); }
int nvmlDeviceGetPcieReplayCounter(void *h, unsigned *v) { return number(h, "pcie_replay", v); }
int nvmlDeviceGetCurrentClocksEventReasons(void *h, u64 *v) { return of_device(h, "reasons", v); }
int nvmlDeviceGetTotalEccErrors(void *h, unsigned type, unsigned counter, u64 *v) {
    const char *keys[] = {"ecc_corrected", "ecc_uncorrected", "ecc_corrected_life", "ecc_uncorrected_life"};
    return of_device(h, keys[2 * counter + type], v);
}
int nvmlDeviceGetUtilizationRates(void *h, rates *v) { v->memory = 7; return number(h, "utilization", &v->gpu); }
int nvmlDeviceGetMemoryInfo(void *h, memory_info *v) { v->total = v->free = 0; return of_device(h, "memory_used", &v->used); }
int nvmlDeviceGetRemappedRows(void *h, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = 1; *pending = 0; *failed = 0;
    return number(h, "remapped", uncorrected);
}
int nvmlDeviceGetNvLinkState(void *h, unsigned link, unsigned *active) {
    unsigned links = 0;
    int status = number(h, "nvlinks", &links);
    if (status != SUCCESS || link >= links) return NOT_SUPPORTED;
    *active = link != 3;
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(void *h, int count, field_value *values) {
    for (int i = 0; i < count; i++) {
        char key[64];
        u64 found = 0;
        snprintf(key, sizeof key, "field_%u", values[i].field);
        values[i].status = (unsigned)of_device(h, key, &found);
        values[i].type = 3;
        values[i].value.ull = found;
    }
    return SUCCESS;
}
