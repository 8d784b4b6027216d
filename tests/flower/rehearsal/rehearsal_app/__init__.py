"""An app for tests: honest clients, but for one that does what the run's configuration says.

liar      the id of that client
faults    what it does in rounds 1, 2, ..., separated by commas; nothing between two commas: it is honest.
          `as NAME` goes by another's id all the time, `doubt` tells twice the uncertainty it measured
gates     a folder. Before round t the server waits for as long as there is a file `closed-t`, and says so by `waiting-t`;
          a client that hangs in round t says so by `hanging-t`
shown     a folder that gets the server's model after every round
"""
