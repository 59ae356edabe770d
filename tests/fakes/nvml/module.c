/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * A kernel module that can't be loaded: depmod and modinfo read its .modinfo, and fakegpu its
 * version. NAME and VERSION come from the command line.
 */
#define INFO(tag, text) \
    static const char tag[] __attribute__((section(".modinfo"), used)) = #tag "=" text

INFO(name, NAME);
INFO(version, VERSION);
INFO(license, "stand-in");
INFO(description, "No module: it stands in for one of NVIDIA's in machines with simulated GPUs");
