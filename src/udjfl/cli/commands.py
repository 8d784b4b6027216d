"""Every command, by the name that is typed. Its line on the front page is in `udjfl.cli.app`."""

from udjfl.cli.choose import choose_command
from udjfl.cli.command import CommandGroup, LightCommand
from udjfl.cli.data import app as data_commands
from udjfl.cli.demo import demo
from udjfl.cli.flower import app as flower_commands
from udjfl.cli.methods import methods_command
from udjfl.cli.options import settings_command
from udjfl.cli.paper import app as reproduce_commands
from udjfl.cli.report import check_command, figures_command, report_command, watch_command
from udjfl.cli.results import export_command, predict_command
from udjfl.cli.run import compare, resume_command, run
from udjfl.cli.search import trace_frontier, tune
from udjfl.search.settings import FrontierSettings, TuneSettings
from udjfl.settings import CompareSettings, RunSettings

# In the order of the front page. The flags of a settings command are the fields of its settings;
# a light command imports little and starts at once.
app = CommandGroup()
app.command("demo")(demo)
app.command("choose", cls=LightCommand)(choose_command)
settings_command(app, "run", RunSettings)(run)
settings_command(app, "compare", CompareSettings)(compare)
settings_command(app, "frontier", FrontierSettings)(trace_frontier)
settings_command(app, "tune", TuneSettings)(tune)
app.command("resume")(resume_command)
app.command("watch")(watch_command)
app.command("report")(report_command)
app.command("figures")(figures_command)
app.command("check")(check_command)
app.command("predict")(predict_command)
app.command("export")(export_command)
app.command("methods", cls=LightCommand)(methods_command)
app.add_typer(data_commands, name="data")
app.add_typer(flower_commands, name="flower")
app.add_typer(reproduce_commands, name="reproduce")
