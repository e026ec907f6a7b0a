"""The `data.source` section of params.yaml: the params of each kind of source."""

from typing import Annotated, Literal

from pydantic import (
    Field,
    model_validator,
)

from silos import param_limits
from silos.errors import shown
from silos.param_types import Name
from silos.params_section import Fill, Number, Section, one_fault
from silos.plugin_registry import Registered, Registry


class Digits(Section):
    """The 1,797 handwritten digits that come with scikit-learn: 8 x 8 pixels, 0 to 255, ten classes."""

    kind: Literal["digits"]


class Tumours(Section):
    """The 569 breast tumours of Wisconsin that come with scikit-learn: 30 features, 0 to 1, malignant or benign."""

    kind: Literal["tumours"]


NPZ_ARRAYS = ("x", "y", "client", "domain", "split", "features")
"""The arrays of an archive with a meaning of their own."""


class Npz(Section):
    """A NumPy archive with the arrays x and y, and optionally client, domain, split, features and one of units."""

    kind: Literal["npz"]
    path: str = Field(min_length=1, description="relative to the folder of params.yaml")
    task: Literal["classification", "regression"] = Field(
        default="classification", description="the type of y: classes or numbers"
    )
    unit: Name | None = Field(default=None, description="the array of each row's patient, plant or machine")

    @model_validator(mode="after")
    def _has_units_of_their_own(self) -> "Npz":
        if self.unit in NPZ_ARRAYS:
            raise ValueError(
                f"unit: got {self.unit}, expected an array of units. Save each row's unit as an array of another name"
            )
        return self


class Table(Section):
    """A CSV or Parquet file with a header: label, client, domain, split and unit columns, all others are features."""

    kind: Literal["table"]
    path: str = Field(min_length=1, description=".csv, .csv.gz or .parquet, relative to the folder of params.yaml")
    label: Name = Field(description="the column to predict")
    client: Name | None = Field(default=None, description="the column with the silo of each row")
    domain: Name | None = Field(default=None, description="the column with the domain of each silo")
    split: Name | None = Field(default=None, description="the column with train, validation or test")
    unit: Name | None = Field(default=None, description="the column of each row's patient, plant or machine")
    task: Literal["classification", "regression"] = Field(
        default="classification", description="the type of the label: classes or numbers"
    )
    drop: tuple[Name, ...] = Field(default=(), description="columns to leave out")
    categorical: tuple[Name, ...] = Field(default=(), description="columns of numbers that are codes without an order")
    missing: Annotated[
        Literal["refuse", "drop_rows"] | Fill,
        one_fault("expected refuse, drop_rows, or {fill: v} with a finite v or mean"),
    ] = "refuse"
    decimal: Literal[".", ","] | None = Field(
        default=None, description="the decimal mark of numbers that are text; null detects it in the file"
    )
    censored: Literal["refuse", "limit", "half"] = Field(
        default="refuse", description="how to read limits among numbers: <0.5 as 0.5 (limit) or 0.25 (half), >90 as 90"
    )
    na_values: tuple[Name, ...] | None = Field(
        default=None, description="texts that mean a missing value in every column, such as NA"
    )

    @property
    def roles(self) -> dict[str, str]:
        """Return the columns that are not features, by role: label, client ..."""
        columns = {role: getattr(self, role) for role in ("label", "client", "domain", "split", "unit")}
        return {role: column for role, column in columns.items() if column is not None}

    @model_validator(mode="after")
    def _names_each_column_once(self) -> "Table":
        keys: dict[str, str] = {}
        parts = [("drop", name) for name in self.drop] + [("categorical", name) for name in self.categorical]
        for key, column in [*self.roles.items(), *parts]:
            if keys.setdefault(column, key) != key:
                raise ValueError(
                    f"got the column {shown(repr(column))} under {keys[column]} and {key}, expected it under one "
                    "of them. Remove it from the other"
                )
        return self


class RowLimits(Section):
    """The number of rows taken of each split of the source, drawn at random with data.seed; null takes all.

    With `test: 0` the source has no test rows, and data.split draws them.
    """

    train: int | None = Field(default=None, ge=1, le=param_limits.TIMES)
    test: int | None = Field(default=None, ge=0, le=param_limits.TIMES)


class Downloaded(Section):
    """The settings of sets that torchvision reads: their folder, and the rows to take."""

    kind: str
    download_dir: str = Field(default="downloads", min_length=1, description="relative to the folder of params.yaml")
    download: bool = Field(default=True, description="whether files that are not in download_dir may be downloaded")
    rows: RowLimits = RowLimits()


class Mnist(Downloaded):
    """MNIST and its drop-in replacement: 28 x 28 pixels, ten classes, 60,000 training and 10,000 test rows."""

    kind: Literal["mnist", "fashion_mnist"]


class Emnist(Downloaded):
    """Letters and digits of NIST's database 19 (Cohen et al. 2017): 28 x 28 pixels, turned upright."""

    kind: Literal["emnist"]
    split: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"]


class Cifar(Downloaded):
    """Small photographs: 32 x 32 pixels in colour, 10 or 100 classes, 50,000 training and 10,000 test rows."""

    kind: Literal["cifar10", "cifar100"]


class Gtsrb(Downloaded):
    """The German traffic signs, 43 classes, in colour; each is resized to `size` x `size` pixels."""

    kind: Literal["gtsrb"]
    size: int = Field(default=32, ge=1, le=param_limits.SIDE)


class Folder(Section):
    """Pictures as domain/class/file, the layout of PACS, or class/file, resized to `size` x `size` pixels in colour."""

    kind: Literal["folder"]
    path: str = Field(min_length=1, description="relative to the folder of params.yaml")
    size: int = Field(ge=1, le=param_limits.SIDE)
    range: tuple[Number, Number] | None = Field(
        default=None,
        description="the values that become black and white in images of more than 8 bits; null: the limits of "
        "their type",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_no_units(cls, values: object) -> object:
        if isinstance(values, dict) and "unit" in values:
            raise ValueError(
                f"unit: got {shown(repr(values['unit']))}, expected no column, since files in folders name none. Save the "
                "pictures as the array x of a .npz, and their units as another array"
            )
        return values

    @model_validator(mode="after")
    def _has_a_range_in_order(self) -> "Folder":
        if self.range and not self.range[0] < self.range[1]:
            raise ValueError(
                f"range: got [{self.range[0]:g}, {self.range[1]:g}], expected two increasing numbers. "
                "Give the lowest value first"
            )
        return self


class Synthetic(Section):
    """Clusters of clients, each cluster with its own coefficients: y = x·theta + noise, or its sign."""

    kind: Literal["synthetic"]
    task: Literal["linear", "logistic"]
    clusters: int = Field(default=3, ge=1, le=param_limits.CLIENTS)
    clients_per_cluster: int = Field(default=100, ge=1, le=param_limits.CLIENTS)
    rows: int = Field(default=100, ge=1, le=param_limits.TIMES, description="training rows of a client")
    test_rows: int = Field(default=100, ge=0, le=param_limits.TIMES, description="test rows of a client")
    features: int = Field(default=10, ge=1, le=param_limits.WIDTH)
    noise: float = Field(
        default=0.1, ge=0, le=param_limits.MAX_REAL, description="standard deviation, of the linear task only"
    )

    @model_validator(mode="after")
    def _logistic_has_no_noise(self) -> "Synthetic":
        if self.task == "logistic" and "noise" in self.model_fields_set:
            raise ValueError(
                "noise: got a value for the logistic task, expected it for the linear task only. Drop the key"
            )
        return self


class OwnSource(Section, Registered):
    """A source from a plugin file."""


def is_public(source: Section) -> bool:
    """Return whether the rows are simulated or of a public data set, so that they are of no one who needs a budget."""
    return getattr(source, "kind", None) in PUBLIC_KINDS


class AtPlaces(Section):
    """Rows that lie at the places which joined this project; `siloflow partition` asks each for what it holds."""

    kind: Literal["places"]


Source = Annotated[
    AtPlaces | Digits | Tumours | Npz | Table | Mnist | Emnist | Cifar | Gtsrb | Folder | Synthetic,
    Field(discriminator="kind"),
]

SOURCES = Registry(
    "source",
    {
        "places": "silos.sources.source_registry:at_places",
        "digits": "silos.sources.source_registry:digits",
        "tumours": "silos.sources.source_registry:tumours",
        "npz": "silos.sources.npz:npz",
        "table": "silos.sources.tabular.table_source:table",
        "mnist": "silos.sources.torchvision_datasets:mnist",
        "fashion_mnist": "silos.sources.torchvision_datasets:mnist",
        "emnist": "silos.sources.torchvision_datasets:emnist",
        "cifar10": "silos.sources.torchvision_datasets:cifar",
        "cifar100": "silos.sources.torchvision_datasets:cifar",
        "gtsrb": "silos.sources.torchvision_datasets:gtsrb",
        "folder": "silos.sources.image_folder:folder",
        "synthetic": "silos.sources.synthetic:synthetic",
    },
)

PUBLIC_KINDS = frozenset(SOURCES.built_in) - {"npz", "table", "folder", "places"}
"""The kinds of sources for which `is_public` is true."""
