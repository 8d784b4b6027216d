"""The commands that use a trained model: predict and export."""

from pathlib import Path
from typing import Annotated

import typer

from udjfl.cli.options import AsJson, TrustModel
from udjfl.cli.progress import collect_warnings, show_status
from udjfl.cli.wrapping import print_wrapped
from udjfl.errors import SettingsError
from udjfl.settings.base import split_names

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
            help="A CSV file with a heading. Of a model of tables: raw rows with the columns that "
            "it was trained on, by name (or parquet). Else: its features, as numbers in order."
        ),
    ],
    client: ServedClient = None,
    leave_out: Annotated[
        str | None,
        typer.Option(help="Columns that are no features, such as the target; by commas."),
    ] = None,
    trust_model: TrustModel = False,
    json: AsJson = False,
) -> None:
    """Predict the class, or the number, of each row of a CSV file with the model of a finished run.

    Raw rows are filled, scaled and encoded as those of the client in the training or, without
    --client, by the values of all clients together. Prints a CSV file: the prediction and, of
    classes, the probability of each.
    """
    from udjfl.report.opened_run import open_result
    from udjfl.report.output import show
    from udjfl.report.plain_tables import to_csv

    with collect_warnings(), show_status("predicting"):
        result = open_result(folder, trust_model=trust_model)
        if result.inputs is None:
            raise SettingsError(f"{folder} does not say what its model takes")
        result.served_model(client)  # an error of its own if there is no such client
        x = result.inputs.read_csv(data, split_names(leave_out or ""), client)
        predictions = result.predict(x, client)
        names: list[str] = []
        probabilities: list[list[float]] = [[]] * len(predictions)
        if result.n_classes != 0:
            probabilities = result.predict_proba(x, client).tolist()
            names = [result.inputs.label(index) for index in range(len(probabilities[0]))]
    rows = list(zip(predictions, probabilities, strict=True))
    if json:
        document = [
            {
                "prediction": predicted,
                **({"probabilities": dict(zip(names, row, strict=True))} if names else {}),
            }
            for predicted, row in rows
        ]
        show("", document, as_json=True)
        return
    cells = [[str(predicted), *(f"{value:.6f}" for value in row)] for predicted, row in rows]
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
    trust_model: TrustModel = False,
) -> None:
    """Write the model of a finished run as ONNX or TorchScript, for other programs.

    It takes a batch of examples and returns a score for each class; their softmax are the
    probabilities. ONNX needs `pip install 'udjfl[onnx]'`.
    """
    from udjfl.report.opened_run import open_result
    from udjfl.training.export import export

    with show_status("exporting"):
        export(open_result(folder, trust_model=trust_model), file, client, format)
    print_wrapped(f"written to `{file}`")
