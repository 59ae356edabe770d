# Copyright 2026 The gpu-ci-worker authors
# See LICENSE file for licensing details.
"""GPUs of any vendor as the kernel shows them: PCI, sysfs, device nodes, DRM events."""
