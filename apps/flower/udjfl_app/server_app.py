"""The app of the server."""

from udjfl.flower import server_app
from udjfl_app.task import MODEL, server_data

app = server_app(MODEL, server_data)
