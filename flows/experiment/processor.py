"""Names the processor that computes clients, for records; nothing heavy is imported for a CPU."""

import platform
from pathlib import Path


def processor_name(device: str) -> str:
    """Return the model of the CPU, or of the GPU for the device `cuda`."""
    if device == "cuda":
        import torch

        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
