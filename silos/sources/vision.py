"""torchvision, imported only where it is used, and also beside a CPU build of torch.

The package index pairs its torchvision with torch's CUDA build. Beside the CPU build its library does not load, and the
import fails over two operators that were never registered; declaring them lets everything work that does not call them
(datasets, transforms, classification networks, most of `ops`).
"""

import sys
from types import ModuleType
from typing import Any

_declared: list[Any] = []  # a library's declarations last as long as the object


def torchvision() -> ModuleType:
    """The torchvision package; on a mismatched build `nms`, `deform_conv2d` and the image codecs stay unusable."""
    try:
        import torchvision as package
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        package = _declare_and_import()
    return package


def _declare_and_import() -> ModuleType:
    import torch

    for name in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    if not _declared:
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(library)
    import torchvision as package

    return package
