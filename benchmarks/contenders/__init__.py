"""One file per contender: what is run in a process of its own, in an environment of its own.

Each has `start(work, variant)`, which returns something with

    prepare()      back to the initial model; not timed
    run(rounds)    so many rounds, evaluation included; returns the final test loss and accuracy; timed
    check(rounds)  the same, not timed, and counts what was done
    stop()         nothing will be asked any more

and `SETUP`, for each variant what had to be set so that its work is everybody's; the tables print it.

Only `udjfl_runs` and `udjfl_grid` may import udjfl: the others run where it is not installed.
"""
