/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * A libnvidia-ml.so.1 for machines without a GPU. Each value is one small file that is read at each
 * call, so that another process can change it at any time:
 *
 *   $FAKE_GPU_DIR (default /var/lib/fake-gpu)
 *     driver-version  cuda-version (as 13.0)  driver (loaded|gone)  nvml-init-rc
 *     hang   there while no call returns; with a number until that uptime
 *     events   a line for each event: events.h
 *     gpus/<card>/uuid  model  memory-mib  minor  pci  ...   (all names: SETTABLE in tests/fakes/fakecards.py)
 *     gpus/<card>/driver (nvidia|vfio-pci|nouveau|none)  fault (fallen-off-bus|nvml-only|taken-away)
 *     gpus/<card>/mig/<n>   there while MIG mode is on; each file holds the UUID of one MIG device
 *
 * With LIBRARY_VERSION it is of one driver, as a package has it, and answers no other.
 *
 * An absent file means healthy; the text N/A makes NVML answer "not supported", rc=16 that number.
 * Signatures and numbers are those of nvml.h of CUDA 13.0.
 */
#include "state.h"
#include "health.h"
#include "mig.h"
#include "events.h"

/* ---- library and system ---- */

rc nvmlInitWithFlags(unsigned flags)
{
    char text[TEXT];
    int any = 0;

    (void)flags;
    hang();
    for (int i = 0; i < CARDS; i++) {
        whole[i] = (struct dev){i, -1};
        for (int j = 0; j < SLICES; j++)
            slices[i][j] = (struct dev){i, j};
        any |= driven(i);
    }
    if (slurp(text, TEXT, "nvml-init-rc") && atoi(text))
        return atoi(text);
    /* nvidia.ko stays loaded only while a card is bound to it. */
    if (!any || (slurp(text, TEXT, "driver") && !strcmp(text, "gone")))
        return NO_DRIVER;
#ifdef LIBRARY_VERSION
    if (slurp(text, TEXT, "driver-version") && strcmp(text, LIBRARY_VERSION))
        return RM_MISMATCH;
#endif
    inits++;
    return OK;
}

rc nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

rc nvmlShutdown(void)
{
    if (inits < 1)
        return UNINITIALIZED;
    inits--;
    return OK;
}

const char *nvmlErrorString(rc code)
{
    switch (code) {
    case OK: return "The operation was successful";
    case UNINITIALIZED: return "NVML was not first initialized with nvmlInit()";
    case INVALID: return "A supplied argument is invalid";
    case NOT_SUPPORTED: return "The requested operation is not available on target device";
    case NOT_FOUND: return "A query to find an object was unsuccessful";
    case SMALL: return "An input argument is not large enough";
    case TIMEOUT: return "User provided timeout passed";
    case NO_DRIVER: return "NVIDIA driver is not loaded";
    case LOST: return "The GPU has fallen off the bus or has otherwise become inaccessible";
    case 16: return "The GPU requires a reset before it can be used again";
    case RM_MISMATCH: return "RM detects a driver/library version mismatch";
    default: return "Unknown Error";
    }
}

static rc system_text(const char *name, char *to, unsigned room)
{
    char text[TEXT];
    if (inits < 1)
        return UNINITIALIZED;
    return slurp(text, TEXT, "%s", name) ? copy(to, room, text) : NOT_SUPPORTED;
}

rc nvmlSystemGetDriverVersion(char *to, unsigned room) { return system_text("driver-version", to, room); }

rc nvmlSystemGetCudaDriverVersion_v2(int *to)
{
    char text[TEXT];
    int major = 0, minor = 0;
    rc status = system_text("cuda-version", text, TEXT);
    if (!status && sscanf(text, "%d.%d", &major, &minor) >= 1)
        *to = major * 1000 + minor * 10;
    return status;
}

rc nvmlSystemGetCudaDriverVersion(int *to) { return nvmlSystemGetCudaDriverVersion_v2(to); }

/* ---- finding a device ---- */

rc nvmlDeviceGetCount_v2(unsigned *to)
{
    hang();
    if (inits < 1)
        return UNINITIALIZED;
    *to = seen_before(CARDS);
    return OK;
}

rc nvmlDeviceGetHandleByIndex_v2(unsigned index, dev *to)
{
    if (inits < 1)
        return UNINITIALIZED;
    for (int i = 0; i < CARDS; i++)
        if (seen(i) && index-- == 0) {
            *to = &whole[i];
            return check(*to);
        }
    return INVALID;
}

static void uuid_of(dev d, char *to)
{
    if (d->slice < 0)
        value(d->card, "uuid", "", to);
    else if (!slurp(to, TEXT, "gpus/%d/mig/%d", d->card, d->slice))
        *to = 0;
}

/* As sysfs writes it or as NVML does: the domain may have more digits. */
rc nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, dev *to)
{
    char text[TEXT];
    unsigned domain, bus, device, wanted[3];
    if (inits < 1)
        return UNINITIALIZED;
    if (sscanf(bus_id, "%x:%x:%x", &wanted[0], &wanted[1], &wanted[2]) != 3)
        return INVALID;
    for (int i = 0; i < CARDS; i++) {
        value(i, "pci", "", text);
        if (seen(i) && sscanf(text, "%x:%x:%x", &domain, &bus, &device) == 3 && domain == wanted[0] &&
            bus == wanted[1] && device == wanted[2]) {
            *to = &whole[i];
            return check(*to);
        }
    }
    return NOT_FOUND;
}

rc nvmlDeviceGetHandleByUUID(const char *uuid, dev *to)
{
    char text[TEXT];
    if (inits < 1)
        return UNINITIALIZED;
    for (int i = 0; i < CARDS; i++)
        for (int j = -1; j < SLICES && seen(i); j++) {
            dev d = j < 0 ? &whole[i] : &slices[i][j];
            uuid_of(d, text);
            if (*text && !strcmp(text, uuid)) {
                *to = d;
                return check(d);
            }
        }
    return NOT_FOUND;
}

/* ---- what a device is ---- */

rc nvmlDeviceGetIndex(dev d, unsigned *to)
{
    rc status = check(d);
    if (!status)
        *to = d->slice < 0 ? seen_before(d->card) : (unsigned)d->slice;
    return status;
}

rc nvmlDeviceGetMinorNumber(dev d, unsigned *to)
{
    char card[8];
    if (d && d->slice >= 0)
        return INVALID;
    snprintf(card, sizeof card, "%d", d ? d->card : 0);
    return small(d, "minor", card, to);
}

rc nvmlDeviceGetUUID(dev d, char *to, unsigned room)
{
    char text[TEXT];
    rc status = check(d);
    if (status)
        return status;
    uuid_of(d, text);
    return copy(to, room, text);
}

rc nvmlDeviceGetName(dev d, char *to, unsigned room)
{
    char model[TEXT], profile[TEXT], text[2 * TEXT + 8];
    rc status = check(d);
    if (status)
        return status;
    value(d->card, "model", "NVIDIA A100-SXM4-80GB", model);
    if (d->slice < 0)
        return copy(to, room, model);
    value(d->card, "mig-profile", "1g.10gb", profile);
    snprintf(text, sizeof text, "%s MIG %s", model, profile);
    return copy(to, room, text);
}

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };

rc nvmlDeviceGetMemoryInfo_v2(dev d, struct memory_v2 *to)
{
    u64 total, used;
    rc status = number(d, "memory-mib", "81920", &total);
    if (!status)
        status = number(d, "memory-used-mib", "0", &used);
    if (status)
        return status;
    if (d->slice >= 0)
        profile_of(d->card, &total);
    to->total = total << 20;
    to->reserved = 0;
    to->used = used << 20;
    to->free = to->total - to->used;
    return OK;
}

rc nvmlDeviceGetMemoryInfo(dev d, struct memory *to)
{
    struct memory_v2 all;
    rc status = nvmlDeviceGetMemoryInfo_v2(d, &all);
    if (!status)
        *to = (struct memory){all.total, all.free, all.used};
    return status;
}

struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };

rc nvmlDeviceGetPciInfo_v3(dev d, struct pci *to)
{
    char text[TEXT];
    unsigned function, id;
    rc status = small(d, "pci-device", "0x20b2", &id);
    if (status)
        return status;
    memset(to, 0, sizeof *to);
    value(d->card, "pci", "", text);
    if (sscanf(text, "%x:%x:%x.%x", &to->domain, &to->bus, &to->device, &function) != 4)
        return 999;
    snprintf(to->legacy, sizeof to->legacy, "%04X:%02X:%02X.0", to->domain & 0xffff, to->bus & 0xff,
             to->device & 0xff);
    snprintf(to->bus_id, sizeof to->bus_id, "%08X:%02X:%02X.0", to->domain, to->bus & 0xff,
             to->device & 0xff);
    to->id = id << 16 | 0x10de;
    return OK;
}

rc nvmlDeviceGetBrand(dev d, unsigned *to)
{
    return small(d, "brand", "14", to); /* NVML_BRAND_NVIDIA, as an A100's */
}

rc nvmlDeviceGetCudaComputeCapability(dev d, int *major, int *minor)
{
    char text[TEXT];
    rc status = check(d);
    if (status)
        return status;
    value(d->card, "compute-capability", "8.0", text);
    return sscanf(text, "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}
