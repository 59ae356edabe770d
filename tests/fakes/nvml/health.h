/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * What a card says of its health: a getter, its file, the value of a healthy card.
 */
#pragma once
#include "state.h"

#define SMALL_GETTER(function, file, healthy) \
    rc function(dev d, unsigned *to) { return small(d, file, healthy, to); }

SMALL_GETTER(nvmlDeviceGetPersistenceMode, "persistence-mode", "1")
SMALL_GETTER(nvmlDeviceGetPowerUsage, "power-mw", "60000")
SMALL_GETTER(nvmlDeviceGetEnforcedPowerLimit, "power-limit-mw", "400000")
SMALL_GETTER(nvmlDeviceGetCurrPcieLinkWidth, "pcie-width", "16")
SMALL_GETTER(nvmlDeviceGetMaxPcieLinkWidth, "pcie-width-max", "16")
SMALL_GETTER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie-gen", "4")
SMALL_GETTER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie-gen-max", "4")
SMALL_GETTER(nvmlDeviceGetRetiredPagesPendingStatus, "retired-pages-pending", "0")

rc nvmlDeviceGetTemperature(dev d, int sensor, unsigned *to)
{
    return sensor ? INVALID : small(d, "temperature", "35", to);
}

/* 0x1: idle. */
rc nvmlDeviceGetCurrentClocksEventReasons(dev d, u64 *to)
{
    return number(d, "throttle-reasons", "0x1", to);
}

rc nvmlDeviceGetEccMode(dev d, unsigned *current, unsigned *pending)
{
    rc status = small(d, "ecc-mode", "1", current);
    if (!status)
        *pending = *current;
    return status;
}

rc nvmlDeviceGetTotalEccErrors(dev d, unsigned uncorrected, unsigned aggregate, u64 *to)
{
    static const char *const files[2][2] = {
        {"ecc-corrected-volatile", "ecc-corrected-aggregate"},
        {"ecc-uncorrected-volatile", "ecc-uncorrected-aggregate"},
    };
    return uncorrected > 1 || aggregate > 1 ? INVALID : number(d, files[uncorrected][aggregate], "0", to);
}

rc nvmlDeviceGetRemappedRows(dev d, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                             unsigned *failed)
{
    rc status = small(d, "remapped-rows-corrected", "0", corrected);
    if (!status)
        status = small(d, "remapped-rows-uncorrected", "0", uncorrected);
    if (!status)
        status = small(d, "remapped-rows-pending", "0", pending);
    return status ? status : small(d, "remapped-rows-failed", "0", failed);
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    rc status;
    u64 value;
};

/* Field n is read from the file field-<n>; 0 where there is none. */
rc nvmlDeviceGetFieldValues(dev d, int count, struct field *fields)
{
    char file[32];
    rc status = check(d);
    for (int i = 0; !status && i < count; i++) {
        snprintf(file, sizeof file, "field-%u", fields[i].id);
        fields[i].value = 0;
        fields[i].type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
        fields[i].status = number(d, file, "0", &fields[i].value);
    }
    return status;
}

struct process { unsigned pid; u64 used; unsigned gpu_instance, compute_instance; };

/* The file has a line "<pid> <MiB>" for each. */
static rc processes(dev d, const char *file, unsigned *count, struct process *to)
{
    char text[TEXT], *line, *rest = text;
    unsigned room = *count, found = 0;
    rc status = check(d);
    if (status)
        return status;
    value(d->card, file, "", text);
    while ((line = strsep(&rest, "\n")) && *line) {
        struct process p = {0, 0, ~0u, ~0u};
        if (sscanf(line, "%u %llu", &p.pid, &p.used) != 2)
            return 999;
        p.used <<= 20;
        if (to && found < room)
            to[found] = p;
        found++;
    }
    *count = found;
    return found > room || (found && !to) ? SMALL : OK;
}

rc nvmlDeviceGetComputeRunningProcesses_v3(dev d, unsigned *count, struct process *to)
{
    return processes(d, "processes", count, to);
}

rc nvmlDeviceGetGraphicsRunningProcesses_v3(dev d, unsigned *count, struct process *to)
{
    return processes(d, "graphics-processes", count, to);
}
