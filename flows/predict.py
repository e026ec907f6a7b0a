"""Defines the flow `predict`: it sends a file of raw rows through the champion or the model of a run."""

from flows.orchestration.flow_decorator import Text, Texts, from_overrides, project_flow
from flows.orchestration.open_project import is_from_outside
from flows.project.project import Project
from flows.results.serving.predict_file import FOLDER, predict_file
from silos.errors import UserError, shown
from tasks.tracking.result_types.model_results import Predictions


@project_flow(run_name="predict")
def predict(
    input: Text = "",
    output: Text = "",
    client: Text = "",
    model: Text = "champion",
    keep: Texts = (),
    skip_bad_rows: bool = False,
    project: Project = from_overrides(),
) -> Predictions:
    """Predict the raw rows of a file, and write label, probabilities and entropy of each row.

    Args:
        input: A file with rows as data.source reads them; of a deployment's run, in runs/predictions/.
        output: The .csv or .parquet file to write; of a deployment's run, in runs/predictions/.
        client: The client whose rows they are; by default each row's own, if the file names it.
        model: champion, or a run's folder or name.
        keep: More columns of the file to copy to the output.
        skip_bad_rows: Leave out rows that cannot be predicted.
        overrides: Values that replace those of params.yaml, each as section.key=value, for example training.rounds=20.
    """
    if is_from_outside():
        for key, path in (("input", input), ("output", output)):
            allowed = (project.root / FOLDER).resolve()
            if not path or not (project.root / path).resolve().is_relative_to(allowed):
                raise UserError(
                    f"{key}: got {shown(repr(path))} in a flow run's parameters, expected a file in {FOLDER}/, since "
                    "these open no other paths. Move it there."
                )
    return predict_file(
        project, input or "", output or "", client or None, model or "champion", keep or (), skip_bad_rows
    )
