"""Many points of the family at once: the frontier between clients, and the choice of a point.

`frontier` trains a grid and shows what every point does; `tune` chooses one on held-out data.
"""
