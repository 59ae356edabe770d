/* Copyright 2026 The gpu-ci-worker authors
 * See LICENSE file for licensing details.
 *
 * A libcuda.so.1 that is there, so that it can be mounted into containers, and finds no device
 * (CUDA_ERROR_NO_DEVICE, cuda.h of CUDA 13.0).
 */
int cuInit(unsigned flags) { return (void)flags, 100; }
