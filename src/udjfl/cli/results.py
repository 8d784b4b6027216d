"""The commands that use a trained model: predict and export."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from udjfl.cli.options import AsJson
from udjfl.cli.progress import show_status
from udjfl.errors import SettingsError

Folder = Annotated[Path, typer.Argument(help="The folder of a finished run, given as --out.")]
ServedClient = Annotated[
    str | None,
    typer.Option(
        "--client", help="Use the model that this client is served; default: the common one."
    ),
]


def predict_command(
    folder: Folder,
    data: Annotated[
        Path,
        typer.Argument(
            help="A CSV file with a heading: the columns that the model was trained on, in order."
        ),
    ],
    client: ServedClient = None,
    leave_out: Annotated[
        str | None,
        typer.Option(help="Columns that are no features, such as the target; by commas."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Predict the class of each row of a CSV file with the model of a finished run.

    Prints a CSV file: the predicted class, and the probability of each class.
    """
    from udjfl.report.opened_run import open as open_run
    from udjfl.report.output import show
    from udjfl.report.plain_tables import to_csv

    with show_status("predicting"):
        result = open_run(folder)
        if result.inputs is None:
            raise SettingsError(f"{folder} does not say what its model takes")
        x = result.inputs.read_csv(data, [] if leave_out is None else leave_out.split(","))
        probabilities = result.predict_proba(x, client)
    names = [result.inputs.label(index) for index in range(probabilities.shape[1])]
    labels = [names[index] for index in probabilities.argmax(dim=1).tolist()]
    if json:
        rows = zip(labels, probabilities.tolist(), strict=True)
        document = [
            {"prediction": label, "probabilities": dict(zip(names, row, strict=True))}
            for label, row in rows
        ]
        show("", document, as_json=True)
        return
    cells = [
        [label, *(f"{value:.6f}" for value in row)]
        for label, row in zip(labels, probabilities.tolist(), strict=True)
    ]
    print(to_csv(["prediction", *names], cells), end="")


def export_command(
    folder: Folder,
    file: Annotated[
        Path, typer.Argument(help="File to write; it ends in .onnx, or in .pt for TorchScript.")
    ],
    client: ServedClient = None,
    format: Annotated[
        str | None, typer.Option(help="onnx or torchscript, whatever the ending is.")
    ] = None,
) -> None:
    """Write the model of a finished run as ONNX or TorchScript, for other programs.

    It takes a batch of examples and returns a score for each class; their softmax are the
    probabilities. ONNX needs `pip install 'udjfl[onnx]'`.
    """
    from udjfl.report.opened_run import open as open_run
    from udjfl.training.export import export

    with show_status("exporting"):
        export(open_run(folder), file, client, format)
    print(f"written to {file}", file=sys.stderr)
