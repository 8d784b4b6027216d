"""Many methods at once: the frontier between clients, and the choice of one on held-out data.

A point is a method with its parameters, mostly one of UDJ-FL's family: an exponent of the loss and
a power of the uncertainty. `frontier` trains all pairs of some exponents and powers, the grid, and
shows what every point does; `tune` chooses a point for a theory. A program is the joint training of
several points and seeds, in lockstep (`simulation/programs.py`).
"""
