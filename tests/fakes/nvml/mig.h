/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * MIG devices: all of a card have one profile, and each is a GPU instance with one compute instance,
 * so that a slice's handle serves for both instances too.
 */
#pragma once
#include "state.h"

static int mig_on(int card)
{
    const char *dir = getenv("FAKE_GPU_DIR");
    char path[512];
    snprintf(path, sizeof path, "%s/gpus/%d/mig", dir ? dir : "/var/lib/fake-gpu", card);
    return !access(path, F_OK);
}

rc nvmlDeviceGetMigMode(dev d, unsigned *current, unsigned *pending)
{
    rc status = small(d, "mig-capable", "1", current);
    if (status)
        return status;
    if (!*current)
        return NOT_SUPPORTED;
    *current = *pending = mig_on(d->card);
    return OK;
}

rc nvmlDeviceGetMaxMigDeviceCount(dev d, unsigned *to) { return small(d, "mig-max", "7", to); }

rc nvmlDeviceIsMigDeviceHandle(dev d, unsigned *to)
{
    rc status = check(d);
    if (!status)
        *to = d->slice >= 0;
    return status;
}

rc nvmlDeviceGetMigDeviceHandleByIndex(dev d, unsigned index, dev *to)
{
    rc status = check(d);
    if (status)
        return status;
    if (d->slice >= 0 || index >= SLICES)
        return INVALID;
    if (!has_slice(d->card, index))
        return NOT_FOUND;
    *to = &slices[d->card][index];
    return OK;
}

rc nvmlDeviceGetDeviceHandleFromMigDeviceHandle(dev d, dev *to)
{
    rc status = check(d);
    if (status)
        return status;
    if (d->slice < 0)
        return INVALID;
    *to = &whole[d->card];
    return OK;
}

/* Slice n is GPU instance n + 1 with compute instance 0, as fakegpu writes into mig-minors. */
rc nvmlDeviceGetGpuInstanceId(dev d, unsigned *to)
{
    rc status = check(d);
    if (!status && d->slice < 0)
        status = NOT_SUPPORTED;
    if (!status)
        *to = d->slice + 1;
    return status;
}

rc nvmlDeviceGetComputeInstanceId(dev d, unsigned *to)
{
    rc status = nvmlDeviceGetGpuInstanceId(d, to);
    if (!status)
        *to = 0;
    return status;
}

static const unsigned profile_slices[] = {1, 2, 3, 4, 7}; /* by NVML_GPU_INSTANCE_PROFILE_*_SLICE */
enum { PROFILES = sizeof profile_slices / sizeof *profile_slices };

/* The profile of a card's slices, such as 1g.10gb, by NVML's number of it. */
static unsigned profile_of(int card, u64 *memory_mib)
{
    char text[TEXT];
    unsigned compute = 1, gib = 10, index = 0;
    value(card, "mig-profile", "1g.10gb", text);
    sscanf(text, "%ug.%ugb", &compute, &gib);
    *memory_mib = 1024ULL * gib;
    while (index < PROFILES - 1 && profile_slices[index] < compute)
        index++;
    return index;
}

struct attributes { unsigned processors, engines[5], gpu_slices, compute_slices; u64 memory_mib; };
struct gpu_profile { unsigned id, p2p, slices, instances, processors, engines[5]; u64 memory_mib; };
struct compute_profile { unsigned id, slices, instances, processors, engines[5]; };
struct gpu_instance { dev device; unsigned id, profile, start, size; };
struct compute_instance { dev device, instance; unsigned id, profile, start, size; };

rc nvmlDeviceGetAttributes_v2(dev d, struct attributes *to)
{
    rc status = check(d);
    if (status)
        return status;
    if (d->slice < 0)
        return NOT_SUPPORTED;
    memset(to, 0, sizeof *to);
    to->gpu_slices = to->compute_slices = profile_slices[profile_of(d->card, &to->memory_mib)];
    return OK;
}

rc nvmlDeviceGetGpuInstanceProfileInfo(dev d, unsigned index, struct gpu_profile *to)
{
    u64 memory;
    rc status = check(d);
    if (status)
        return status;
    if (index != profile_of(d->card, &memory))
        return NOT_SUPPORTED;
    *to = (struct gpu_profile){.id = index, .slices = profile_slices[index], .memory_mib = memory};
    return OK;
}

rc nvmlDeviceGetGpuInstanceById(dev d, unsigned id, dev *to)
{
    return nvmlDeviceGetMigDeviceHandleByIndex(d, id - 1, to);
}

rc nvmlGpuInstanceGetInfo(dev d, struct gpu_instance *to)
{
    u64 memory;
    rc status = check(d);
    if (!status)
        *to = (struct gpu_instance){&whole[d->card], d->slice + 1, profile_of(d->card, &memory), 0, 0};
    return status;
}

rc nvmlGpuInstanceGetComputeInstanceById(dev d, unsigned id, dev *to)
{
    *to = d;
    return id ? NOT_FOUND : check(d);
}

rc nvmlGpuInstanceGetComputeInstanceProfileInfo(dev d, unsigned index, unsigned engine,
                                                struct compute_profile *to)
{
    u64 memory;
    rc status = check(d);
    if (status)
        return status;
    if (engine || index != profile_of(d->card, &memory))
        return NOT_SUPPORTED;
    *to = (struct compute_profile){.id = index, .slices = profile_slices[index]};
    return OK;
}

rc nvmlComputeInstanceGetInfo_v2(dev d, struct compute_instance *to)
{
    u64 memory;
    rc status = check(d);
    if (!status)
        *to = (struct compute_instance){&whole[d->card], d, 0, profile_of(d->card, &memory), 0, 0};
    return status;
}
