/* NVML's functions for boards that are not there; built with the SONAME of the driver's library.
 *
 * Energy grows in real time, in steps of the board's update period, and every field has the time of its last update.
 * FAKE_NVML names a file of lines that is read when it is replaced, so that a test can break a board while an agent
 * runs; without it there are two boards:
 *
 *   boards 4                how many
 *   driver_error 9          what nvmlInit returns
 *   KEY BOARD VALUE         any of the board's settings below, such as `lost 1 1`
 *   name BOARD TEXT
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, LOST = 15, MAX_BOARDS = 16, A_SLICE = 1000 };
enum { FIELD_ENERGY = 83, FIELD_AVERAGE = 185, FIELD_INSTANT = 186 };
enum { TYPE_UINT = 1, TYPE_ULL = 3 };

typedef struct {
    uint32_t field, scope;
    int64_t timestamp_us, latency_us;
    uint32_t type, code;
    union {
        uint32_t ui;
        uint64_t ull;
    } value;
} field_value;

typedef struct {
    double watts;      /* what the counter grows by */
    double power_w;    /* what the power fields show; the same unless set */
    double gpu_w;      /* what they show of the GPU of a module, scope 0; the same unless set */
    double period_ms;  /* between updates */
    double base_mj;    /* shown at origin_ns of the monotonic clock */
    double origin_ns;
    double frozen_ns;  /* no update since; 0 for none */
    double hang_ms;    /* every call takes this long */
    double lost, mig;  /* mig is the number of slices */
    double no_fields, no_energy_field, no_instant_field, no_average_field, no_energy, no_power;
    double util_pct, used_mib, no_util;
    double temp_c;     /* below 0 the board says no temperature, clock or limit */
    double clock_mhz, memory_mhz, limit_w;
    double reasons;    /* nvmlClocksEventReasons */
    double capped_s;   /* for how long its power limit has held the clocks back; below 0 it does not count it */
    double hot_s;      /* the same of heat */
    double timestamp;  /* 0 true, 1 shows zero, 2 shows five seconds ago, 3 shows the time of the call */
    char name[96];
} board;

static const struct {
    const char *key;
    size_t offset;
} keys[] = {
    {"watts", offsetof(board, watts)},
    {"power_w", offsetof(board, power_w)},
    {"gpu_w", offsetof(board, gpu_w)},
    {"period_ms", offsetof(board, period_ms)},
    {"base_mj", offsetof(board, base_mj)},
    {"origin_ns", offsetof(board, origin_ns)},
    {"frozen_ns", offsetof(board, frozen_ns)},
    {"hang_ms", offsetof(board, hang_ms)},
    {"lost", offsetof(board, lost)},
    {"mig", offsetof(board, mig)},
    {"no_fields", offsetof(board, no_fields)},
    {"no_energy_field", offsetof(board, no_energy_field)},
    {"no_instant_field", offsetof(board, no_instant_field)},
    {"no_average_field", offsetof(board, no_average_field)},
    {"no_energy", offsetof(board, no_energy)},
    {"no_power", offsetof(board, no_power)},
    {"util_pct", offsetof(board, util_pct)},
    {"used_mib", offsetof(board, used_mib)},
    {"no_util", offsetof(board, no_util)},
    {"temp_c", offsetof(board, temp_c)},
    {"clock_mhz", offsetof(board, clock_mhz)},
    {"memory_mhz", offsetof(board, memory_mhz)},
    {"limit_w", offsetof(board, limit_w)},
    {"reasons", offsetof(board, reasons)},
    {"capped_s", offsetof(board, capped_s)},
    {"hot_s", offsetof(board, hot_s)},
    {"timestamp", offsetof(board, timestamp)},
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static board boards[MAX_BOARDS];
static unsigned count;
static int driver_error;
static struct stat read_at;
static char read_from[4096];
static int known;

static void take_line(const char *line) {
    char key[64], text[96];
    unsigned i;
    double value;
    if (sscanf(line, "boards %u", &i) == 1) {
        count = i < MAX_BOARDS ? i : MAX_BOARDS;
    } else if (sscanf(line, "driver_error %u", &i) == 1) {
        driver_error = (int)i;
    } else if (sscanf(line, "name %u %95[^\n]", &i, text) == 2 && i < MAX_BOARDS) {
        strcpy(boards[i].name, text);
    } else if (sscanf(line, "%63s %u %lf", key, &i, &value) == 3 && i < MAX_BOARDS) {
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            if (!strcmp(keys[k].key, key))
                *(double *)((char *)&boards[i] + keys[k].offset) = value;
    }
}

/* Read the file anew if another has taken its place; one call of stat otherwise. */
static void refresh(void) {
    const char *path = getenv("FAKE_NVML");
    struct stat now = {0};
    char line[256];
    if (path == NULL)
        path = "";
    if (stat(path, &now) != 0)
        memset(&now, 0, sizeof now);
    if (known && !strcmp(path, read_from) && now.st_ino == read_at.st_ino && now.st_size == read_at.st_size &&
        !memcmp(&now.st_mtim, &read_at.st_mtim, sizeof now.st_mtim))
        return;
    known = 1;
    read_at = now;
    snprintf(read_from, sizeof read_from, "%s", path);
    count = 2;
    driver_error = OK;
    memset(boards, 0, sizeof boards);
    for (unsigned i = 0; i < MAX_BOARDS; i++) {
        boards[i] = (board){.watts = 300, .power_w = -1, .period_ms = 20, .base_mj = 987654321, .temp_c = -1,
                            .clock_mhz = 1980, .memory_mhz = 3201, .limit_w = 700, .capped_s = -1, .hot_s = -1};
        strcpy(boards[i].name, "NVIDIA Fake");
    }
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return;
    while (fgets(line, sizeof line, file))
        take_line(line);
    fclose(file);
}

static int64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Copy a board's settings; hangs as long as they say. */
static int look(const void *handle, board *found) {
    uintptr_t index = (uintptr_t)handle - 1;
    pthread_mutex_lock(&guard);
    refresh();
    int there = index < count;
    if (there)
        *found = boards[index];
    pthread_mutex_unlock(&guard);
    if (!there)
        return INVALID;
    if (found->hang_ms > 0) {
        struct timespec hang = {(time_t)(found->hang_ms / 1e3), (long)(found->hang_ms * 1e6) % 1000000000L};
        nanosleep(&hang, NULL);
    }
    if (found->power_w < 0)
        found->power_w = found->watts;
    return found->lost ? LOST : OK;
}

static int64_t updated_ns(const board *b) {
    int64_t now = clock_ns(CLOCK_MONOTONIC), period = (int64_t)(b->period_ms * 1e6);
    if (b->frozen_ns > 0 && now > (int64_t)b->frozen_ns)
        now = (int64_t)b->frozen_ns;
    return now - now % period;
}

static uint64_t energy_mj(const board *b) {
    double since_ns = (double)updated_ns(b) - b->origin_ns;
    return (uint64_t)(b->base_mj + (since_ns > 0 ? since_ns * b->watts * 1e-6 : 0));
}

static int64_t timestamp_us(const board *b) {
    int64_t now = clock_ns(CLOCK_REALTIME);
    if (b->timestamp == 1)
        return 0;
    if (b->timestamp == 2)
        return (now - 5000000000LL) / 1000;
    if (b->timestamp == 3)
        return now / 1000;
    return (now - (clock_ns(CLOCK_MONOTONIC) - updated_ns(b))) / 1000;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&guard);
    refresh();
    int code = driver_error;
    pthread_mutex_unlock(&guard);
    return code;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) { return OK; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "an error of the fake library";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.00");
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *found) {
    pthread_mutex_lock(&guard);
    refresh();
    *found = count;
    pthread_mutex_unlock(&guard);
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    unsigned there;
    nvmlDeviceGetCount_v2(&there);
    if (index >= there)
        return INVALID;
    *handle = (void *)(uintptr_t)(index + 1);
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    unsigned index;
    board b;
    if (sscanf(uuid, "GPU-%u", &index) != 1)
        return NOT_FOUND;
    int code = nvmlDeviceGetHandleByIndex_v2(index, handle);
    return code ? NOT_FOUND : look(*handle, &b);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length) {
    board b;
    int code = look(handle, &b);
    snprintf(name, length, "%s", b.name);
    return code;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    board b;
    uintptr_t slice = (uintptr_t)handle;
    if (slice > A_SLICE) {
        snprintf(uuid, length, "MIG-%u-%u", (unsigned)(slice / A_SLICE - 1), (unsigned)(slice % A_SLICE));
        return OK;
    }
    snprintf(uuid, length, "GPU-%08u", (unsigned)(uintptr_t)handle - 1);
    return look(handle, &b);
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    board b;
    int code = look(handle, &b);
    *current = *pending = b.mig != 0;
    return code ? code : b.mig ? OK : NOT_SUPPORTED;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *most) {
    (void)handle;
    *most = 7;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **slice) {
    board b;
    int code = look(handle, &b);
    *slice = (void *)((uintptr_t)handle * A_SLICE + index);
    return code ? code : index < b.mig ? OK : NOT_FOUND;
}

int nvmlDeviceGetTotalEnergyConsumption(void *handle, unsigned long long *millijoules) {
    board b;
    int code = look(handle, &b);
    if (code == OK && b.no_energy)
        code = NOT_SUPPORTED;
    if (code == OK)
        *millijoules = energy_mj(&b);
    return code;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    board b;
    int code = look(handle, &b);
    if (code == OK && b.no_power)
        code = NOT_SUPPORTED;
    if (code == OK)
        *milliwatts = (unsigned)(b.power_w * 1000);
    return code;
}

int nvmlDeviceGetUtilizationRates(void *handle, unsigned *gpu_and_memory) {
    board b;
    int code = look(handle, &b);
    if (code == OK && b.no_util)
        code = NOT_SUPPORTED;
    if (code == OK) {
        gpu_and_memory[0] = (unsigned)b.util_pct;
        gpu_and_memory[1] = 0;
    }
    return code;
}

int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *total_free_used) {
    board b;
    int code = look(handle, &b);
    total_free_used[0] = 80ULL << 30;
    total_free_used[2] = (unsigned long long)b.used_mib << 20;
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return code;
}

static int tell(void *handle, unsigned *shown, double *value, board *b) {
    int code = look(handle, b);
    if (code == OK && b->temp_c < 0)
        code = NOT_SUPPORTED;
    if (code == OK)
        *shown = (unsigned)*value;
    return code;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *celsius) {
    board b;
    return sensor ? INVALID : tell(handle, celsius, &b.temp_c, &b);
}

int nvmlDeviceGetClockInfo(void *handle, int clock, unsigned *mhz) {
    board b;
    return tell(handle, mhz, clock == 1 ? &b.clock_mhz : &b.memory_mhz, &b);
}

int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned *milliwatts) {
    board b;
    int code = tell(handle, milliwatts, &b.limit_w, &b);
    *milliwatts *= 1000;
    return code;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons) {
    board b;
    unsigned bits = 0;
    int code = tell(handle, &bits, &b.reasons, &b);
    *reasons = bits;
    return code;
}

/* The answer is a reference time, us, and the time of the violation, ns. */
int nvmlDeviceGetViolationStatus(void *handle, int policy, unsigned long long *times) {
    board b;
    int code = look(handle, &b);
    double held_s = policy == 0 ? b.capped_s : policy == 1 ? b.hot_s : -1;
    if (code == OK && held_s < 0)
        code = NOT_SUPPORTED;
    if (code == OK)
        times[1] = (unsigned long long)(held_s * 1e9);
    return code;
}

int nvmlDeviceGetFieldValues(void *handle, int length, field_value *values) {
    board b;
    int code = look(handle, &b);
    if (code == OK && b.no_fields)
        code = NOT_SUPPORTED;
    if (code != OK)
        return code;
    for (int i = 0; i < length; i++) {
        field_value *v = &values[i];
        double power_w = v->scope == 0 && b.gpu_w > 0 ? b.gpu_w : b.power_w;
        v->timestamp_us = timestamp_us(&b);
        v->latency_us = 1;
        v->code = OK;
        v->type = TYPE_UINT;
        v->value.ull = 0xffffffffffffffffULL; /* the real one does not clear the rest either */
        if (v->field == FIELD_ENERGY && !b.no_energy_field) {
            v->type = TYPE_ULL;
            v->value.ull = energy_mj(&b);
        } else if (v->field == FIELD_INSTANT && !b.no_instant_field) {
            v->value.ui = (uint32_t)(power_w * 1000);
        } else if (v->field == FIELD_AVERAGE && !b.no_average_field) {
            v->value.ui = (uint32_t)(power_w * 1000);
        } else {
            v->code = NOT_SUPPORTED;
        }
    }
    return OK;
}
