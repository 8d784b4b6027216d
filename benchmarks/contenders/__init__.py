"""One file per contender: it runs in a process and an environment of its own.

Each has `start(work, variant)`, which returns an object with

    prepare()      go back to the initial model; not timed
    run(rounds)    do so many rounds with evaluation; return the final test loss and accuracy; timed
    check(rounds)  the same, not timed, and count the work
    stop()         end

and `SETUP`: for each variant what had to be set to make its work equal; the tables print it.

Only the files whose names begin with `udjfl` may import it: others run where it is not installed.
"""
