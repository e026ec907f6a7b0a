"""Holds siloflow's registry of each kind, and the decorators that a plugin file imports.

from flows.plugins import register_metric

@register_metric("margin")
def margin(logits, y): ...
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from silos.data_params import PARTITIONERS
from silos.plugin_registry import Registry
from silos.sources.source_params import SOURCES

_METHODS = Path(__file__).parent / "methods"
_NOT_METHODS = ("base", "client_sampler", "figure_context", "method_settings", "round_context")  # shared by all methods


@cache
def method_modules() -> Mapping[str, str]:
    """Map every built-in method to its module; imports none."""
    files = [path for folder in (".", "references") for path in (_METHODS / folder).glob("[!_]*.py")]
    modules = [path for path in files if path.stem not in _NOT_METHODS]
    return {p.stem: ".".join(("flows", *p.relative_to(_METHODS.parent).with_suffix("").parts)) for p in modules}


METHODS = Registry("method", method_modules)
NETWORKS = Registry(
    "network",
    {
        "mlp": "models.networks.mlp:MLP",
        "cnn": "models.networks.cnn:CNN",
        "cnn_bn": "models.networks.cnn:BatchNormCNN",
        "residual": "models.networks.resnet_vgg:Residual",
        "vgg16_bn": "models.networks.resnet_vgg:VGG16",
        "resnet18": "models.networks.resnet_vgg:ResNet18",
    },
)
METRICS = Registry(
    "metric",
    {
        "accuracy": "models.metrics.task_metrics:Accuracy",
        "rmse": "models.metrics.task_metrics:RootMeanSquaredError",
        "auc": "models.metrics.client_metrics:AreaUnderCurve",
        "macro_f1": "models.metrics.client_metrics:MacroF1",
        "balanced_accuracy": "models.metrics.client_metrics:BalancedAccuracy",
        "log_loss": "models.metrics.client_metrics:LogLoss",
        "brier": "models.metrics.client_metrics:BrierScore",
        "mae": "models.metrics.client_metrics:MeanAbsoluteError",
        "r2": "models.metrics.client_metrics:RSquared",
        **dict.fromkeys(("correct", "entropy", "loss", "squared_error"), "models.training.objectives:measures"),
    },
)
SAMPLERS = Registry(
    "sampler",
    {
        "uniform": "flows.methods.client_sampler:Uniform",
        "by_size": "flows.methods.client_sampler:BySize",
        "improving": "flows.methods.client_sampler:LossBasedSampler",
    },
)
FIGURES = Registry(
    "figure",
    {
        "stages": "flows.methods.common.method_figures:stages",
        "groups": "flows.methods.common.method_figures:group_history",
        "codebook": "flows.methods.common.method_figures:codewords",
    },
)
CALLBACKS = Registry("callback", {})

register_method = METHODS.register
register_network = NETWORKS.register
register_source = SOURCES.register
register_partitioner = PARTITIONERS.register
register_metric = METRICS.register
register_figure = FIGURES.register
register_sampler = SAMPLERS.register
register_callback = CALLBACKS.register
