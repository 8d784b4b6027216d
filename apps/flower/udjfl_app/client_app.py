"""The app of every client."""

from udjfl.flower import client_app
from udjfl_app.task import MODEL, client_data

app = client_app(MODEL, client_data)
