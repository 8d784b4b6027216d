"""A Flower app of udjfl: `flwr run . --stream`."""
