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

/* 0: shutdown, 1: slowdown. */
rc nvmlDeviceGetTemperatureThreshold(dev d, unsigned kind, unsigned *to)
{
    if (kind > 1)
        return NOT_SUPPORTED;
    return small(d, kind ? "temperature-slowdown" : "temperature-shutdown", kind ? "92" : "95", to);
}

struct utilisation { unsigned gpu, memory; };

rc nvmlDeviceGetUtilizationRates(dev d, struct utilisation *to)
{
    rc status = small(d, "utilisation", "0", &to->gpu);
    if (!status)
        to->memory = to->gpu / 2;
    return status;
}

/* In mJ: what energy-mj says of the uptime energy-at, and what the card has drawn since then. */
rc nvmlDeviceGetTotalEnergyConsumption(dev d, u64 *to)
{
    u64 since, power;
    rc status = number(d, "energy-mj", "0", to);
    if (!status)
        status = number(d, "energy-at", "0", &since);
    if (!status)
        status = number(d, "power-mw", "60000", &power);
    if (!status)
        *to += (u64)((uptime() - since) * power);
    return status;
}

struct margin { unsigned version; int celsius; };

/* Told from Hopper on. */
rc nvmlDeviceGetMarginTemperature(dev d, struct margin *to)
{
    if (to->version != (sizeof *to | 1 << 24))
        return VERSION_MISMATCH;
    return small(d, "temperature-margin", "N/A", (unsigned *)&to->celsius);
}

/* 0: graphics, 1: SM, 2: memory, 3: video. */
rc nvmlDeviceGetClockInfo(dev d, unsigned kind, unsigned *to)
{
    return kind == 1 ? small(d, "sm-clock-mhz", "210", to) : NOT_SUPPORTED;
}

rc nvmlDeviceGetMaxClockInfo(dev d, unsigned kind, unsigned *to)
{
    return kind == 1 ? small(d, "sm-clock-max-mhz", "1410", to) : NOT_SUPPORTED;
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

struct sram {
    unsigned version;
    u64 total_parity, total_secded, total_corrected, parity, secded, corrected, by_unit[5];
    unsigned exceeded;
};

rc nvmlDeviceGetSramEccErrorStatus(dev d, struct sram *to)
{
    rc status;
    if (to->version != (sizeof *to | 1 << 24))
        return VERSION_MISMATCH;
    memset(&to->total_parity, 0, sizeof *to - offsetof(struct sram, total_parity));
    status = number(d, "sram-uncorrected-volatile", "0", &to->parity);
    if (!status)
        status = number(d, "sram-uncorrected-aggregate", "0", &to->total_secded);
    if (!status)
        status = number(d, "sram-corrected-volatile", "0", &to->corrected);
    return status ? status : small(d, "sram-threshold-exceeded", "0", &to->exceeded);
}

/* Cause 0 is several single bit errors, 1 a double bit error; the addresses are made up. */
rc nvmlDeviceGetRetiredPages(dev d, unsigned cause, unsigned *count, u64 *to)
{
    unsigned room = *count;
    rc status = small(d, cause ? "retired-pages" : "retired-pages-single-bit", "0", count);
    for (unsigned i = 0; !status && to && i < *count && i < room; i++)
        to[i] = i << 16;
    return status ? status : *count > room || (*count && !to) ? SMALL : OK;
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
